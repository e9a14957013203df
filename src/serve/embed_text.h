/* embed_text.h - texts as rows of tokens, with the marks an encoder's tokenizer puts around them.
 *
 *     struct text_rows *rows;
 *     text_rows_open(&codec, 256, 1024, &rows, &err);         // up to 1024 rows of up to 256 tokens
 *     while (!text_rows_full(rows)) text_rows_add(rows, text, len, &err);
 *     embedder_run(e, text_rows(rows), text_rows_count(rows), vectors, &err);
 *     text_rows_clear(rows);
 *
 * A text with too many tokens is truncated at its end, as in the reference library; the marks stay.
 */
#pragma once

#include "serve/embed.h"
#include "text/codec.h"

struct text_rows;

/* PLIM_BAD_INPUT when the marks alone are longer than a row. */
enum plim_status text_rows_open(const struct codec *codec, int64_t max_length, int64_t most,
                                struct text_rows **out, struct plim_error *err);
void text_rows_close(struct text_rows *rows);

enum plim_status text_rows_add(struct text_rows *rows, const char *text, size_t len, struct plim_error *err);
bool text_rows_full(const struct text_rows *rows);
void text_rows_clear(struct text_rows *rows);

const struct embed_row *text_rows(const struct text_rows *rows);
int64_t text_rows_count(const struct text_rows *rows);
int64_t text_rows_cut(const struct text_rows *rows); /* texts that were truncated, in total */

/* Maximum memory of such rows. */
int64_t text_rows_bytes(const struct codec *codec, int64_t max_length, int64_t most);
