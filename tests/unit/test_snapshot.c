/* run-tests: not=tsan */
/* test_snapshot.c - a plan's blocks, its ops on the clock, and the three forms that they are written in. */
#include "support/job_rig.h"
#include "base/pickle.h"
#include "plan/plan.h"
#include "report/snapshot.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define OVERHEAD (8 << 20)

static struct plim_error err;

/* A plan of these knobs on a device's preset, and its snapshot. */
struct rig {
    struct job job;
    struct preset preset;
    struct plan_request request;
    struct plan plan;
    struct snapshot snapshot;
};

static void rig_open(struct rig *r, const char *device, int64_t micro, bool offload)
{
    rig_job(&r->job, rig_small);
    assert_int_equal(preset_find(device, &r->preset, &err), PLIM_OK);
    job_request(&r->job, &r->preset.facts, OVERHEAD, &r->request);
    enum tier lower = r->preset.facts.lower_tier;
    struct knobs k = {.micro_batch = micro ? micro : r->request.rows, .loss_chunks = 4};
    k.accumulation = r->request.rows / k.micro_batch;
    if (offload) k.state_tier = lower, k.state_share = OFFLOAD_SHARES;
    if (plan_make(&r->request, &k, &r->plan, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (snapshot_init(&r->snapshot, &r->plan, &r->preset.facts, NULL, &err) != PLIM_OK)
        fail_msg("%s", err.text);
}

static void rig_close(struct rig *r)
{
    snapshot_release(&r->snapshot);
    plan_release(&r->plan);
    job_release(&r->job);
}

static bool meet(const struct snapshot_block *a, const struct snapshot_block *b)
{
    return a->tier == b->tier && a->first <= b->last && b->first <= a->last &&
           a->offset < b->offset + b->bytes && b->offset < a->offset + a->bytes;
}

/* Live bytes at an op, of all classes or one. */
static int64_t live(const struct snapshot *s, int op, int cls)
{
    int64_t sum = 0;
    for (int i = 0; i < s->blocks; i++) {
        const struct snapshot_block *b = &s->block[i];
        bool here = b->tier == TIER_DEVICE && b->first <= op && op <= b->last;
        if (here && (cls < 0 || (int)b->cls == cls)) sum += b->taken;
    }
    return sum;
}

/* Blocks never meet, are inside their tier, and add up to what the layout says, at its peak by class. */
static void check_blocks(const struct rig *r)
{
    const struct snapshot *s = &r->snapshot;
    const struct layout *l = &r->plan.layout;
    int64_t peak = 0;
    for (int i = 0; i < s->blocks; i++) {
        const struct snapshot_block *b = &s->block[i];
        int64_t top = b->tier == TIER_DEVICE ? l->arena_bytes : l->tier_bytes[b->tier];
        assert_true(b->first <= b->last && b->last < r->plan.tape.nops && b->first >= 0);
        assert_true(b->offset >= 0 && b->offset + b->bytes <= top);
        for (int j = 0; j < i; j++)
            if (meet(b, &s->block[j])) fail_msg("blocks %d and %d share bytes", i, j);
    }
    for (int op = 0; op < r->plan.tape.nops; op++) {
        int64_t here = live(s, op, -1);
        if (here > peak) peak = here;
    }
    assert_int_equal(peak, l->lower_bound);
    for (int c = 0; c < CLASS_COUNT; c++) assert_int_equal(live(s, l->peak_op, c), l->by_class[c]);
}

/* Lanes do one thing at a time, the update comes behind the loop, and all of it is what the plan predicts. */
static void check_clock(const struct rig *r)
{
    const struct snapshot *s = &r->snapshot;
    const struct tape *tape = &r->plan.tape;
    double end[LANES] = {0}, loop = 0, last = 0;
    struct snapshot_moment *at = malloc(((size_t)tape->nops + 1) * sizeof *at);
    assert_non_null(at);
    snapshot_clock(s, at);
    for (int i = 0; i < tape->nops; i++) {
        const struct op_span *span = &s->span[i];
        assert_true(span->seconds >= 0 && span->start >= end[span->lane] - 1e-12);
        end[span->lane] = span->start + span->seconds;
        if (end[span->lane] > last) last = end[span->lane];
        if (i < tape->loop_end && last > loop) loop = last;
        if (i >= tape->loop_end) assert_true(span->start >= loop - 1e-12);
        assert_true(at[i].begin <= at[i].end && at[i].end <= at[i + 1].begin);
    }
    assert_true(at[tape->nops].end >= last - 1e-12 && s->seconds >= last - 1e-12);
    double step = (double)(r->plan.knobs.accumulation - 1) * loop + s->seconds;
    assert_true(step <= r->plan.step_seconds * (1 + 1e-9));
    assert_true(r->preset.facts.async_copies || step >= r->plan.step_seconds * (1 - 1e-9));
    free(at);
}

static const struct plan_case {
    const char *device;
    int64_t micro;
    bool offload;
} cases[] = {{"cpu-4gb", 0, false}, {"cpu-4gb", 2, true}, {"a10g", 2, false}, {"a10g", 0, true}};

static void test_blocks_and_clock(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct rig r;
        rig_open(&r, cases[i].device, cases[i].micro, cases[i].offload);
        check_blocks(&r);
        check_clock(&r);
        rig_close(&r);
    }
}

/* Bytes that one tensor takes over from another are both tensors', one after the other. */
static void test_taken_over_bytes_have_both_names(void **state)
{
    (void)state;
    struct rig r;
    int shared = 0;
    rig_open(&r, "cpu-4gb", 0, false);
    for (int i = 0; i < r.snapshot.blocks; i++) {
        const struct snapshot_block *b = &r.snapshot.block[i];
        if (b->tensor < 0 || r.plan.layout.buffer[b->tensor] == b->tensor) continue;
        int before = 0;
        for (int j = 0; j < r.snapshot.blocks; j++) {
            const struct snapshot_block *a = &r.snapshot.block[j];
            before += a->offset == b->offset && a->last == b->first - 1 && a->bytes == b->bytes &&
                      a->tier == TIER_DEVICE;
        }
        assert_int_equal(before, 1);
        shared++;
    }
    assert_true(shared > 0);
    rig_close(&r);
}

/* Called at every pause: what is written piece by piece is the same text. */
static void collect(void *arg, struct strbuf *out)
{
    struct strbuf *all = arg;
    strbuf_addn(all, out->data, out->len);
    strbuf_truncate(out, 0);
}

static void check_pieces(struct snapshot *s, void (*put)(const struct snapshot *, struct strbuf *),
                         const struct strbuf *whole)
{
    struct strbuf all = STRBUF_INIT, out = STRBUF_INIT;
    s->drain = collect, s->drain_arg = &all;
    put(s, &out);
    collect(&all, &out);
    s->drain = NULL;
    assert_int_equal(all.len, whole->len);
    assert_memory_equal(all.data, whole->data, all.len);
    strbuf_release(&all);
    strbuf_release(&out);
}

static void put_json(const struct snapshot *s, struct strbuf *out)
{
    struct json_writer w;
    json_writer_init(&w, out, 0);
    json_begin_object(&w, NULL);
    snapshot_json(s, &w);
    json_end_object(&w);
}

static struct doc *read_json(const struct strbuf *text)
{
    struct doc *doc;
    if (json_parse(text->data, text->len, "snapshot", &doc, &err) != PLIM_OK) fail_msg("%s", err.text);
    return doc;
}

static void test_json(void **state)
{
    (void)state;
    struct rig r;
    struct strbuf text = STRBUF_INIT;
    rig_open(&r, "a10g", 2, true);
    put_json(&r.snapshot, &text);
    check_pieces(&r.snapshot, put_json, &text);
    struct doc *doc = read_json(&text);
    const struct node *root = &doc->root, *ops = node_get(root, "ops"), *tensors = node_get(root, "tensors");
    assert_string_equal(node_string(node_get(root, "format"), ""), "plimsoll-snapshot");
    assert_int_equal(node_int(node_get(root, "total"), 0), r.plan.total);
    assert_int_equal(node_int(node_get(node_item(node_get(root, "tiers"), TIER_HOST), "bytes"), 0),
                     r.plan.layout.tier_bytes[TIER_HOST]);
    assert_int_equal(node_count(ops), r.plan.tape.nops);
    assert_int_equal(node_count(tensors), r.snapshot.blocks);
    const struct node *t = node_item(tensors, 0);
    assert_int_equal(node_int(node_get(t, "bytes"), 0), r.snapshot.block[0].bytes);
    assert_string_equal(node_string(node_get(node_item(ops, 0), "lane"), ""),
                        snapshot_lane_name(r.snapshot.span[0].lane));
    doc_free(doc);
    strbuf_release(&text);
    rig_close(&r);
}

/* A run's step: ops measured, one of them not, and two passes. */
static void test_of_a_run(void **state)
{
    (void)state;
    struct rig r;
    struct strbuf text = STRBUF_INIT, trace = STRBUF_INIT;
    rig_open(&r, "cpu-4gb", 0, false);
    int nops = r.plan.tape.nops;
    struct op_span *ops = calloc((size_t)nops, sizeof *ops);
    assert_non_null(ops);
    for (int i = 0; i < nops; i++) ops[i] = (struct op_span){LANE_COMPUTE, 0.5 * i, 0.5};
    ops[1].seconds = -1;
    struct snapshot_pass pass[] = {{0, 2, false, 100}, {2, 1, true, 200}};
    struct snapshot_run run = {.job = "job", .step = 7, .loss = 2.5, .ops = ops, .pass = pass, .passes = 2};
    r.snapshot.run = &run;
    put_json(&r.snapshot, &text);
    struct doc *doc = read_json(&text);
    const struct node *list = node_get(&doc->root, "ops"), *told = node_get(&doc->root, "run");
    assert_true(node_float(node_get(node_item(list, 2), "measured_us"), 0) == 5e5);
    assert_null(node_get(node_item(list, 1), "measured_us"));
    assert_int_equal(node_int(node_get(told, "step"), 0), 7);
    assert_int_equal(node_count(node_get(node_get(told, "measured"), "passes")), 2);
    doc_free(doc);
    snapshot_trace(&r.snapshot, &trace);
    check_pieces(&r.snapshot, snapshot_trace, &trace);
    doc = read_json(&trace);
    int measured = 0;
    const struct node *events = node_get(&doc->root, "traceEvents");
    for (size_t i = 0; i < node_count(events); i++)
        measured += node_get(node_get(node_item(events, i), "args"), "planned_us") != NULL;
    assert_int_equal(measured, nops - 1);
    doc_free(doc);
    free(ops);
    strbuf_release(&text);
    strbuf_release(&trace);
    rig_close(&r);
}

static void test_memory_viz_in_pieces(void **state)
{
    (void)state;
    struct rig r;
    struct strbuf text = STRBUF_INIT;
    rig_open(&r, "a10g", 0, true);
    snapshot_memory_viz(&r.snapshot, &text);
    assert_true(text.len > 2 && !memcmp(text.data, "\x80\x02", 2) && text.data[text.len - 1] == '.');
    check_pieces(&r.snapshot, snapshot_memory_viz, &text);
    strbuf_release(&text);
    rig_close(&r);
}

/* A plan that could not even be looked for has no tape: three empty documents. */
static void test_an_empty_plan(void **state)
{
    (void)state;
    struct plan plan = {.total = 10, .budget = 5};
    struct device_facts facts = {.name = "none", .align = 64};
    struct snapshot s;
    struct strbuf text = STRBUF_INIT;
    assert_int_equal(snapshot_init(&s, &plan, &facts, NULL, &err), PLIM_OK);
    put_json(&s, &text);
    doc_free(read_json(&text));
    strbuf_clear(&text);
    snapshot_trace(&s, &text);
    doc_free(read_json(&text));
    strbuf_clear(&text);
    snapshot_memory_viz(&s, &text);
    assert_true(text.len > 0 && !text.failed);
    strbuf_release(&text);
    snapshot_release(&s);
}

static void test_formats(void **state)
{
    (void)state;
    enum snapshot_format f;
    assert_int_equal(snapshot_format_of("a/step.trace.json"), SNAPSHOT_TRACE);
    assert_int_equal(snapshot_format_of("step.json"), SNAPSHOT_JSON);
    assert_int_equal(snapshot_format_of("step.pickle"), SNAPSHOT_MEMORY_VIZ);
    assert_int_equal(snapshot_format_of("step"), SNAPSHOT_JSON);
    assert_int_equal(snapshot_format_parse("memory_viz", &f, &err), PLIM_OK);
    assert_int_equal(f, SNAPSHOT_MEMORY_VIZ);
    assert_int_equal(snapshot_format_parse("jpeg", &f, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "json, trace or memory_viz"));
}

static void test_ranks_have_files_of_their_own(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        int rank;
        const char *want;
    } files[] = {{"a/step.trace.json", 0, "a/step.trace.json"},
                 {"a/step.trace.json", 3, "a/step.rank-3.trace.json"},
                 {"step.json", 1, "step.rank-1.json"},
                 {"s.pickle", 12, "s.rank-12.pickle"},
                 {"a.b/step", 2, "a.b/step.rank-2"},
                 {".json", 1, ".rank-1.json"}};
    char path[SNAPSHOT_PATH];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snapshot_rank_path(files[i].path, files[i].rank, path);
        assert_string_equal(path, files[i].want);
    }
}

