/* engine_source.h - shared by the two files of encoder-decoders: engine_source_plan.c plans, opens and changes the budget,
 * engine_source.c runs steps. See engine_part.h.
 *
 * Every running request has its own row in the caches of source and answer; with beams, `beams` consecutive rows. Passes
 * are members of a forward family over one arena: one token of each row for a number of requests, and the source of one
 * request up to a number of tokens. The second kind writes the keys and values of all layers to the request's row.
 *
 * Invariants
 *  1. Row r of the caches belongs to row[r].request; no other request's tokens are written there. Rows without a request
 *     compute unused values.
 *  2. Position p of row r holds token p of the answer for p below `fed`; the token fed next is the one before it, or the
 *     model's start token. A row that has been fed its whole answer draws the next token. A row that lost its caches first
 *     reads its source and is fed its answer again.
 *  3. The beams of a request have the same source. When a search reorders its rows, the caches of the answers follow before
 *     the next token is fed. A search that lost its caches starts over: nothing of it was reported.
 *  4. A failed step changes nothing that the next one does not redo.
 */
#pragma once

#include "serve/beam.h"
#include "serve/engine_part.h"

enum { SOURCE_PASSES = 24 }; /* maximum, for tokens and for sources each */

struct sources {
    struct runtime runtime; /* its plan is the pass over one token of every row */
    struct forward tokens[SOURCE_PASSES], reads[SOURCE_PASSES];
    int64_t token_rows[SOURCE_PASSES], read_length[SOURCE_PASSES]; /* ascending */
    int token_count, read_count;
    int64_t rows, beams;    /* requests in the caches, and rows per request */
    int64_t length, answer; /* tokens of the longest source and answer */
    struct source_row {
        struct request *request;    /* NULL: free */
        bool read;                  /* its source is in the cache */
        int64_t fed;                /* positions of its answer in the cache */
        struct beam_search *search; /* NULL: its tokens are sampled */
    } * row;                        /* [plan.parallel]; the first `rows` are in use */
    int32_t *input;                 /* [max(rows * beams, length)] */
    /* With beams: logits of one request, and its rows of one layer's keys or values. */
    float *logits;
    char *cache;
};

/* Assigns the row to a request, or to none (NULL), and marks its caches empty. */
void source_row_set(struct source_row *row, struct request *request);

enum plim_status source_open(struct engine *e, struct plim_error *err);
void source_close(struct engine *e);
/* Uses as many rows as the latest budget allows. Requests that lose their row read their source again, or wait. */
enum plim_status source_move(struct engine *e, struct plim_error *err);
