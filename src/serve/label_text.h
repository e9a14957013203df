/* label_text.h - turns a text, or two, into rows of tokens for a model with labels, and traces each token to the text.
 *
 *     struct label_text t = {0};
 *     struct label_form form = {.time = 512, .spans = true};
 *     label_text_read(&t, encoder, tokenizer, &form, &(struct label_input){.text = text, .len = len}, &err);
 *     ... t.rows[0..t.row_count), t.spans, t.text
 *     label_text_release(&t);
 *
 * Longer texts are refused, truncated, or read in windows that overlap by form.stride tokens. Truncation and windows follow
 * the reference library (truncation="longest_first", return_overflowing_tokens).
 */
#pragma once

#include "base/strbuf.h"
#include "text/tokenizer.h"

struct label_form {
    int64_t time;   /* maximum tokens per row, including special tokens */
    int64_t most;   /* maximum tokens per text, several times `time`; 0: no limit */
    int64_t stride; /* tokens that two windows share; below 0: no windows */
    bool truncate;  /* truncate long texts at their end */
    bool spans;     /* tokens have labels: keep text and spans, refuse two texts */
};

struct label_input {
    const char *text, *pair; /* NULL or empty pair: one text, as in the reference library */
    size_t len, pair_len;
};

/* A row is ids[first_id..first_id+count). After `skip` special tokens, `tokens` of them are tokens [from,
 * from+tokens) of the text. */
struct label_row {
    size_t first_id, count, skip, tokens, from;
    int64_t second; /* start of the second segment; 0: none */
};

struct label_text {
    struct strbuf text;
    struct token_list body; /* tokens of the text, or of both, without special tokens */
    struct span_list spans; /* of body */
    struct token_list ids;  /* of all rows */
    struct label_row *rows;
    size_t row_count, row_cap;
    bool cut;        /* it was truncated */
    size_t too_long; /* if refused for its length: at least this many tokens */
};

/* Replaces the previous text. PLIM_BAD_INPUT: too long, not UTF-8, or no tokens at all. */
enum plim_status label_text_read(struct label_text *t, struct encoder *encoder, const struct tokenizer *tok,
                                 const struct label_form *form, const struct label_input *in,
                                 struct plim_error *err);
void label_text_release(struct label_text *t);
