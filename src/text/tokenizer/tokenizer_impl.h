/* tokenizer_impl.h - the parts of a loaded tokenizer; for tokenizer.c and encoder.c. */
#pragma once

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/part.h"
#include "text/tokenizer/pretokenizer.h"

struct tokenizer {
    struct token_vocab *vocab;
    struct added_tokens *added;
    struct normalizer *normalizer;
    struct pretokenizer *pretokenizer;
    struct token_model *model;
    struct postproc *postproc;
    struct token_decoder *decoder;
    size_t part_bytes; /* memory of parts that do not report it, estimated from their nodes */
    bool byte_level;   /* pieces reach the model as raw bytes */
};
