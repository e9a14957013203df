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
 *
 * NF4 and FP4 are bitsandbytes' 4-bit types, which no GGUF file has: an element is one of 16 numbers of a table times the
 * largest magnitude of its 64 elements, in fp32. With double quantisation (NF4_DQ, FP4_DQ) those magnitudes are codes of 8
 * bits themselves (blocks_4bit.h). Values have bitsandbytes' bits.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define BLOCK_MOST   256 /* elements of the largest block */
#define BLOCK_FIELDS 4

/* Numbers of a GGUF file, of the types that are made here; from BLOCK_OWN on, types that GGUF files do not have. */
enum { BLOCK_Q4_0 = 2, BLOCK_Q8_0 = 8, BLOCK_Q4_K = 12, BLOCK_Q5_K = 13, BLOCK_Q6_K = 14 };
enum { BLOCK_OWN = 64, BLOCK_NF4 = BLOCK_OWN, BLOCK_FP4, BLOCK_NF4_DQ, BLOCK_FP4_DQ };

/* Bytes [at, at + bytes) of a block: a list of items of `unit` bytes, which kernels want whole. */
struct block_field {
    short at, bytes, unit;
};

/* Floating numbers of a block at byte `at`: the only parts of it that can be NaN or infinite. */
struct block_scales {
    short at, count;
    bool wide; /* fp32 instead of fp16 */
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
    struct block_scales scales;
    const float
        *table; /* of 16 numbers, for types whose codes are places in one; NULL: codes are whole numbers */
};

/* Are there kernels that multiply it as it is? */
static inline bool block_type_multiplies(const struct block_type *type)
{
    return type && type->field[0].bytes > 0;
}

/* The first of n blocks with a scale that is NaN or infinite; -1: none. */
int64_t block_find_bad_scale(const struct block_type *type, const unsigned char *blocks, int64_t n);

/* The type with that number; NULL: no such type. */
const struct block_type *block_type_of(uint32_t number);

/* The number of the type with that name; -1: no such type. */
int block_type_number(const char *name);
