/* beside.c - see beside.h. */
#include "report/beside.h"
#include "base/table.h"
#include "report/snapshot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool is_same(const struct beside_row *a, const struct beside_row *b)
{
    return !strcmp(a->kind, b->kind) && !strcmp(a->lane, b->lane) &&
           (!a->shapes || !strcmp(a->shapes, b->shapes));
}

static void add_to(struct beside_row *row, const struct beside_row *op)
{
    row->ops += op->ops, row->planned += op->planned, row->measured += op->measured;
}

static bool add(struct beside *b, struct beside_row op)
{
    for (int i = 0; i < LANES; i++)
        if (!strcmp(op.lane, snapshot_lane_name((enum lane)i)))
            b->lane[i].lane = op.lane, add_to(&b->lane[i], &op);
    for (int i = 0; i < b->count; i++)
        if (is_same(&b->rows[i], &op)) return add_to(&b->rows[i], &op), true;
    if (b->count == b->room) {
        b->room = b->room ? 2 * b->room : 64;
        struct beside_row *rows = realloc(b->rows, (size_t)b->room * sizeof *rows);
        if (!rows) return false;
        b->rows = rows;
    }
    b->rows[b->count++] = op;
    return true;
}

static bool add_snapshot(struct beside *b, const struct node *root, bool shapes)
{
    const struct node *ops = node_get(root, "ops"), *run = node_get(root, "run");
    bool good = true;
    b->step = node_int(node_get(run, "step"), 0);
    b->planned = node_float(node_get(root, "step_us"), 0);
    b->measured = node_float(node_get(node_get(run, "measured"), "step_us"), 0);
    for (size_t i = 0; i < node_count(ops) && good; i++) {
        const struct node *op = node_item(ops, i), *measured = node_get(op, "measured_us");
        if (!measured) continue;
        good = add(b, (struct beside_row){node_string(node_get(op, "kind"), ""),
                                          node_string(node_get(op, "lane"), ""),
                                          shapes ? node_string(node_get(op, "shapes"), "") : NULL, 1,
                                          node_float(node_get(op, "us"), 0), node_float(measured, 0)});
    }
    return good;
}

/* Measured ops of a trace have what was planned beside them. */
static bool add_trace(struct beside *b, const struct node *root, bool shapes)
{
    const struct node *events = node_get(root, "traceEvents"), *other = node_get(root, "otherData");
    bool good = true;
    b->step = node_int(node_get(other, "step"), 0);
    b->planned = node_float(node_get(other, "step_us"), 0);
    b->measured = node_float(node_get(other, "measured_step_us"), 0);
    for (size_t i = 0; i < node_count(events) && good; i++) {
        const struct node *e = node_item(events, i), *args = node_get(e, "args");
        const struct node *planned = node_get(args, "planned_us");
        if (!planned) continue;
        good = add(b, (struct beside_row){node_string(node_get(e, "cat"), ""),
                                          node_string(node_get(args, "lane"), ""),
                                          shapes ? node_string(node_get(args, "shapes"), "") : NULL, 1,
                                          node_float(planned, 0), node_float(node_get(e, "dur"), 0)});
    }
    return good;
}

static int by_difference(const void *a, const void *b)
{
    const struct beside_row *x = a, *y = b;
    double dx = fabs(x->measured - x->planned), dy = fabs(y->measured - y->planned);
    return dx != dy ? (dx < dy) - (dx > dy) : strcmp(x->kind, y->kind);
}

enum plim_status beside_read(struct beside *b, const struct node *root, bool shapes, struct plim_error *err)
{
    const struct node *other = node_get(root, "otherData");
    bool trace = node_get(root, "traceEvents") != NULL;
    *b = (struct beside){.accumulation = node_int(node_get(trace ? other : root, "accumulation"), 1)};
    if (!(trace ? add_trace : add_snapshot)(b, root, shapes)) {
        beside_release(b);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the rows of a trace");
    }
    if (!b->count || b->measured <= 0) {
        beside_release(b);
        return plim_fail(err, PLIM_BAD_INPUT,
                         "no measured ops; give a file of train --trace, or a snapshot of a run");
    }
    qsort(b->rows, (size_t)b->count, sizeof *b->rows, by_difference);
    return PLIM_OK;
}

