/* pretokenizer.h - splits text into pieces, which the model encodes one by one.
 *
 *     struct pretokenizer *pre;
 *     pretokenizer_build(node, "tokenizer.json", &pre, &err);
 *     struct pretok_run run;
 *     pretok_run_init(&run, &limit);                               // one per thread
 *     run.sink = (struct pretok_sink){model, scratch, &ids};
 *     pretokenizer_run(pre, &run, text, len, true);                // false: out of memory, or beyond the limit
 *     pretok_run_release(&run);
 *
 * Types: ByteLevel, Split, Digits, Metaspace, Whitespace, WhitespaceSplit, Punctuation, BertPreTokenizer,
 * CharDelimiterSplit, FixedLength, Sequence. A sequence is a list of steps; every piece of one step goes through
 * the next one at once, so that pieces stay byte ranges of the text wherever no step rewrites it.
 */
#pragma once

#include "text/tokenizer/part.h"
#include "text/regex.h"
#include "text/tokenizer/scan.h"
#include "text/tokenizer/spans.h"

enum { PRETOK_STEPS_MOST = 16 };

/* Receiver of the pieces: model->ops->encode(model, scratch, piece, len, out). */
struct pretok_sink {
    const struct token_model *model;
    void *scratch;
    struct token_list *out;
};

/* One thread's scratch. */
struct pretok_run {
    struct pretok_sink sink;
    struct scratch_limit *limit;
    struct span_walk *walk; /* NULL: spans are not wanted */
    struct {
        struct strbuf text, piece; /* the text a step wrote; one piece of it */
        struct regex_run regex;
    } step[PRETOK_STEPS_MOST];
};

struct pretokenizer;

/* A null node gives NULL: the whole text is one piece. */
enum plim_status pretokenizer_build(const struct node *spec, const char *name, struct pretokenizer **out,
                                    struct plim_error *err);
void pretokenizer_free(struct pretokenizer *p);
size_t pretokenizer_bytes(const struct pretokenizer *p);

/* If the last step is ByteLevel, it may pass raw bytes and leave the byte alphabet to the model. */
bool pretokenizer_ends_in_bytes(const struct pretokenizer *p);
void pretokenizer_pass_raw(struct pretokenizer *p);
/* True if every byte of a text reaches the model. */
bool pretokenizer_keeps_all(const struct pretokenizer *p);
/* True if some step depends on whether a piece begins the whole text. */
bool pretokenizer_asks_start(const struct pretokenizer *p);

void pretok_run_init(struct pretok_run *run, struct scratch_limit *limit);
void pretok_run_release(struct pretok_run *run);
/* Frees buffers that a very long text left behind. */
void pretok_run_trim(struct pretok_run *run, size_t keep);

/* at_start: text begins where the whole input begins. */
bool pretokenizer_run(const struct pretokenizer *p, struct pretok_run *run, const char *text, size_t len,
                      bool at_start);

/* --- for the files of the pre-tokenizer itself -------------------------------------------------------------- */

enum pretok_behavior {
    PRETOK_REMOVED,
    PRETOK_ISOLATED,
    PRETOK_MERGED_WITH_PREVIOUS,
    PRETOK_MERGED_WITH_NEXT,
    PRETOK_CONTIGUOUS,
};
enum pretok_prefix { PRETOK_ALWAYS, PRETOK_FIRST, PRETOK_NEVER };

struct pretok_text {
    const char *at;
    size_t len;
    bool first; /* begins the whole input */
};

typedef bool pretok_function(const struct pretokenizer *p, struct pretok_run *run, size_t step,
                             struct pretok_text text);

struct pretok_step {
    pretok_function *run;
    enum pretok_behavior behavior;
    bool invert;
    /* Split cuts at the first of these that is set */
    bool (*is_cut)(uint32_t point);
    token_scan *scan;
    struct regex *regex;
    char *string; /* also Metaspace's replacement */
    size_t string_len;
    size_t length;             /* FixedLength */
    enum pretok_prefix prefix; /* Metaspace, SentencePiece; ByteLevel: ALWAYS or NEVER */
    bool behind;               /* SentencePiece: the blank ends the text */
    bool split;                /* Metaspace split, ByteLevel use_regex */
    bool raw;                  /* ByteLevel: pass raw bytes to the model */
};

struct pretokenizer {
    struct pretok_step step[PRETOK_STEPS_MOST];
    size_t count;
};

/* Passes a piece to the next step, or to the model. */
static inline bool pretok_pass(const struct pretokenizer *p, struct pretok_run *run, size_t step,
                               struct pretok_text piece)
{
    if (piece.len == 0) return true;
    if (++step < p->count) return p->step[step].run(p, run, step, piece);
    const struct pretok_sink *sink = &run->sink;
    size_t before = sink->out->count;
    if (!sink->model->ops->encode(sink->model, sink->scratch, piece.at, piece.len, sink->out)) return false;
    if (run->walk)
        span_piece(run->walk, piece.at, piece.len, sink->out->id + before, sink->out->count - before);
    return true;
}

pretok_function pretok_split, pretok_tiles; /* pretokenizer_split.c */
/* pretokenizer_steps.c */
pretok_function pretok_byte_level, pretok_metaspace, pretok_dummy_prefix, pretok_words, pretok_fixed;
