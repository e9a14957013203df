/* beside.h - measured beside predicted times of a step, by kind of op and by lane, from a trace or a snapshot of a run.
 *
 *     struct beside b;
 *     beside_read(&b, &doc->root, false, &err);      // true: a row for each shape of operands
 *     beside_text(&b, &out, colour);                 // or beside_json
 *     beside_release(&b);
 *
 * Rows are sorted by the absolute difference. They cover one micro-batch and the update. Names are borrowed from the document.
 */
#pragma once

#include "base/json.h"
#include "plan/cost.h"

struct beside_row {
    const char *kind, *lane, *shapes; /* shapes: NULL unless asked for */
    int ops;
    double planned, measured; /* microseconds */
};

struct beside {
    struct beside_row *rows;
    int count, room;
    struct beside_row lane[LANES]; /* lane NULL: it has no op */
    int64_t step, accumulation;
    double planned, measured; /* of the step, microseconds */
};

/* PLIM_BAD_INPUT: not a trace or a snapshot of a run, or made by a version without these fields; PLIM_NO_MEMORY. */
enum plim_status beside_read(struct beside *b, const struct node *root, bool shapes, struct plim_error *err);
void beside_release(struct beside *b);

void beside_text(const struct beside *b, bool colour, struct strbuf *out);
void beside_json(const struct beside *b, struct strbuf *out);
