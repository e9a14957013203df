/* golden.c - see golden.h. */
#include "support/golden.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

const char *golden_model(const char *name, char *buf, size_t size)
{
    const char *dir = getenv("GOLDEN_DIR"), *src = getenv("SRC_DIR");
    if (dir)
        snprintf(buf, size, "%s/%s", dir, name);
    else
        snprintf(buf, size, "%s/tests/golden/%s", src ? src : ".", name);
    return buf;
}

void *golden_read(const struct golden *g, const char *name, enum dtype type, int64_t *count)
{
    struct plim_error err = {0};
    const struct safetensor *t = safetensors_find(&g->expected, name);
    if (!t) return NULL;
    void *data = malloc((size_t)t->count * dtype_size(type));
    assert_non_null(data);
    if (safetensors_read_all(&g->expected, t, type, data, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (count) *count = t->count;
    return data;
}

static void *must_read(const struct golden *g, const char *name, enum dtype type, int64_t *count)
{
    void *data = golden_read(g, name, type, count);
    if (!data) fail_msg("%s: the golden file has no %s", g->name, name);
    return data;
}

/* Cases that differ in their rows alone share a model. */
static void find_model(struct golden *g, const char *folder)
{
    char path[600], other[64] = "";
    snprintf(path, sizeof path, "%s/MODEL", folder);
    FILE *borrowed = fopen(path, "r");
    if (borrowed) {
        assert_int_equal(fscanf(borrowed, "%63s", other), 1);
        fclose(borrowed);
    }
    golden_model(borrowed ? other : g->name, g->model, sizeof g->model);
}

void golden_open(struct golden *g, const char *name)
{
    struct plim_error err = {0};
    char folder[512], path[600];
    *g = (struct golden){0};
    snprintf(g->name, sizeof g->name, "%s", name);
    snprintf(path, sizeof path, "%s/expected.safetensors", golden_model(name, folder, sizeof folder));
    if (safetensors_open(path, &g->expected, &err) != PLIM_OK) fail_msg("%s", err.text);
    find_model(g, folder);
    const struct safetensor *ids = safetensors_find(&g->expected, "ids"),
                            *source = safetensors_find(&g->expected, "source.ids");
    assert_non_null(ids);
    g->batch = ids->dim[0], g->time = ids->dim[1], g->source_time = source ? source->dim[1] : 0;
    int64_t count;
    int32_t *targets = must_read(g, "targets", DT_I32, &count);
    for (int64_t i = 0; i < count; i++) g->counted += targets[i] >= 0;
    free(targets);
}

void golden_close(struct golden *g) { safetensors_close(&g->expected); }

/* Rows without padding, where what is expected says nothing of lengths. */
static void write_whole_rows(struct model_rig *rig, const struct golden *g)
{
    int32_t *lengths = calloc((size_t)g->batch, sizeof *lengths);
    assert_non_null(lengths);
    for (int64_t b = 0; b < g->batch; b++) lengths[b] = (int32_t)g->time;
    rig_write(rig, "lengths", lengths, (size_t)g->batch * sizeof *lengths);
    free(lengths);
}

static void write_feeds(struct model_rig *rig, const struct golden *g)
{
    static const char *const feeds[] = {"ids",    "pos", "types", "lengths", "source.ids", "source.lengths",
                                        "targets"};
    for (size_t i = 0; i < sizeof feeds / sizeof *feeds; i++) {
        int64_t count;
        if (tape_find(&rig->tape, feeds[i], -1) < 0) continue;
        if (!strcmp(feeds[i], "lengths") && !safetensors_find(&g->expected, "lengths")) {
            write_whole_rows(rig, g);
            continue;
        }
        int32_t *data = must_read(g, feeds[i], DT_I32, &count);
        rig_write(rig, feeds[i], data, (size_t)count * sizeof *data);
        free(data);
    }
}

static void write_scalars(struct model_rig *rig, const struct golden *g, int step)
{
    float scalars[SCALAR_COUNT] = {[SCALAR_LOSS_GRAD] = 1.0f / (float)g->counted,
                                   [SCALAR_LR] = 1e-3f,
                                   [SCALAR_BIAS1] = (float)(1 - pow(0.9, step + 1)),
                                   [SCALAR_BIAS2] = (float)(1 - pow(0.999, step + 1)),
                                   [SCALAR_UNSCALE] = 1,
                                   [SCALAR_AUX_GRAD] = 1};
    if (tape_find(&rig->tape, "step.scalars", -1) >= 0)
        rig_write(rig, "step.scalars", scalars, sizeof scalars);
}

void golden_run(struct model_rig *rig, const struct golden *g, const struct rig_options *how, int step)
{
    if (!rig->device) {
        struct rig_options o = *how;
        o.model = g->model, o.batch = g->batch, o.time = g->time, o.source_time = g->source_time;
        rig_open(rig, &o);
    }
    write_feeds(rig, g);
    write_scalars(rig, g, step);
    if (exec_loop(&rig->exec, 0, &rig->err) != PLIM_OK) fail_msg("%s", rig->err.text);
}

float *golden_floats(struct model_rig *rig, int id)
{
    const struct tensor *t = &rig->tape.tensors[id];
    void *raw = malloc((size_t)tensor_bytes(t));
    float *values = malloc((size_t)tensor_count(t) * sizeof *values);
    rig_read(rig, id, raw, (size_t)tensor_bytes(t));
    dtype_convert(values, DT_F32, raw, t->type, tensor_count(t));
    free(raw);
    return values;
}

double golden_error(const float *have, const float *want, int64_t n, double nothing)
{
    double diff = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) diff += pow((double)have[i] - want[i], 2), norm += pow(want[i], 2);
    return norm > nothing * nothing ? sqrt(diff / norm) : sqrt(diff);
}

/* The file's tensor of a parameter; files of models without a head leave the prefix of its name out. */
static float *read_part(const struct golden *g, const char *what, const char *name, int64_t *count)
{
    char key[256];
    const char *dot = strchr(name, '.');
    snprintf(key, sizeof key, "%s:%s", what, name);
    float *there = golden_read(g, key, DT_F32, count);
    if (there || !dot) return there;
    snprintf(key, sizeof key, "%s:%s", what, dot + 1);
    return must_read(g, key, DT_F32, count);
}

static void add_part(const struct golden *g, const struct weights_part *part, const float *have,
                     double nothing, struct golden_errors *e)
{
    int64_t count;
    float *want = read_part(g, "grad", part->name, &count),
          *torch = read_part(g, "bf16err", part->name, NULL);
    assert_int_equal(count, part->count);
    double error = golden_error(have + part->first, want, count, nothing), norm = 0;
    for (int64_t i = 0; i < count; i++) {
        norm += pow(want[i], 2);
        e->whole.diff += pow((double)have[part->first + i] - want[i], 2);
    }
    e->whole.norm += norm;
    if (error > e->worst || !e->worst_name[0])
        e->worst = error, snprintf(e->worst_name, sizeof e->worst_name, "%s", part->name);
    if (norm > nothing * nothing) {
        double share = error > 0 ? error / torch[0] : 0;
        if (share > e->most) e->most = share, snprintf(e->most_name, sizeof e->most_name, "%s", part->name);
        e->ours += error * error, e->torch += pow(torch[0], 2), e->count++;
    }
    free(want), free(torch);
}

struct golden_errors golden_gradients(struct model_rig *rig, const struct golden *g, double nothing)
{
    struct golden_errors e = {0};
    for (int i = 0; i < rig->tape.ntensors; i++) {
        if (rig->tape.tensors[i].cls != CLASS_GRAD) continue;
        float *have = golden_floats(rig, i);
        int owner = rig->tape.tensors[i].owner, n = weights_part_count(&rig->tape, owner);
        int64_t covered = 0;
        for (int k = 0; k < n; k++) {
            const struct weights_part part = weights_part(&rig->spec, &rig->tape, owner, k);
            add_part(g, &part, have, nothing, &e);
            covered += part.count;
        }
        assert_int_equal(covered, tensor_count(&rig->tape.tensors[i]));
        free(have);
    }
    assert_true(e.count > 4);
    return e;
}

/* The losses of the router, where there is one. */
static double router_loss(struct model_rig *rig)
{
    double loss[3] = {0};
    int id = tape_find(&rig->tape, "router.loss", -1);
    if (id >= 0) rig_read(rig, id, loss, sizeof loss);
    return loss[0] + loss[1];
}

double golden_losses(const struct golden *g, const struct rig_options *how, double least)
{
    struct model_rig rig = {0};
    struct rig_options o = *how;
    double worst = 0, sum = 0;
    o.grad = o.update = true;
    float *want = must_read(g, "losses", DT_F32, NULL);
    for (int step = 0; step < 10; step++) {
        double loss[2];
        golden_run(&rig, g, &o, step);
        rig_read(&rig, tape_find(&rig.tape, "loss", -1), loss, sizeof loss);
        double mean = loss[0] / loss[1] + router_loss(&rig);
        assert_true(loss[1] == (double)g->counted);
        assert_int_equal(exec_update(&rig.exec, &rig.err), PLIM_OK);
        double error = fabs(mean - want[step]) / fmax(want[step], least);
        if (!(error <= GOLDEN_TOLERANCE))
            fail_msg("%s: step %d: loss %.8f, torch %.8f", g->name, step, mean, want[step]);
        worst = fmax(worst, error), sum += loss[0];
    }
    print_message("# %s: worst error of ten losses %.2e\n", g->name, worst);
    free(want);
    rig_close(&rig);
    return sum;
}
