/* share.h - tables for tapes that compute once what the two rows of a sample begin with (tape/pass_share.c).
 *
 *     share_fill(&rows, packed, pack, wide);
 */
#pragma once

#include "data/rows.h"
#include <stdbool.h>

/* Rows i and count / 2 + i are a sample's. pack [count / 2 * packed, 2]: the one or two tokens of the rows that each packed token is,
 * the first copy first; wide [count * time, 2]: of each token its packed one, in column 0 if it is the first copy, else in column 1.
 * -1: none. Tokens behind the last target of a row are left out. False: the tokens do not fit. */
bool share_fill(const struct rows *rows, int64_t packed, int32_t *pack, int32_t *wide);
