/* ladder_explain.h - explains why no rung had enough memory: what was needed, who holds what, and which options would
 * help.
 *
 *     struct explanation why;
 *     if (ladder_explain(&ladder, &err, steps, &why)) explanation_text(&why, &out);      // watch/explain.h
 *
 * Memory figures are those read when the last rung failed. Each remedy is an option of plimsoll serve with which a
 * plan was found.
 */
#pragma once

#include "serve/ladder.h"
#include "watch/explain.h"

/* Call it after ladder_open or ladder_down failed with `err`, before ladder_close. Returns false if the error is not
 * about memory, or no device was opened. */
bool ladder_explain(const struct ladder *l, const struct plim_error *err, int64_t steps,
                    struct explanation *out);
