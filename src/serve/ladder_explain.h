/* ladder_explain.h - why no rung had the memory: what was wanted, who holds what, and which options would help.
 *
 *     struct explanation why;
 *     if (ladder_explain(&ladder, &err, steps, &why)) explanation_text(&why, &out);      // watch/explain.h
 *
 * Memory is what was read when the last rung failed. Each remedy is an option of plimsoll serve with which a plan was found.
 */
#ifndef PLIM_SERVE_LADDER_EXPLAIN_H
#define PLIM_SERVE_LADDER_EXPLAIN_H

#include "serve/ladder.h"
#include "watch/explain.h"

/* After ladder_open or ladder_down has failed with `err`, before ladder_close. False: the error is not one of memory, or no
 * device was opened. */
bool ladder_explain(const struct ladder *l, const struct plim_error *err, int64_t steps,
                    struct explanation *out);

#endif
