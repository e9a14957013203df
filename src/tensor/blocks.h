/* blocks.h - weights in blocks of few bits each, as GGUF files hold them, and back to f32.
 *
 *     const struct block_type *q = block_type_of(12);                 // Q4_K, by the number a GGUF file has
 *     int64_t bytes = count / q->elements * q->bytes;                 // rows are whole blocks
 *     q->read(bytes_of_blocks, values, blocks);
 *
 * The other way, for those that have it, is type->write(values, bytes_of_blocks, blocks): to nearest, ties to even.
 *
 * A block has one scale of 16 bits, blocks of 256 also scales of parts of it, and one small number for each element. How a
 * value is made of them is said beside each reader in blocks.c. Elements that are not quantised are blocks of one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BLOCK_MOST   256 /* elements of the largest block */
#define BLOCK_FIELDS 4

/* Numbers of a GGUF file, of the types that are made here. */
enum { BLOCK_Q4_0 = 2, BLOCK_Q8_0 = 8, BLOCK_Q4_K = 12, BLOCK_Q5_K = 13, BLOCK_Q6_K = 14 };

/* Bytes [at, at + bytes) of a block: a list of items of `unit` bytes, which kernels want whole. */
struct block_field {
    short at, bytes, unit;
};

struct block_type {
    const char *name; /* "Q4_K" */
    int elements;     /* of a block */
    int bytes;        /* of a block */
    /* Decodes n blocks. NULL: the type is known, but cannot be read. */
    void (*read)(const unsigned char *blocks, float *out, int64_t n);
    /* All fields of a block, for panels.h; none: kernels do not multiply this type directly. */
    struct block_field field[BLOCK_FIELDS];
    void (*write)(const float *in, unsigned char *blocks, int64_t n); /* NULL: not made here */
};

/* Are there kernels that multiply it as it is? */
static inline bool block_type_multiplies(const struct block_type *type)
{
    return type && type->field[0].bytes > 0;
}

/* The type with that number; NULL: no such type. */
const struct block_type *block_type_of(uint32_t number);

/* The number of the type with that name; -1: no such type. */
int block_type_number(const char *name);
