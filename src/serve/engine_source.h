/* engine_source.h - what the two files of encoder-decoders behind the engine share: engine_source_plan.c plans, opens and moves the
 * line, engine_source.c runs steps. See engine_part.h.
 *
 * Every running request has a row of its own in the caches of source and answer; with beams, `beams` rows one after the other.
 * Passes are members of a forward family over one arena: one token of each row of so many requests, and the source of one
 * request, up to so many tokens. The second writes keys and values of all layers where its row lies, as places of one long row.
 *
 * Invariants
 *  1. Row r of the caches belongs to row[r].request; nobody else's tokens are written there while it is there. Rows
 *     without a request compute what nobody reads.
 *  2. Position p of row r holds token p of the answer's beginning for p below `fed`; the token that is fed next is the one
 *     before it, or the model's start. A row that has fed all it has made draws the next token; one that lost its
 *     caches reads its source and feeds its answer again first.
 *  3. The beams of a request have the same source. When a search changes the places of its rows, the caches of answers follow
 *     before the next token is fed. A search that lost its caches begins again: nothing of it was told.
 *  4. A step that fails has changed nothing that the next one does not do again.
 */
#ifndef PLIM_SERVE_ENGINE_SOURCE_H
#define PLIM_SERVE_ENGINE_SOURCE_H

#include "serve/beam.h"
#include "serve/engine_part.h"

enum { SOURCE_PASSES = 24 }; /* of tokens and of sources each, at most */

struct sources {
    struct runtime runtime; /* its plan is the pass over a token of every row */
    struct forward tokens[SOURCE_PASSES], reads[SOURCE_PASSES];
    int64_t token_rows[SOURCE_PASSES], read_length[SOURCE_PASSES]; /* the smallest first */
    int token_count, read_count;
    int64_t rows, beams;    /* requests in the caches, and rows of each */
    int64_t length, answer; /* tokens of the longest source and answer */
    struct source_row {
        struct request *request;    /* NULL: free */
        bool read;                  /* its source is in the cache */
        int64_t fed;                /* positions of its answer in the cache */
        struct beam_search *search; /* NULL: its tokens are sampled */
    } * row;                        /* [plan.parallel], of which `rows` are in use */
    int32_t *input;                 /* [max(rows * beams, length)] */
    /* With beams: logits of one request, and its rows of one layer's keys or values. */
    float *logits;
    char *cache;
};

/* The row belongs to this request, or to nobody (NULL), and its caches hold nothing. */
void source_row_set(struct source_row *row, struct request *request);

enum plim_status source_open(struct engine *e, struct plim_error *err);
void source_close(struct engine *e);
/* Uses as many rows as the latest budget allows. Requests that lose their row read their source again, or wait. */
enum plim_status source_move(struct engine *e, struct plim_error *err);

#endif
