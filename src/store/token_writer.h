/* token_writer.h - writes a token file (token_file.h) piece by piece, so that a stopped writer can go on.
 *
 *     struct token_writer *w;
 *     token_writer_open("corpus.tok", &format, NULL, &w, &err);     // NULL: anew
 *     token_writer_put(w, tokens, n, &err);                         // of the present sample
 *     token_writer_end_sample(w, &err);
 *     token_writer_sync(w, &mark, &err);                            // up to here all is on disk
 *     token_writer_finish(w, &err);                                 // the file gets its name
 *
 * Until then there are corpus.tok.part (tokens), .part.index and .part.mask. Opening with a mark cuts them back to
 * it, without one to nothing; while one writer has them open, another is refused (PLIM_BAD_INPUT). The finished file depends on the tokens alone, not on how often writing was stopped.
 */
#pragma once

#include "store/token_file.h"

struct token_writer_format {
    bool mask, lines;
    int64_t vocab_size;
    uint64_t fingerprint;
    int64_t eos;
};

struct token_writer_mark {
    uint64_t tokens, samples, longest;
    uint64_t sample_start; /* token where the unfinished sample begins */
};

struct token_writer;

enum plim_status token_writer_open(const char *path, const struct token_writer_format *format,
                                   const struct token_writer_mark *mark, struct token_writer **out,
                                   struct plim_error *err);
enum plim_status token_writer_put(struct token_writer *w, const int32_t *tokens, size_t n,
                                  struct plim_error *err);
/* A sample without tokens leaves no trace. */
enum plim_status token_writer_end_sample(struct token_writer *w, struct plim_error *err);
enum plim_status token_writer_sync(struct token_writer *w, struct token_writer_mark *mark,
                                   struct plim_error *err);
/* Releases the writer whatever it returns; on failure the parts stay. */
enum plim_status token_writer_finish(struct token_writer *w, struct plim_error *err);
void token_writer_close(struct token_writer *w); /* the parts stay */
/* Has an earlier writer left parts of that path? */
bool token_writer_has_parts(const char *path);
