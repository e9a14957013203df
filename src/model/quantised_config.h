/* quantised_config.h - the quantization_config of a config.json: how a folder's weights are quantised.
 *
 *     struct quant_config q;
 *     if (quant_config_read(node_get(root, "quantization_config"), "config.json", &q, &err) != PLIM_OK) ...
 *
 * Only values that decide how numbers are made of a file's bytes are kept. Which modules are quantised follows from their
 * tensors (quantised_modules.h), not from the lists of modules here.
 */
#pragma once

#include "base/node.h"
#include "base/status.h"
#include <stdint.h>

enum quant_method {
    QUANT_BITSANDBYTES,
    QUANT_AWQ,
    QUANT_GPTQ,
    QUANT_FP8,
    QUANT_COMPRESSED,
    QUANT_MXFP4,
    QUANT_METHODS
};

struct quant_config {
    enum quant_method method;
    int bits;            /* awq, gptq */
    int64_t group_size;  /* awq, gptq, compressed-tensors with one scheme; -1: one group, or unknown */
    bool zeros_less_one; /* gptq: files hold each zero less one */
    int64_t block[2];    /* fp8: rows and columns that share a scale; 0: not given */
};

/* "awq" */
const char *quant_method_name(enum quant_method method);

/* PLIM_UNSUPPORTED names a method, format or number of bits that is not read; `file` begins the message. */
enum plim_status quant_config_read(const struct node *config, const char *file, struct quant_config *out,
                                   struct plim_error *err);
