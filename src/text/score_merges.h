/* score_merges.h - the merges of a BPE model that has pieces with scores instead, as SentencePiece's files and GGUF have.
 *
 *     json_begin_array(&w, "merges");
 *     if (!score_merges_write(&w, pieces, count, true)) ...        // out of memory
 *     json_end_array(&w);
 *
 * Every way in which a piece is two others is a merge, the best score first.
 */
#ifndef PLIM_TEXT_SCORE_MERGES_H
#define PLIM_TEXT_SCORE_MERGES_H

#include "base/json.h"

struct scored_piece {
    const char *text;
    size_t len;
    double score;
    bool whole; /* may be made of two others */
    bool part;  /* may be one of the two */
};

/* `ranked`: [left, right, rank] with one rank for every score, as SentencePiece joins (of equal scores the leftmost). Else
 * [left, right], of equal scores the longest left and right part first, then the order of pieces: as transformers sorts. */
bool score_merges_write(struct json_writer *w, const struct scored_piece *pieces, size_t count, bool ranked);

#endif