void beside_release(struct beside *b)
{
    free(b->rows);
    *b = (struct beside){0};
}

/* --- text ----------------------------------------------------------------------------------------------------------- */

static void put_times(struct table *t, const struct beside_row *r)
{
    table_cell(t, "%d", r->ops);
    table_cell(t, "%.3f", 1e-3 * r->planned);
    table_cell(t, "%.3f", 1e-3 * r->measured);
    if (r->measured > 0)
        table_cell(t, "%.2f", r->planned / r->measured);
    else
        table_cell(t, "-");
    table_cell(t, "%+.3f", 1e-3 * (r->planned - r->measured));
}

void beside_text(const struct beside *b, bool colour, struct strbuf *out)
{
    struct table t;
    bool shapes = b->rows[0].shapes != NULL;
    const struct table_style style = {.colour = colour};
    strbuf_addf(out, "step %lld: %.3f ms measured, %.3f ms predicted, ratio %.3f\n", (long long)b->step,
                1e-3 * b->measured, 1e-3 * b->planned, b->planned / b->measured);
    strbuf_addf(out,
                b->accumulation > 1 ? "below: the first of %lld micro-batches and the update; ms\n\n"
                                    : "below: ops by difference; ms\n\n",
                (long long)b->accumulation);
    table_init(&t, "lrrrrr");
    table_header(&t, "lane", "ops", "predicted", "measured", "ratio", "difference");
    for (int i = 0; i < LANES; i++) {
        if (!b->lane[i].lane) continue;
        table_cell(&t, "%s", b->lane[i].lane);
        put_times(&t, &b->lane[i]);
    }
    table_render(&t, out, &style);
    table_release(&t);
    strbuf_addc(out, '\n');
    table_init(&t, shapes ? "llrrrrrl" : "llrrrrr");
    if (shapes)
        table_header(&t, "op", "lane", "ops", "predicted", "measured", "ratio", "difference", "shapes");
    else
        table_header(&t, "op", "lane", "ops", "predicted", "measured", "ratio", "difference");
    for (int i = 0; i < b->count; i++) {
        table_cell(&t, "%s", b->rows[i].kind);
        table_cell(&t, "%s", b->rows[i].lane);
        put_times(&t, &b->rows[i]);
        if (shapes) table_cell(&t, "%s", b->rows[i].shapes);
    }
    table_render(&t, out, &style);
    table_release(&t);
}

/* --- JSON ----------------------------------------------------------------------------------------------------------- */

static void put_row(const struct beside_row *r, struct json_writer *w)
{
    json_begin_object(w, NULL);
    if (r->kind) json_str(w, "kind", r->kind);
    json_str(w, "lane", r->lane);
    if (r->shapes) json_str(w, "shapes", r->shapes);
    json_int(w, "ops", r->ops);
    json_double(w, "predicted_us", r->planned);
    json_double(w, "measured_us", r->measured);
    json_end_object(w);
}

void beside_json(const struct beside *b, struct strbuf *out)
{
    struct json_writer w = json_object(out, 1);
    json_int(&w, "step", b->step);
    json_int(&w, "accumulation", b->accumulation);
    json_double(&w, "predicted_us", b->planned);
    json_double(&w, "measured_us", b->measured);
    json_begin_array(&w, "lanes");
    for (int i = 0; i < LANES; i++)
        if (b->lane[i].lane) put_row(&b->lane[i], &w);
    json_end_array(&w);
    json_begin_array(&w, "ops");
    for (int i = 0; i < b->count; i++) put_row(&b->rows[i], &w);
    json_end_array(&w);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}