/* {"a": [1, -70000, 1 << 40, -(1 << 40)], "p": (3, 4), "f": 0.5, "t": True, "s": "\u00e9", "r": the list again} */
static void test_pickle(void **state)
{
    (void)state;
    static const char want[] = "\x80\x02}("
                               "X\1\0\0\0a"
                               "](J\1\0\0\0J\x90\xee\xfe\xff\x8a\6\0\0\0\0\0\1\x8a\6\0\0\0\0\0\xff"
                               "er\7\0\0\0"
                               "X\1\0\0\0pJ\3\0\0\0J\4\0\0\0\x86"
                               "X\1\0\0\0fG\x3f\xe0\0\0\0\0\0\0"
                               "X\1\0\0\0t\x88"
                               "X\1\0\0\0sX\2\0\0\0\xc3\xa9"
                               "X\1\0\0\0rj\7\0\0\0"
                               "u.";
    struct strbuf out = STRBUF_INIT;
    struct pickle_writer w;
    pickle_writer_init(&w, &out);
    pickle_begin_dict(&w, NULL);
    pickle_begin_list(&w, "a");
    pickle_int(&w, NULL, 1);
    pickle_int(&w, NULL, -70000);
    pickle_int(&w, NULL, (int64_t)1 << 40);
    pickle_int(&w, NULL, -((int64_t)1 << 40));
    pickle_end_list(&w);
    pickle_remember(&w, 7);
    pickle_pair(&w, "p", 3, 4);
    pickle_double(&w, "f", 0.5);
    pickle_bool(&w, "t", true);
    pickle_str(&w, "s", "\xc3\xa9");
    pickle_recall(&w, "r", 7);
    pickle_end_dict(&w);
    pickle_end(&w);
    assert_int_equal(out.len, sizeof want - 1);
    assert_memory_equal(out.data, want, out.len);
    strbuf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_blocks_and_clock),
        cmocka_unit_test(test_taken_over_bytes_have_both_names),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_of_a_run),
        cmocka_unit_test(test_memory_viz_in_pieces),
        cmocka_unit_test(test_an_empty_plan),
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_ranks_have_files_of_their_own),
        cmocka_unit_test(test_pickle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
