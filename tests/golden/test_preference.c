/* Losses of preferences, their rewards and gradients against TRL's (make_preference.py), with two rows and with the prompt computed
 * once; and that slices of the head, whose logits are computed twice, change no bit. */
#include "base/json.h"
#include "data/share.h"
#include "support/golden.h"
#include "tape/op.h"
#include "train/preferences.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* The rules of make_preference.py. */
static const struct {
    const char *name;
    struct preference_rule rule;
} cases[] = {
    {"sigmoid", {.loss = PREFERENCE_SIGMOID, .beta = 0.1f}},
    {"hinge", {.loss = PREFERENCE_HINGE, .beta = 0.4f}},
    {"ipo", {.loss = PREFERENCE_IPO, .beta = 0.2f}},
    {"sigmoid_norm", {.loss = PREFERENCE_SIGMOID_NORM, .beta = 2}},
    {"robust", {.loss = PREFERENCE_ROBUST, .beta = 0.1f, .smoothing = 0.2f}},
    {"apo_zero", {.loss = PREFERENCE_APO_ZERO, .beta = 0.1f}},
    {"apo_down", {.loss = PREFERENCE_APO_DOWN, .beta = 0.1f}},
    {"sft", {.loss = PREFERENCE_SIGMOID, .beta = 0.1f, .nll = 0.5f}},
    {"kto", {.loss = PREFERENCE_KTO, .beta = 0.3f, .desirable = 1.5f, .undesirable = 0.75f}},
    {"orpo", {.loss = PREFERENCE_ORPO, .beta = 0.5f, .nll = 1}},
};
enum { CASES = sizeof cases / sizeof *cases };

static struct golden golden;
static struct doc *facts;

static int open_files(void **)
{
    char path[600], folder[512];
    struct plim_error err = {0};
    golden_open(&golden, "preference");
    snprintf(path, sizeof path, "%s/expected.json", golden_model("preference", folder, sizeof folder));
    if (json_load(path, &facts, &err) != PLIM_OK) fail_msg("%s", err.text);
    return 0;
}

static int close_files(void **)
{
    golden_close(&golden);
    doc_free(facts);
    return 0;
}

/* A feed of the case: its own, or that of pairs. Returns the first half's targets if it is these. */
static int64_t write_feed(struct model_rig *rig, const char *kind, const char *feed)
{
    char key[64];
    int64_t count, targets = 0;
    if (tape_find(&rig->tape, feed, -1) < 0) return 0;
    snprintf(key, sizeof key, "%s.%s", kind, feed);
    int32_t *data = golden_read(&golden, key, strcmp(feed, "reference") ? DT_I32 : DT_F32, &count);
    if (!data) data = golden_read(&golden, feed, strcmp(feed, "reference") ? DT_I32 : DT_F32, &count);
    assert_non_null(data);
    for (int64_t i = 0; i < count / 2; i++) targets += data[i] >= 0;
    rig_write(rig, feed, data, (size_t)count * sizeof *data);
    free(data);
    return targets;
}

/* A feed of the case in memory. */
static int32_t *read_feed(const char *kind, const char *feed)
{
    char key[64];
    snprintf(key, sizeof key, "%s.%s", kind, feed);
    int32_t *data = golden_read(&golden, key, DT_I32, NULL);
    return data ? data : golden_read(&golden, feed, DT_I32, NULL);
}

struct tables {
    int64_t packed;
    int32_t *pack, *wide;
};

/* Tables of the fewest positions that hold the case. */
static struct tables make_tables(const char *kind)
{
    struct rows rows = {.count = golden.batch,
                        .time = golden.time,
                        .ids = read_feed(kind, "ids"),
                        .targets = read_feed(kind, "targets")};
    int64_t all = golden.batch * golden.time;
    struct tables t = {1, malloc((size_t)(2 * all) * sizeof(int32_t)),
                       malloc((size_t)(2 * all) * sizeof(int32_t))};
    assert_true(rows.ids && rows.targets && t.pack && t.wide);
    while (!share_fill(&rows, t.packed, t.pack, t.wide)) t.packed++;
    free(rows.ids), free(rows.targets);
    return t;
}

static void run_case(struct model_rig *rig, int i, int chunks, bool shared)
{
    struct tables tables = make_tables(cases[i].name);
    struct rig_options o = {.model = golden.model,
                            .batch = golden.batch,
                            .time = golden.time,
                            .head = HEAD_PREFERENCE,
                            .preference = cases[i].rule,
                            .packed = shared ? tables.packed : 0,
                            .grad = true,
                            .loss_chunks = chunks};
    rig_open(rig, &o);
    const char *kind = cases[i].name;
    int32_t *pos = calloc((size_t)(golden.batch * golden.time), sizeof *pos);
    for (int64_t k = 0; k < golden.batch * golden.time; k++) pos[k] = (int32_t)(k % golden.time);
    rig_write(rig, "pos", pos, (size_t)(golden.batch * golden.time) * sizeof *pos);
    free(pos);
    write_feed(rig, kind, "ids");
    write_feed(rig, kind, "reference");
    write_feed(rig, kind, "marks");
    if (shared) {
        rig_write(rig, "share.pack", tables.pack, (size_t)(golden.batch * tables.packed) * sizeof(int32_t));
        rig_write(rig, "share.wide", tables.wide, (size_t)(2 * golden.batch * golden.time) * sizeof(int32_t));
    }
    free(tables.pack), free(tables.wide);
    int64_t targets = write_feed(rig, kind, "targets");
    float scalars[SCALAR_COUNT] = {
        [SCALAR_LOSS_GRAD] = 1 / (float)targets, [SCALAR_SAMPLE_GRAD] = 2 / (float)golden.batch};
    rig_write(rig, "step.scalars", scalars, sizeof scalars);
    if (exec_loop(&rig->exec, 0, &rig->err) != PLIM_OK) fail_msg("%s", rig->err.text);
}

