/* ref_probe.c - see ref_probe.h. A probe that is not accepted by the op table ends the test program: the test
 * is wrong. */
#include "support/ref_probe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static double uniform(struct probe *r)
{
    uint64_t z = (r->random += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static double normal(struct probe *r)
{
    return sqrt(-2 * log(1 - uniform(r))) * cos(6.283185307179586 * uniform(r));
}

struct probe probe_make(int kind, uint64_t seed)
{
    struct probe r = {.op = tape_op(kind, -1), .random = seed << 32};
    return r;
}

void probe_free(struct probe *r)
{
    for (int i = 0; i < r->nowned; i++) free(r->owned[i]);
}

/* An array of the probe's own, filled with normal numbers (integers with zero). */
static union ref_array make_array(struct probe *r, const struct tensor *t)
{
    int64_t n = tensor_count(t);
    union ref_array array = {.f = calloc((size_t)n, sizeof(double))};
    if (!array.f) abort();
    r->owned[r->nowned++] = array.f;
    for (int64_t i = 0; i < n && t->type != DT_I32; i++) array.f[i] = normal(r);
    return array;
}

static struct tensor describe(enum dtype type, const char *shape)
{
    struct tensor t = {.label = "probe", .layer = -1, .type = type, .view_of = -1, .owner = -1};
    char *end;
    for (; t.ndim < TENSOR_MAX_DIM; shape = end) {
        long long size = strtoll(shape, &end, 10);
        if (end == shape) break;
        t.dim[t.ndim++] = size;
    }
    return t;
}

void probe_in(struct probe *r, int slot, enum dtype type, const char *shape)
{
    r->desc[slot] = describe(type, shape);
    r->call.in[slot] = make_array(r, &r->desc[slot]);
}

void probe_out(struct probe *r, int slot, enum dtype type, const char *shape)
{
    r->desc[OP_MAX_IN + slot] = describe(type, shape);
    r->call.out[slot] = make_array(r, &r->desc[OP_MAX_IN + slot]);
}

void probe_ints(struct probe *r, int slot, const int *values, int n)
{
    for (int i = 0; i < n; i++) r->call.in[slot].i[i] = values[i];
}

void probe_reals(struct probe *r, int slot, const double *values, int n)
{
    memcpy(r->call.in[slot].f, values, (size_t)n * sizeof *values);
}

void probe_use(struct probe *r, int slot, union ref_array array, const struct tensor *desc)
{
    r->desc[slot] = *desc;
    r->call.in[slot] = array;
}

void probe_copy(struct probe *r, int slot, union ref_array array, const struct tensor *desc)
{
    r->desc[slot] = *desc;
    r->call.in[slot] = make_array(r, desc);
    memcpy(r->call.in[slot].f, array.f, (size_t)tensor_count(desc) * sizeof(double));
}

void probe_weigh(struct probe *r, int slot) { r->weight[slot] = make_array(r, &r->desc[OP_MAX_IN + slot]); }

/* The op table must accept the op; ids are places in desc. */
static void check(struct probe *r)
{
    struct tape tape = {.tensors = r->desc, .ntensors = OP_MAX_IN + OP_MAX_OUT};
    struct plim_error err = {0};
    for (int i = 0; i < OP_MAX_IN; i++) r->op.in[i] = r->call.in[i].f ? i : -1;
    for (int i = 0; i < OP_MAX_OUT; i++) r->op.out[i] = r->call.out[i].f ? OP_MAX_IN + i : -1;
    if (op_check(&tape, &r->op, &err) == PLIM_OK) return;
    fprintf(stderr, "probe: %s\n", err.text);
    abort();
}

void probe_run(struct probe *r)
{
    check(r);
    r->call.op = &r->op;
    for (int i = 0; i < OP_MAX_IN; i++) r->call.desc[i] = r->call.in[i].f ? &r->desc[i] : NULL;
    for (int i = 0; i < OP_MAX_OUT; i++)
        r->call.desc[OP_MAX_IN + i] = r->call.out[i].f ? &r->desc[OP_MAX_IN + i] : NULL;
    reference_run(&r->call);
}

double probe_value(struct probe *r)
{
    double sum = 0;
    probe_run(r);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!r->weight[i].f) continue;
        for (int64_t j = 0; j < tensor_count(probe_out_desc(r, i)); j++)
            sum += r->weight[i].f[j] * r->call.out[i].f[j];
    }
    return sum;
}

const struct tensor *probe_out_desc(const struct probe *r, int slot) { return &r->desc[OP_MAX_IN + slot]; }
