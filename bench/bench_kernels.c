/* bench_kernels.c - GB/s of every memory-bound CPU kernel, beside a plain parallel copy.
 *
 *     bench_kernels [threads]            default 2
 *
 * Bytes are those of all operands, each counted once, as the planner counts them. Sizes: N 4096 rows, C 768,
 * F 2048, heads 12 x 64, V 32000 over R 512 rows (64 MB of logits). One line per op and type; the rate is
 * that of the fastest of several runs. */
#include "base/clock.h"
#include "device/cpu/kernels.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Operands: a type (x compute type, f f32, d f64, i i32, m master) and one letter per dimension. */
struct bench {
    const char *name;
    int kind;
    const char *in[OP_MAX_IN], *out[OP_MAX_OUT];
    struct op_attr attr;
    int in_place[OP_MAX_OUT]; /* SHARES(input that the output overwrites) */
};

#define LAYER                                                                                                \
    {                                                                                                        \
        .layer_norm = true, .eps = 1e-5f                                                                     \
    }
#define ADAM                                                                                                 \
    {                                                                                                        \
        .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .decay = 0.1f                                          \
    }

static const struct bench benches[] = {
    {"copy", OP_FETCH, {"xNF"}, {"xNF"}, {0}},
    {"embed", OP_EMBED, {"iN", "xVC"}, {"xNC"}, {0}},
    {"embed_bwd +=", OP_EMBED_BWD, {"iN", "xNC"}, {"fVC"}, {0}},
    {"norm rms", OP_NORM, {"xNC", "xC"}, {"xNC", "fN"}, {.eps = 1e-5f}},
    {"norm layer", OP_NORM, {"xNC", "xC", "xC"}, {"xNC", "fN2"}, LAYER},
    {"norm_bwd rms",
     OP_NORM_BWD,
     {"xNC", "xNC", "xC", "fN", "xNC"},
     {"xNC", "fC"},
     {0},
     {[NORM_BWD_DX] = SHARES(NORM_BWD_ADD)}},
    {"norm_bwd layer",
     OP_NORM_BWD,
     {"xNC", "xNC", "xC", "fN2", "xNC"},
     {"xNC", "fC", "fC"},
     LAYER,
     {[NORM_BWD_DX] = SHARES(NORM_BWD_ADD)}},
    {"split3 rotated", OP_SPLIT3, {"xBTL", "fBTD"}, {"xBTHD", "xBTHD", "xBTHD"}, {0}},
    {"rope_table", OP_ROPE_TABLE, {"iBT", "fE"}, {"fBTD"}, {0}},
    {"swiglu", OP_GLU, {"xNF", "xNF"}, {"xNF"}, {0}},
    {"swiglu_bwd",
     OP_GLU_BWD,
     {"xNF", "xNF", "xNF"},
     {"xNF", "xNF"},
     {0},
     {[GLU_BWD_DGATE] = SHARES(GLU_BWD_GATE), [GLU_BWD_DUP] = SHARES(GLU_BWD_UP)}},
    {"gelu", OP_ACT, {"xNF"}, {"xNF"}, {.activation = ACTIVATION_GELU_TANH}},
    {"gelu by erf", OP_ACT, {"xNF"}, {"xNF"}, {.activation = ACTIVATION_GELU}},
    {"gelu_bwd",
     OP_ACT_BWD,
     {"xNF", "xNF"},
     {"xNF"},
     {.activation = ACTIVATION_GELU_TANH},
     {[ACT_BWD_DX] = SHARES(ACT_BWD_DY)}},
    {"add", OP_ADD, {"xNF", "xNF"}, {"xNF"}, {0}, {[ADD_Y] = SHARES(ADD_A)}},
    {"xent", OP_XENT, {"xRV", "iR", "fS"}, {"d2"}, {0}},
    {"xent in place",
     OP_XENT,
     {"xRV", "iR", "fS"},
     {"d2", "xRV"},
     {0},
     {[XENT_DLOGITS] = SHARES(XENT_LOGITS)}},
    {"split3", OP_SPLIT3, {"xBTL"}, {"xBTHD", "xBTHD", "xBTHD"}, {0}},
    {"sumsq", OP_SUMSQ, {"fNF"}, {"d1"}, {0}},
    {"adamw",
     OP_ADAMW,
     {"xNF", "fNF", "fNF", "fNF", "mNF", "fS"},
     {"xNF", "fNF", "fNF", "mNF"},
     ADAM,
     {[ADAMW_NEW_P] = SHARES(ADAMW_P),
      [ADAMW_NEW_M] = SHARES(ADAMW_M),
      [ADAMW_NEW_V] = SHARES(ADAMW_V),
      [ADAMW_NEW_MASTER] = SHARES(ADAMW_MASTER)}},
    {"sgd",
     OP_SGD,
     {"xNF", "fNF", "fNF", "mNF", "fS"},
     {"xNF", "fNF", "mNF"},
     ADAM,
     {[SGD_NEW_P] = SHARES(SGD_P), [SGD_NEW_M] = SHARES(SGD_M), [SGD_NEW_MASTER] = SHARES(SGD_MASTER)}},
    {"kv_append",
     OP_KV_APPEND,
     {"xBTHD", "xBTHD", "iBT", "xBTHD", "xBTHD"},
     {"xBTHD", "xBTHD"},
     {0},
     {[KV_APPEND_NEW_KC] = SHARES(KV_APPEND_KC), [KV_APPEND_NEW_VC] = SHARES(KV_APPEND_VC)}},
};

