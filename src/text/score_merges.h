/* score_merges.h - derives BPE merges from pieces with scores, as SentencePiece and GGUF files have them.
 *
 *     json_begin_array(&w, "merges");
 *     if (!score_merges_write(&w, pieces, count, true)) ...        // out of memory
 *     json_end_array(&w);
 *
 * Every way to split a piece into two others is a merge; the best score comes first.
 */
#pragma once

#include "base/json.h"

struct scored_piece {
    const char *text;
    size_t len;
    double score;
    bool whole; /* may be the result of a merge */
    bool part;  /* may be a part of a merge */
};

/* With `ranked`, writes [left, right, rank], where equal scores have equal ranks, so the leftmost joins first
 * as in SentencePiece. Otherwise writes [left, right] in the order of transformers: among equal scores the
 * longest left part first, then the longest right part, then the order of pieces. */
bool score_merges_write(struct json_writer *w, const struct scored_piece *pieces, size_t count, bool ranked);