static void near(const char *name, const char *what, double have, double want, double scale)
{
    if (!(fabs(have - want) <= GOLDEN_TOLERANCE * fmax(scale, fabs(want))))
        fail_msg("%s: %s is %.9g, TRL has %.9g", name, what, have, want);
}

struct compared {
    const char *name;
    const struct node *want;
    int count;
};

static void compare_number(void *arg, const char *what, double have)
{
    struct compared *c = arg;
    const struct node *want = node_get(c->want, what);
    if (want) near(c->name, what, have, node_float(want, NAN), 1), c->count++;
}

static void compare_gradients(struct model_rig *rig, const char *name, const struct node *want)
{
    const struct node *squares = node_get(want, "squares");
    int full = 0;
    for (int i = 0; i < rig->tape.ntensors; i++) {
        if (rig->tape.tensors[i].cls != CLASS_GRAD) continue;
        float *have = golden_floats(rig, i);
        int owner = rig->tape.tensors[i].owner, n = weights_part_count(&rig->tape, owner);
        for (int k = 0; k < n; k++) {
            const struct weights_part part = weights_part(&rig->spec, &rig->tape, owner, k);
            char key[256];
            double sum = 0;
            for (int64_t j = 0; j < part.count; j++) sum += pow((double)have[part.first + j], 2);
            near(name, part.name, sqrt(sum), sqrt(node_float(node_get(squares, part.name), NAN)), 0);
            snprintf(key, sizeof key, "%s:%s", name, part.name);
            float *whole = golden_read(&golden, key, DT_F32, NULL);
            double error = whole ? golden_error(have + part.first, whole, part.count, 0) : 0;
            if (!(error <= GOLDEN_TOLERANCE)) fail_msg("%s: error of %s is %.2e", name, part.name, error);
            full += whole != NULL;
            free(whole);
        }
        free(have);
    }
    assert_int_equal(full, 2);
}

static void check_parity(bool shared)
{
    for (int i = 0; i < CASES; i++) {
        struct model_rig rig = {0};
        struct compared c = {cases[i].name, node_get(&facts->root, cases[i].name), 0};
        double loss[2], stat[PREFERENCE_STATS];
        struct preferences p;
        run_case(&rig, i, 1, shared);
        rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
        rig_read(&rig, tape_find(&rig.tape, "preference", -1), stat, sizeof stat);
        preferences_of(&cases[i].rule, stat, loss, &p);
        near(c.name, "the loss", loss[0] / loss[1], node_float(node_get(c.want, "loss"), NAN), 0);
        preferences_each(&p, compare_number, &c);
        assert_true(c.count >= 5);
        compare_gradients(&rig, c.name, c.want);
        rig_close(&rig);
    }
}

static void test_parity(void **) { check_parity(false); }

/* Products see each token of a prompt once. */
static void test_shared_prompts(void **)
{
    struct model_rig apart = {0}, shared = {0};
    double flops[2] = {0};
    check_parity(true);
    run_case(&apart, 0, 1, false), run_case(&shared, 0, 1, true);
    for (int i = 0; i < apart.tape.nops; i++)
        flops[0] += op_cost_of(&apart.tape, &apart.tape.ops[i], NULL).matmul_flops;
    for (int i = 0; i < shared.tape.nops; i++)
        flops[1] += op_cost_of(&shared.tape, &shared.tape.ops[i], NULL).matmul_flops;
    print_message("# products of rows with a common prompt: %.2f of those apart\n", flops[1] / flops[0]);
    assert_true(flops[1] < 0.95 * flops[0]);
    rig_close(&apart), rig_close(&shared);
}

static void test_slices(void **)
{
    for (int i = 0; i < CASES; i += 3) {
        struct model_rig whole = {0}, cut = {0};
        double losses[2][2];
        run_case(&whole, i, 1, i % 2);
        if (!strcmp(whole.device->ops->name,
                    "pjrt")) { /* programs of one compiler may differ in the last bits */
            rig_close(&whole);
            skip();
        }
        run_case(&cut, i, 2, i % 2);
        assert_true(cut.tape.nops >= whole.tape.nops + 6);
        rig_read(&whole, tape_find(&whole.tape, "loss", -1), losses[0], sizeof losses[0]);
        rig_read(&cut, tape_find(&cut.tape, "loss", -1), losses[1], sizeof losses[1]);
        assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
        for (int k = 0; k < whole.tape.ntensors; k++) {
            const struct tensor *t = &whole.tape.tensors[k];
            if (t->cls != CLASS_GRAD) continue;
            int other = -1;
            for (int j = 0; j < cut.tape.ntensors; j++)
                if (cut.tape.tensors[j].cls == CLASS_GRAD && cut.tape.tensors[j].owner == t->owner) other = j;
            assert_true(other >= 0);
            float *a = golden_floats(&whole, k), *b = golden_floats(&cut, other);
            assert_memory_equal(a, b, (size_t)tensor_count(t) * sizeof *a);
            free(a), free(b);
        }
        rig_close(&whole), rig_close(&cut);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_parity), cmocka_unit_test(test_shared_prompts),
                                       cmocka_unit_test(test_slices)};
    return cmocka_run_group_tests(tests, open_files, close_files);
}
