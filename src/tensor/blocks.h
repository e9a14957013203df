/* blocks.h - weights in blocks of few bits each, as GGUF files hold them, and back to f32.
 *
 *     const struct block_type *q = block_type_of(12);                 // Q4_K, by the number a GGUF file has
 *     int64_t bytes = count / q->elements * q->bytes;                 // rows are whole blocks
 *     q->read(bytes_of_blocks, values, blocks);
 *
 * A block has one scale of 16 bits, blocks of 256 also scales of parts of it, and one small number for each element. How a
 * value is made of them is said beside each reader in blocks.c. Elements that are not quantised are blocks of one.
 */
#ifndef PLIM_TENSOR_BLOCKS_H
#define PLIM_TENSOR_BLOCKS_H

#include <stdint.h>

#define BLOCK_MOST 256 /* elements of the largest block */

struct block_type {
    const char *name; /* "Q4_K" */
    int elements;     /* of a block */
    int bytes;        /* of a block */
    void (*read)(const unsigned char *blocks, float *out,
                 int64_t n); /* n blocks; NULL: known, not readable */
};

/* The type with that number; NULL: no such type. */
const struct block_type *block_type_of(uint32_t number);

#endif