static int64_t size_of(char letter)
{
    static const char letters[] = "NCFVRSBTHDEL";
    static const int64_t sizes[] = {4096, 768, 2048, 32000, 512, SCALAR_COUNT,
                                    8,    512, 12,   64,    32,  3 * 12 * 64};
    if (isdigit((unsigned char)letter)) return letter - '0';
    return sizes[strchr(letters, letter) - letters];
}

static enum dtype type_of(char letter, enum dtype x)
{
    switch (letter) {
    case 'x':
        return x;
    case 'd':
        return DT_F64;
    case 'i':
        return DT_I32;
    case 'm':
        return dtype_master(x);
    default:
        return DT_F32;
    }
}

/* "xN3C" is [N, 3C]: a digit multiplies the letter after it, when there is one. */
static struct tensor parse(const char *pattern, enum dtype x)
{
    struct tensor t = {.type = type_of(pattern[0], x), .layer = -1, .view_of = -1, .owner = -1};
    for (const char *p = pattern + 1; *p; p++) {
        int64_t factor = 1;
        if (isdigit((unsigned char)*p) && isalpha((unsigned char)p[1])) factor = *p++ - '0';
        t.dim[t.ndim++] = factor * size_of(*p);
    }
    return t;
}

static void *grab(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
    if (!p) {
        fprintf(stderr, "bench_kernels: no memory for %zu bytes\n", bytes);
        exit(1);
    }
    return p;
}

/* Small values around zero; ids and positions that are valid for every op above. */
static void fill(void *p, const struct tensor *t)
{
    int64_t n = tensor_count(t);
    for (int64_t i = 0; i < n; i++) {
        uint32_t noise = (uint32_t)i * 2654435761u;
        float value = (float)(noise >> 8) / (float)(1 << 23) - 1.0f;
        if (t->type == DT_I32)
            ((int32_t *)p)[i] = t->ndim == 2 ? (int32_t)(i % t->dim[1]) : (int32_t)(noise % 32000);
        else if (t->type == DT_U16)
            ((uint16_t *)p)[i] = (uint16_t)noise;
        else
            dtype_convert((char *)p + (size_t)i * dtype_size(t->type), t->type, &value, DT_F32, 1);
    }
}

struct run {
    struct tensor tensors[OP_MAX_IN + OP_MAX_OUT];
    struct op op;
    struct kernel_call call;
    double bytes;
    void *owned[OP_MAX_IN + OP_MAX_OUT + 1];
};

