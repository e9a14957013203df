/* run-tests: not=tsan */
/* test_clock_records.c - the planner's clock against steps that were measured: tests/golden/clock has records of bench/clock.py, each with
 * the facts of its machine and the time of every shape of op. For those facts the clock must predict every cell of a record within a
 * tenth: the step, its lanes, and kinds of ops that take a twentieth of their lane or more. Cells that it misses are in `exceptions`,
 * with their ratio, and may neither become worse nor stay there when they are right. CLOCK_TABLE=1 prints all of them. */
#include "base/json.h"
#include "plan/cost.h"
#include "report/facts_table.h"
#include "report/snapshot.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define WITHIN 0.10 /* of the measured time */
#define SHARE  0.05 /* of a lane, below which a kind of op has no cell */

/* predicted / measured */
static const struct exception {
    const char *record, *cell;
    double ratio;
} exceptions[] = {
    /* Rates of this machine were measured with rows of 256 tokens, where blocks of scores are less full. The probe has 512 since. */
    {"cpu-long", "attn", 1.19},
    {"cpu-long", "attn_bwd", 1.15},
};
enum { EXCEPTIONS = sizeof exceptions / sizeof *exceptions, CELLS = 64, RECORDS_LEAST = 5 };

struct cell {
    char name[64];
    enum lane lane;
    bool whole; /* a lane or the step */
    double predicted, measured;
};

struct record {
    struct doc *doc;
    const char *name;
    struct device_facts facts;
    struct cell cells[CELLS];
    int count;
    bool excused[EXCEPTIONS];
};

/* --- ops of a record ------------------------------------------------------------------------------------------------ */

static int find_kind(const char *name)
{
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (!strcmp(op_name(k), name)) return k;
    fail_msg("no op '%s'", name);
    return -1;
}

static enum lane find_lane(const char *name)
{
    for (int i = 0; i < LANES; i++)
        if (!strcmp(snapshot_lane_name((enum lane)i), name)) return (enum lane)i;
    fail_msg("no lane '%s'", name);
    return LANES;
}

/* "bf16[16,128]@host" as a tensor. */
static int read_tensor(struct tape *tape, const char *word)
{
    struct tensor t = {
        .label = "x", .type = DT_COUNT, .cls = CLASS_ACT, .layer = -1, .view_of = -1, .owner = -1};
    size_t n = strcspn(word, "[");
    for (int i = 0; i < DT_COUNT; i++)
        if (strlen(dtype_name((enum dtype)i)) == n && !strncmp(dtype_name((enum dtype)i), word, n))
            t.type = (enum dtype)i;
    assert_true(t.type < DT_COUNT && word[n] == '[');
    char *at = (char *)(uintptr_t)word + n;
    while (*at != ']') t.dim[t.ndim++] = strtoll(at + 1, &at, 10);
    for (int i = 0; at[1] == '@' && i < TIER_COUNT; i++)
        if (!strcmp(tier_name((enum tier)i), at + 2)) t.tier = (enum tier)i;
    return tape_tensor(tape, &t);
}

static bool read_attr(struct op_attr *attr, const char *word)
{
    size_t n = strcspn(word, "=");
    for (const struct tape_shape_attr *a = tape_shape_attrs; a->name; a++)
        if (strlen(a->name) == n && !strncmp(a->name, word, n))
            return a->set(attr, atoll(word + n + 1)), true;
    return false;
}

