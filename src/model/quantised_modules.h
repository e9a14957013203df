/* quantised_modules.h - which tensors of a quantised folder make up which weight. Internal to quantised_folder.h.
 *
 * A module is one weight: its codes, their scales, and what else its layout has. quant_modules_find checks the shapes of all
 * of them before anything is read.
 */
#pragma once

#include "model/quantised_config.h"
#include "store/safetensors.h"

enum quant_layout {
    QUANT_PAIRS,     /* bitsandbytes: two codes in a byte, in blocks of the flattened weight */
    QUANT_SCALED,    /* a number of 8 bits for each element, and a grid of scales */
    QUANT_BY_COLUMN, /* awq: [in, out / 8], codes of 8 lines in a word */
    QUANT_BY_STREAM, /* gptq: [in bits / 32, out], a stream of bits for each line */
    QUANT_PACKED,    /* compressed-tensors: a stream of bits for each line, line after line */
    QUANT_FP4,       /* numbers of 4 bits, the first of two in the low half */
};

struct quant_module {
    struct safetensor
        weight; /* as a folder that is not quantised has it, or with a block type (tensor/blocks.h) */
    enum quant_layout layout;
    const struct safetensor *codes, *scales;
    const struct safetensor *zeros, *order, *global, *nested, *map; /* NULL: none */
    int64_t rows, columns;           /* of the weight; several experts' rows follow each other */
    int64_t rows_each, columns_each; /* that share a scale */
    int64_t groups;                  /* scales of a row */
    int bits;
    bool zeros_less_one, signed_codes;
    float factor;    /* of every number; 0: none */
    float table[16]; /* QUANT_PAIRS */
    float offset;    /* of magnitudes with double quantisation (nested) */
    int64_t nested_each;
    uint64_t stored; /* bytes in the files */
};

struct quant_modules {
    struct quant_module *list;
    size_t count;
    bool *hidden; /* by tensor of the set: part of a module, or only for activations */
    struct bump store;
};

/* The dtype is that of the model's config.json; DT_COUNT: unknown. PLIM_BAD_INPUT names a tensor that is missing or has a wrong
 * shape. On failure nothing needs releasing. */
enum plim_status quant_modules_find(const struct safetensors *set, const struct quant_config *config,
                                    enum dtype dtype, struct quant_modules *out, struct plim_error *err);
void quant_modules_release(struct quant_modules *m);