static bool has_master(const char *pattern, enum dtype x) { return pattern[0] != 'm' || x != DT_F32; }

/* `share`: SHARES(input whose bytes it takes), or 0. */
static void operand(struct run *r, const char *pattern, int slot, enum dtype x, int share)
{
    if (!pattern || !has_master(pattern, x)) return;
    struct tensor *t = &r->tensors[slot];
    *t = parse(pattern, x);
    r->call.desc[slot] = t;
    r->bytes += (double)tensor_bytes(t);
    void *p = share ? r->call.in[share - 1] : (r->owned[slot] = grab((size_t)tensor_bytes(t)));
    if (!share) fill(p, t);
    if (slot < OP_MAX_IN)
        r->call.in[slot] = p;
    else
        r->call.out[slot - OP_MAX_IN] = p;
}

static void set_scalars(struct run *r)
{
    for (int i = 0; i < OP_MAX_IN; i++) {
        const struct tensor *t = r->call.desc[i];
        if (!t || t->ndim != 1 || t->dim[0] != SCALAR_COUNT) continue;
        float *s = r->call.in[i];
        s[SCALAR_LOSS_GRAD] = 1e-3f, s[SCALAR_LR] = 1e-4f, s[SCALAR_BIAS1] = 0.1f, s[SCALAR_BIAS2] = 0.001f;
    }
}

static double fastest(struct run *r, kernel_run *kernel)
{
    double best = 1e9, begin = clock_seconds();
    for (int i = 0; i < 3 || clock_seconds() - begin < 0.15; i++) {
        double at = clock_seconds();
        kernel(&r->call);
        double took = clock_seconds() - at;
        if (took < best) best = took;
    }
    return best;
}

static void bench(const struct bench *b, enum dtype x, struct threads *team)
{
    struct run *r = calloc(1, sizeof *r);
    if (!r) exit(1);
    const struct kernel *kernel = device_cpu_kernels()[b->kind];
    r->op.kind = b->kind, r->op.attr = b->attr;
    r->call.op = &r->op;
    r->call.team = team;
    r->call.accumulate = strchr(b->name, '+') != NULL;
    for (int i = 0; i < OP_MAX_IN; i++) operand(r, b->in[i], i, x, 0);
    for (int i = 0; i < OP_MAX_OUT; i++) operand(r, b->out[i], OP_MAX_IN + i, x, b->in_place[i]);
    set_scalars(r);
    if (kernel->workspace) r->call.work = grab(kernel->workspace(r->call.desc, &r->op, threads_count(team)));
    r->owned[OP_MAX_IN + OP_MAX_OUT] = r->call.work;
    if (b->kind == OP_EMBED || b->kind == OP_EMBED_BWD) /* only the named rows of the table are touched */
        r->bytes = 2.0 * 4096 * 768 *
                   (b->kind == OP_EMBED ? (double)dtype_size(x) : 4.0 + (double)dtype_size(x) / 2);
    double took = fastest(r, kernel->run);
    printf("%-16s %-5s %8.3f ms %8.1f GB/s\n", b->name, dtype_name(x), took * 1e3, r->bytes / took * 1e-9);
    for (int i = 0; i <= OP_MAX_IN + OP_MAX_OUT; i++) free(r->owned[i]);
    free(r);
}

int main(int argc, char **argv)
{
    struct threads *team;
    struct plim_error err = {0};
    if (threads_start(argc > 1 ? atoi(argv[1]) : 2, &team, &err) != PLIM_OK) {
        fprintf(stderr, "bench_kernels: %s\n", err.text);
        return 1;
    }
    static const enum dtype types[] = {DT_F32, DT_BF16, DT_F16};
    for (size_t i = 0; i < sizeof benches / sizeof *benches; i++)
        for (size_t t = 0; t < 3; t++) bench(&benches[i], types[t], team);
    threads_free(team);
    return 0;
}