/* The line of tape_print_shapes as an op. */
static struct op read_op(struct tape *tape, int kind, const char *shapes)
{
    struct op op = tape_op(kind, -1);
    char line[2048], *rest = NULL;
    int slot = 0;
    bool out = false;
    snprintf(line, sizeof line, "%s", shapes);
    for (char *word = strtok_r(line, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        if (!strcmp(word, ">")) {
            out = true, slot = 0;
        } else if (strchr(word, '=')) {
            assert_true(read_attr(&op.attr, word));
        } else {
            assert_true(slot < (out ? OP_MAX_OUT : OP_MAX_IN));
            int id = strcmp(word, "-") ? read_tensor(tape, word) : -1;
            (out ? op.out : op.in)[slot++] = id;
        }
    }
    return op;
}

/* Predicted seconds of an op that runs `times` times in a row, without what it would wait for. */
static double predict(const struct record *r, const struct node *op)
{
    int times = (int)node_int(node_get(op, "ops"), 0);
    double sum = 0;
    struct tape tape;
    struct tape_time time;
    tape_init(&tape);
    struct op one = read_op(&tape, find_kind(node_string(node_get(op, "kind"), "")),
                            node_string(node_get(op, "shapes"), ""));
    for (int i = 0; i < times; i++) tape_append(&tape, &one);
    tape.loop_end = tape.nops;
    struct op_span *spans = calloc((size_t)times + 1, sizeof *spans);
    assert_non_null(spans);
    assert_int_equal(tape_spans_of(&tape, &r->facts, true, spans, &time, NULL), PLIM_OK);
    for (int i = 0; i < times; i++) sum += spans[i].seconds;
    free(spans);
    tape_release(&tape);
    return sum;
}

/* --- cells ---------------------------------------------------------------------------------------------------------- */

static struct cell *cell_of(struct record *r, const char *name, enum lane lane, bool whole)
{
    for (int i = 0; i < r->count; i++)
        if (!strcmp(r->cells[i].name, name) && r->cells[i].lane == lane) return &r->cells[i];
    assert_true(r->count < CELLS);
    struct cell *c = &r->cells[r->count++];
    *c = (struct cell){.lane = lane, .whole = whole};
    snprintf(c->name, sizeof c->name, "%s", name);
    return c;
}

static void add(struct cell *c, double predicted, double measured)
{
    c->predicted += predicted, c->measured += measured;
}

/* A step of one lane is the sum of its ops, if it has one micro-batch. */
static void read_record(struct record *r, const char *path)
{
    struct plim_error err;
    if (json_load(path, &r->doc, &err) != PLIM_OK) fail_msg("%s", err.text);
    const struct node *root = &r->doc->root, *ops = node_get(root, "ops");
    double step = 0, beside = 0;
    r->name = node_string(node_get(root, "name"), "");
    facts_read(node_get(root, "facts"), &r->facts);
    assert_true(node_count(ops) > 10 && r->facts.bandwidth > 0);
    for (size_t i = 0; i < node_count(ops); i++) {
        const struct node *op = node_item(ops, i);
        const char *lane = node_string(node_get(op, "lane"), "");
        double predicted = predict(r, op), measured = 1e-6 * node_float(node_get(op, "us"), 0);
        add(cell_of(r, node_string(node_get(op, "kind"), ""), find_lane(lane), false), predicted, measured);
        add(cell_of(r, lane, find_lane(lane), true), predicted, measured);
        *(find_lane(lane) == LANE_COMPUTE ? &step : &beside) += predicted;
    }
    if (beside == 0 && node_int(node_get(root, "accumulation"), 0) == 1)
        add(cell_of(r, "step", LANE_COMPUTE, true), step, 1e-6 * node_float(node_get(root, "step_us"), 0));
}

static double lane_total(struct record *r, enum lane lane)
{
    return cell_of(r, snapshot_lane_name(lane), lane, true)->measured;
}

/* How much longer a copy takes while others run the other way, which a single op does not show. */
static double most_of(const struct record *r, const struct cell *c)
{
    bool copy = c->lane == LANE_COPY_IN || c->lane == LANE_COPY_OUT;
    return copy ? 1 + r->facts.duplex_cost : 1;
}

/* Returns whether the cell is as it should be. */
static bool check_cell(struct record *r, const struct cell *c)
{
    double ratio = c->predicted / c->measured, most = most_of(r, c);
    bool near = ratio <= 1 + WITHIN && ratio * most >= 1 - WITHIN, good = near;
    for (int i = 0; i < EXCEPTIONS; i++) {
        if (strcmp(exceptions[i].record, r->name) || strcmp(exceptions[i].cell, c->name)) continue;
        r->excused[i] = true;
        good = !near && fabs(ratio - exceptions[i].ratio) <= WITHIN;
        if (near) printf("%s, %s: right now, take it out of the exceptions\n", r->name, c->name);
    }
    if (!good || getenv("CLOCK_TABLE"))
        printf("%-5s %-18s %-12s predicted %9.3f ms  measured %9.3f ms  ratio %.2f\n", good ? "" : "WRONG",
               r->name, c->name, 1e3 * c->predicted, 1e3 * c->measured, ratio);
    return good;
}

static bool check_record(struct record *r)
{
    bool good = true;
    for (int i = 0; i < r->count; i++) {
        const struct cell *c = &r->cells[i];
        if (c->measured < SHARE * lane_total(r, c->lane) || c->measured <= 0) continue;
        good &= check_cell(r, c);
    }
    for (int i = 0; i < EXCEPTIONS; i++)
        if (!strcmp(exceptions[i].record, r->name) && !r->excused[i]) {
            printf("%s, %s: no such cell\n", r->name, exceptions[i].cell);
            good = false;
        }
    return good;
}

static void test_records(void **state)
{
    (void)state;
    char folder[512], path[800];
    const char *src = getenv("SRC_DIR");
    snprintf(folder, sizeof folder, "%s/tests/golden/clock", src ? src : ".");
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    int records = 0;
    bool good = true;
    for (struct dirent *d; (d = readdir(dir));) {
        if (!strstr(d->d_name, ".json")) continue;
        struct record r = {0};
        snprintf(path, sizeof path, "%s/%s", folder, d->d_name);
        read_record(&r, path);
        good &= check_record(&r);
        doc_free(r.doc);
        records++;
    }
    closedir(dir);
    assert_true(records >= RECORDS_LEAST);
    assert_true(good);
}

/* A clock that is a quarter too fast is found out. */
static void test_wrong_facts_are_seen(void **state)
{
    (void)state;
    char path[800];
    const char *src = getenv("SRC_DIR");
    struct record r = {0};
    snprintf(path, sizeof path, "%s/tests/golden/clock/cpu-demo.json", src ? src : ".");
    read_record(&r, path);
    for (int i = 0; i < r.count; i++) r.cells[i].predicted *= 0.75;
    assert_false(check_record(&r));
    doc_free(r.doc);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_records),
                                       cmocka_unit_test(test_wrong_facts_are_seen)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
