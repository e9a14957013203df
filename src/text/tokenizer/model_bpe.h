/* model_bpe.h - shared by the two halves of the BPE model: model_bpe_read.c builds it, model_bpe.c runs
 * it. */
#pragma once

#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe_merges.h"
#include "text/tokenizer/part.h"

enum { BPE_POINTS = 0x10000 };

struct model_bpe {
    struct token_model base;
    struct bpe_merges *merges;
    struct strbuf prefix, suffix; /* continuing_subword_prefix, end_of_word_suffix */
    int32_t unk;                  /* -1: unknown characters are dropped */
    bool fuse_unk, byte_fallback, ignore_merges, byte_level;
    /* Nothing joins across "x▁", so words are encoded one by one; and they are cut between two ASCII characters that
     * nothing joins: bit [left][right]. */
    bool cut_words;
    uint64_t cut[128][2];
    /* SentencePiece's user-defined symbols, which are never joined; NULL: none */
    struct added_tokens *symbols;
    int32_t byte_id[256]; /* byte-level: symbol of a raw byte; else the token <0xNN>; -1: none */
    int32_t *point_id;    /* symbols of U+0000 to U+FFFF, -1: none; unused if byte-level or with affixes */
};

extern const struct token_model_ops model_bpe_ops;
