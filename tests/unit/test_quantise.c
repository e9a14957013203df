/* run-tests: not=tsan */
/* test_quantise.c - weights in blocks: panels hold what blocks hold, every level of the CPU has the same bits, and an engine
 * with blocks of 8 or 4 bits is near one that multiplies the same numbers in double precision, whoever else is in a step. */
#include "base/rng.h"
#include "model/hf.h"
#include "model/weights.h"
#include "device/cpu/linear_q.h"
#include "reference/reference.h"
#include "serve/engine.h"
#include "tape/pass.h"
#include "tape/quantised.h"
#include "support/pace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const int numbers[] = {BLOCK_Q8_0, BLOCK_Q4_0, BLOCK_Q4_K,   BLOCK_Q5_K,  BLOCK_Q6_K,
                              BLOCK_NF4,  BLOCK_FP4,  BLOCK_NF4_DQ, BLOCK_FP4_DQ};
enum { TYPES = sizeof numbers / sizeof *numbers, K = 768 };

/* --- panels ----------------------------------------------------------------------------------------------- */

/* 16 lines of blocks, random or with the largest codes (full), whose scales are numbers. */
static unsigned char *make_rows(const struct block_type *type, int64_t k, bool full)
{
    int64_t bytes = panel_bytes(type, k);
    unsigned char *rows = malloc((size_t)bytes);
    for (int64_t i = 0; i < bytes; i++)
        rows[i] = full ? 255 : (unsigned char)rng_below(5, (uint64_t)type->bytes, (uint64_t)i, 256);
    for (int64_t b = 0; b < bytes / type->bytes; b++)
        for (int i = 0; i < type->scales.count; i++) {
            float wide = 0.001f * (float)(1 + b % 17) * (b % 2 ? 1.0f : -1.0f);
            uint16_t half = f32_to_f16(wide);
            unsigned char *at = rows + b * type->bytes + type->scales.at + i * (type->scales.wide ? 4 : 2);
            memcpy(at, type->scales.wide ? (void *)&wide : (void *)&half, type->scales.wide ? 4 : 2);
        }
    return rows;
}

static unsigned char *random_rows(const struct block_type *type, int64_t k)
{
    return make_rows(type, k, false);
}

static void test_panels(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++) {
        const struct block_type *type = block_type_of((uint32_t)numbers[t]);
        int covered = 0;
        for (int f = 0; f < BLOCK_FIELDS; f++) {
            assert_true(!type->field[f].bytes || type->field[f].at == covered);
            covered += type->field[f].bytes;
        }
        assert_int_equal(covered, type->bytes); /* nothing is left out: a panel has a file's bytes */
        unsigned char *rows = random_rows(type, K), *panel = malloc((size_t)panel_bytes(type, K));
        static float want[K], got[K], wide[PANEL_LINES][K];
        static uint16_t narrow[PANEL_LINES][K], rounded[K];
        panel_pack(type, K, rows, panel);
        int64_t blocks = K / type->elements;
        panel_widen(&(struct panel_span){type, panel, 0, blocks, PANEL_LINES, DT_F32, wide, sizeof want});
        panel_widen(
            &(struct panel_span){type, panel, 1, blocks - 1, PANEL_LINES, DT_BF16, narrow, sizeof rounded});
        for (int line = 0; line < PANEL_LINES; line++) {
            type->read(rows + line * panel_row_bytes(type, K), want, blocks);
            panel_read(type, K, panel, line, got);
            assert_memory_equal(want, got, sizeof want);
            assert_memory_equal(want, wide[line], sizeof want);
            dtype_convert(rounded, DT_BF16, want + type->elements, DT_F32, K - type->elements);
            assert_memory_equal(rounded, narrow[line], (size_t)(K - type->elements) * sizeof *rounded);
        }
        free(rows);
        free(panel);
    }
}

static void test_written_blocks(void **state)
{
    (void)state;
    static const struct {
        int number;
        float share; /* of the largest number of a block: how far an element may be off */
    } cases[] = {{BLOCK_Q8_0, 0.51f / 127}, {BLOCK_Q4_0, 0.2f}, {BLOCK_NF4, 0.153f}, {BLOCK_FP4, 0.167f}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        const struct block_type *type = block_type_of((uint32_t)cases[c].number);
        const int each = type->elements;
        float in[K], out[K], again[K];
        unsigned char blocks[K * 2], second[K * 2];
        for (int i = 0; i < K; i++)
            in[i] = i / each == 3 ? 0 : (float)rng_below(3, 1, (uint64_t)i, 2001) * 1e-4f - 0.1f;
        type->write(in, blocks, K / each);
        type->read(blocks, out, K / each);
        for (int i = 0; i < K; i++) {
            float most = 0;
            for (int j = i / each * each; j < i / each * each + each; j++) most = fmaxf(most, fabsf(in[j]));
            if (!(fabsf(in[i] - out[i]) <= cases[c].share * most))
                fail_msg("%s: %g became %g", type->name, (double)in[i], (double)out[i]);
        }
        if (cases[c].number == BLOCK_Q4_0) continue;
        type->write(out, second, K / each); /* what blocks hold stays what it is */
        type->read(second, again, K / each);
        assert_memory_equal(out, again, sizeof out);
    }
}

/* --- levels ----------------------------------------------------------------------------------------------- */

struct rows {
    int8_t *codes;
    struct x8_block *blocks;
};

static struct rows quantise_rows(const struct linear_q_level *level, const float *x, int64_t rows)
{
    struct rows r = {malloc((size_t)x8_codes_bytes(rows, K)), malloc((size_t)x8_blocks_bytes(rows, K))};
    for (int64_t i = 0; i < rows; i++) level->quantise(x + i * K, DT_F32, K, i, r.codes, r.blocks);
    return r;
}

/* Rows [first, first + rows) of x: those of an expert begin anywhere. */
static void multiply(const struct linear_q_level *level, int number, const unsigned char *panel,
                     const float *x, int64_t first, int64_t rows, float *out)
{
    struct rows r = quantise_rows(level, x, first + rows);
    struct x8 these = x8_rows(level, r.codes, r.blocks, K, first, rows);
    void *scratch = aligned_alloc(64, (size_t)panel8_bytes(K));
    struct panel8 w;
    panel8_ready(level, number, panel, K, rows, scratch, &w);
    if (level->few[number] && rows <= PANEL8_FEW)
        level->few[number](panel, &these, out);
    else
        level->multiply(&w, &these, out);
    free(r.codes), free(r.blocks), free(scratch);
}

static int levels_here(const struct linear_q_level **out)
{
    int n = 0;
#if defined(__x86_64__)
    bool vnni = cpu_has(CPU_AVX512) && __builtin_cpu_supports("avx512vnni");
    if (cpu_has(CPU_AVX2)) out[n++] = &linear_q_avx2;
    if (vnni) out[n++] = &linear_q_vnni;
#endif
#if defined(__aarch64__)
    if (linear_q_level() == &linear_q_i8mm) out[n++] = &linear_q_dotprod;
#endif
    out[n++] = linear_q_level();
    return n;
}

static void same_rows(const char *level, const char *type, int64_t rows, const float *want, const float *got)
{
    for (int64_t i = 0; i < rows * PANEL_LINES; i++)
        if (memcmp(&got[i], &want[i], sizeof *got) && !(isnan(got[i]) && isnan(want[i])))
            fail_msg("%s, %s, %lld rows: row %lld is %g, in plain C %g", level, type, (long long)rows,
                     (long long)(i / PANEL_LINES), (double)got[i], (double)want[i]);
}

static void test_levels_agree(void **state)
{
    (void)state;
    const struct linear_q_level *levels[4];
    int count = levels_here(levels);
    static float x[PANEL8_ROWS * K], want[PANEL8_ROWS * PANEL_LINES], got[PANEL8_ROWS * PANEL_LINES];
    for (int i = 0; i < PANEL8_ROWS * K; i++)
        x[i] =
            (float)rng_below(9, 1, (uint64_t)i, 20001) * (i / K % 3 ? 1e-4f : 1e-2f) - (i / K % 3 ? 1 : 100);
    memset(x + 5 * K, 0, K * sizeof *x);
    for (int i = 0; i < 2 * K; i++)
        x[11 * K + i] = i < K ? 1 : -1; /* the largest codes: sums of 16 bits hold them */
    x[7 * K + 40] = INFINITY, x[8 * K + 3] = NAN, x[9 * K] = 1e-42f;
    for (int c = 0; c < 2 * TYPES; c++) {
        const int t = c / 2;
        const struct block_type *type = block_type_of((uint32_t)numbers[t]);
        if (type->table) continue; /* linear_q_wide.h */
        unsigned char *rows = make_rows(type, K, c % 2), *panel = malloc((size_t)panel_bytes(type, K));
        panel_pack(type, K, rows, panel);
        multiply(&linear_q_plain, numbers[t], panel, x, 0, PANEL8_ROWS, want);
        assert_true(isnan(want[7 * PANEL_LINES]) && isnan(want[8 * PANEL_LINES])); /* nothing is hidden */
        for (int l = 0; l < count; l++)
            for (int64_t n = 1; n <= PANEL8_ROWS; n += n < 18 ? 1 : 7) /* however many rows there are */
                for (int64_t first = 0; first < 9 && first + n <= PANEL8_ROWS; first++) {
                    multiply(levels[l], numbers[t], panel, x, first, n, got);
                    same_rows(levels[l]->name, type->name, n, want + first * PANEL_LINES, got);
                }
        free(rows);
        free(panel);
    }
}

/* A panel of every type is multiplied as it lies in memory by few rows: unpacked first, one row of K-quants takes twice the time. */
static void test_few_rows_in_place(void **state)
{
    (void)state;
    const struct linear_q_level *levels[4];
    int count = levels_here(levels);
    for (int l = 0; l < count; l++)
        for (int t = 0; t < TYPES && levels[l] != &linear_q_plain; t++) {
            bool table = block_type_of((uint32_t)numbers[t])->table;
            if (table || numbers[t] == BLOCK_Q8_0) continue; /* whose codes are never copied */
            if (!levels[l]->few[numbers[t]])
                fail_msg("%s unpacks %s", levels[l]->name, block_type_of((uint32_t)numbers[t])->name);
        }
}

/* --- an engine -------------------------------------------------------------------------------------------- */

enum { PROMPT = 40, MOST = 64 };

struct heard {
    float logprob[MOST];
    int count;
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct heard *h = arg;
    if (event->token >= 0) h->logprob[h->count++] = event->logprob;
    return true;
}

static struct device *real; /* whose products are computed by the reference */

/* The reference has no use for the workspace of a kernel. */
static void run_reference(struct device *dev, struct kernel_call *call)
{
    bool blocks = call->op->kind == OP_LINEAR_Q || call->op->kind == OP_EMBED_Q ||
                  call->op->kind == OP_EXPERT_LINEAR_Q || call->op->kind == OP_LINEAR_F8;
    struct kernel_call other = *call;
    if (!blocks) {
        real->ops->run(dev, call);
        return;
    }
    other.work = malloc(reference_bytes(call->desc));
    reference_kernels[call->op->kind]->run(&other);
    free(other.work);
}

struct setting {
    const char *model;
    enum weights_kind kind;
    enum dtype kv; /* 0: of the weights */
    bool exact;    /* products by the reference */
    int others;    /* requests beside the one that is heard */
    int64_t chunk;
    int threads;
    struct engine_plan plan;
};

static void ask(struct engine *e, int seed, struct heard *h)
{
    int32_t prompt[PROMPT];
    struct plim_error err = {0};
    for (int i = 0; i < PROMPT; i++) prompt[i] = (int32_t)(3 + rng_below(2, (uint64_t)seed, (uint64_t)i, 90));
    struct engine_request request = {.prompt = prompt,
                                     .count = PROMPT,
                                     .tokens = 8,
                                     .logprobs = 0,
                                     .prompt_logprobs = true,
                                     .ignore_eos = true,
                                     .hear = hear,
                                     .arg = h};
    if (engine_submit(e, &request, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static struct heard answer(struct setting *s)
{
    struct heard h[8] = {0};
    struct plim_error err = {0};
    struct device *device;
    struct engine *e;
    if (device_cpu_open(NULL, s->threads ? s->threads : 2, &device, &err) != PLIM_OK)
        fail_msg("%s", err.text);
    struct device copy = *device;
    struct device_ops ops = *device->ops;
    real = &copy, ops.run = run_reference;
    if (s->exact) device->ops = &ops;
    struct engine_options o = {.model = s->model,
                               .weights = s->kind,
                               .kv_type = s->kv,
                               .max_context = PROMPT + 8,
                               .parallel = 8,
                               .chunk = s->chunk,
                               .overhead = 8 << 20};
    if (engine_open(device, &o, &e, &err) != PLIM_OK) fail_msg("%s", err.text);
    s->plan = *engine_plan(e);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), s->plan.total);
    for (int i = 0; i <= s->others; i++) ask(e, i, &h[i]);
    while (engine_busy(e))
        if (engine_step(e, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), s->plan.total);
    engine_close(e);
    device->ops = copy.ops;
    device->ops->close(device);
    return h[0];
}

static const char *golden(const char *name)
{
    static char path[512];
    const char *src = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/golden/%s", src ? src : ".", name);
    return path;
}

static void expect_near_the_reference(const char *model)
{
    for (enum weights_kind kind = WEIGHTS_Q8; kind < WEIGHTS_KINDS; kind++) {
        struct setting fast = {.model = model, .kind = kind}, exact = fast;
        exact.exact = true;
        struct heard a = answer(&fast), b = answer(&exact);
        assert_int_equal(a.count, b.count);
        for (int i = 0; i < PROMPT;
             i++) /* x has 8 bits in one of them; most of these tokens are most unlikely */
            if (fabsf(a.logprob[i] - b.logprob[i]) > 0.1f + 0.03f * fabsf(b.logprob[i]))
                fail_msg("%s, %s: token %d has %g, in double precision %g", model, weights_kind_name(kind), i,
                         (double)a.logprob[i], (double)b.logprob[i]);
    }
}

static void test_near_the_reference(void **state)
{
    (void)state;
    expect_near_the_reference(golden("llama-tied"));
}

static void expect_nothing_else(const char *model)
{
    for (enum weights_kind kind = WEIGHTS_Q8; kind < WEIGHTS_KINDS; kind++) {
        struct setting first = {.model = model, .kind = kind};
        struct heard want = answer(&first);
        struct setting others[] = {
            {.others = 7}, {.others = 3, .chunk = 5}, {.chunk = 1, .threads = 1}, {.threads = 3}};
        for (size_t i = EVERY > 1 ? kind % 2 : 0; i<sizeof others / sizeof *others; i += EVERY> 1 ? 2 : 1) {
            others[i].model = first.model, others[i].kind = kind;
            struct heard got = answer(&others[i]);
            assert_int_equal(got.count, want.count);
            assert_memory_equal(got.logprob, want.logprob, sizeof got.logprob);
        }
    }
}

/* Keys and values in 8 bits: near those of fp32, and neither batch, chunks nor threads matter. */
static void test_keys_and_values(void **state)
{
    (void)state;
    static const enum dtype types[] = {DT_U8, DT_E4M3};
    struct setting plain = {.model = golden("llama-tied")};
    struct heard want = answer(&plain);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++) {
        struct setting alone = plain, others = {.model = plain.model, .others = 5, .chunk = 5, .threads = 3};
        alone.kv = others.kv = types[t];
        struct heard a = answer(&alone), b = answer(&others);
        assert_int_equal(alone.plan.kv_type, types[t]);
        /* A position of a head has 16 elements: 16 bytes and a scale instead of 64. */
        assert_int_equal(alone.plan.pool * 64, plain.plan.pool * 20);
        assert_memory_equal(a.logprob, b.logprob, sizeof a.logprob);
        for (int i = 0; i < want.count; i++) /* e4m3 has four bits of a number, a signed byte up to seven */
            if (fabsf(a.logprob[i] - want.logprob[i]) >
                (types[t] == DT_U8 ? 0.1f : 0.3f) +
                    (types[t] == DT_U8 ? 0.03f : 0.1f) * fabsf(want.logprob[i]))
                fail_msg("%s: token %d has %g, in fp32 %g", dtype_name(types[t]), i, (double)a.logprob[i],
                         (double)want.logprob[i]);
    }
}

static void test_depends_on_nothing_else(void **state)
{
    (void)state;
    expect_nothing_else(golden("llama-tied"));
}

/* --- matrices of experts, and those stored [in,out] --------------------------------------------------------- */

/* Numbers of a parameter by its place alone; norms are near 1. */
static enum plim_status get_number(void *arg, int tensor, int64_t first, void *elements, int64_t n,
                                   struct plim_error *err)
{
    const struct tape *tape = arg;
    const struct tensor *t = &tape->tensors[tensor];
    float *out = elements;
    (void)err;
    for (int64_t i = 0; i < n; i++) {
        float u = (float)rng_below(77, (uint64_t)tensor, (uint64_t)(first + i), 2001) * 1e-3f - 1.0f;
        out[i] = t->ndim > 1 ? 0.3f * u : strstr(t->label, "bias") ? 0.1f * u : 1 + 0.1f * u;
    }
    return PLIM_OK;
}

/* A model like a golden one, with sizes that are whole blocks, in a folder of its own. */
static void make_model(const char *name, char *dir)
{
    struct plim_error err = {0};
    struct model_spec spec;
    struct tape tape;
    struct model_shape shape = {.batch = 1, .time = 8, .head = HEAD_LOGITS};
    struct weights_save_options options = {.type = DT_F32};
    assert_int_equal(hf_config_load(golden(name), &spec, &err), PLIM_OK);
    spec.hidden_size = 64, spec.intermediate_size = 96, spec.num_heads = 4, spec.head_dim = 16;
    spec.num_kv_heads = spec.num_kv_heads == 3 ? 4 : 2;
    if (spec.shared_size) spec.shared_size = 32;
    spec.experts_per_token = spec.num_experts; /* none is left out for a rounding's sake */
    tape_init(&tape);
    if (model_emit(&spec, &shape, &tape, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_non_null(mkdtemp(strcpy(dir, "/tmp/plimsoll-quantise-XXXXXX")));
    if (weights_save(&tape, &spec, &(struct weights_source){get_number, &tape}, dir, &options, &err) !=
        PLIM_OK)
        fail_msg("%s", err.text);
    tape_release(&tape);
}

static void test_experts_and_columns(void **state)
{
    (void)state;
    static const char *const models[] = {"gpt2", "mixtral", "qwen2_moe"};
    for (size_t i = 0; i<sizeof models / sizeof *models; i += EVERY> 1 ? 2 : 1) {
        char dir[64], command[96];
        make_model(models[i], dir);
        struct setting s[WEIGHTS_KINDS];
        for (enum weights_kind kind = 0; kind < WEIGHTS_KINDS; kind++)
            s[kind] = (struct setting){.model = dir, .kind = kind}, answer(&s[kind]);
        /* Of matrices in blocks 34 and 18 bytes are left of 128; the two ends are a good part of so small a model. */
        int64_t plain = s[WEIGHTS_AS_IS].plan.params, q8 = s[WEIGHTS_Q8].plan.params,
                q4 = s[WEIGHTS_Q4].plan.params;
        if (!(q8 * 10 < plain * 4 && q4 < q8))
            fail_msg("%s: %lld, %lld, %lld bytes", models[i], (long long)plain, (long long)q8, (long long)q4);
        expect_near_the_reference(dir);
        expect_nothing_else(dir);
        snprintf(command, sizeof command, "rm -rf '%s'", dir);
        assert_int_equal(system(command), 0);
    }
}

/* Parameters of the plan are those of the model, byte for byte. */
static void test_plan_counts_blocks(void **state)
{
    (void)state;
    struct setting s[WEIGHTS_KINDS];
    for (enum weights_kind kind = 0; kind < WEIGHTS_KINDS; kind++) {
        s[kind] = (struct setting){.model = golden("llama-tied"), .kind = kind};
        answer(&s[kind]);
    }
    /* Rows of 64 and of the vocabulary of 128, in fp32 256 bytes, in Q8_0 68, in Q4_0 36. Tensors are 64-byte aligned. */
    int64_t plain = s[WEIGHTS_AS_IS].plan.params, q8 = s[WEIGHTS_Q8].plan.params,
            q4 = s[WEIGHTS_Q4].plan.params;
    assert_true(q4 < q8 && q8 < plain);
    int64_t rows8 = (plain - q8) / (256 - 68), rows4 = (q8 - q4) / (68 - 36);
    assert_int_equal(rows8 * (256 - 68), plain - q8); /* all matrices are in blocks */
    assert_int_equal(rows4 * (68 - 36), q8 - q4);
    assert_int_equal(rows8 - rows4, 128); /* the table, which makes the logits too, stays in 8 bits */
    assert_int_equal(plain - s[WEIGHTS_NF4].plan.params, rows4 * (256 - 36)); /* and under NF4 in fp32 */
    assert_int_equal(s[WEIGHTS_NF4].plan.params, s[WEIGHTS_FP4].plan.params);
}

static void test_devices_without_fp8(void **state)
{
    (void)state;
    struct plim_error err = {0};
    struct device *device;
    struct engine *e;
    assert_int_equal(device_cpu_open(NULL, 1, &device, &err), PLIM_OK);
    struct engine_options o = {
        .model = golden("llama-tied"), .weights = WEIGHTS_FP8, .max_context = 16, .overhead = 8 << 20};
    device->facts.flops[DT_E4M3] = 0; /* as a card before 8.9 */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(engine_open(device, &o, &e, &err), PLIM_UNSUPPORTED);
        assert_non_null(strstr(err.text, "8.9"));
        assert_null(strchr(err.text, '\n'));
        o.weights = WEIGHTS_AS_IS, o.kv_type = DT_E4M3;
    }
    device->ops->close(device);
}

/* A weight in blocks hands gradients on and has none; what makes logits stays numbers, and so do routers. */
static void expect_gradients(const char *model)
{
    struct plim_error err = {0};
    struct model_spec spec;
    struct quantisation q;
    struct tape tape;
    struct model_shape shape = {.batch = 2, .time = 8, .head = HEAD_LOSS, .training = true};
    struct quantise_wish wish = {WEIGHTS_Q8, model, true, true, true};
    int count[OP_KIND_COUNT] = {0};
    tape_init(&tape);
    assert_int_equal(hf_config_load(wish.path, &spec, &err), PLIM_OK);
    assert_int_equal(model_emit(&spec, &shape, &tape, &err), PLIM_OK);
    for (int t = 0; t < tape.ntensors; t++) /* norms are trained */
        if (tape.tensors[t].cls == CLASS_PARAM && tape.tensors[t].ndim > 1)
            tape.tensors[t].flags |= TENSOR_FROZEN;
    assert_int_equal(quantise_choose(&q, &wish, &spec, &tape, &err), PLIM_OK);
    quantise_tape(&q, &spec, &tape);
    if (pass_grad(&tape, &err) != PLIM_OK || tape_verify(&tape, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (int o = 0; o < tape.nops; o++) {
        count[tape.ops[o].kind]++;
        if (tape.ops[o].kind == OP_LINEAR_Q) assert_true(tape.ops[o].attr.keep_x);
    }
    assert_true(count[OP_LINEAR_Q] > 0);
    assert_int_equal(count[OP_LINEAR_Q_DX], count[OP_LINEAR_Q]);
    assert_int_equal(count[OP_EXPERT_LINEAR_Q_DX], count[OP_EXPERT_LINEAR_Q]);
    assert_int_equal(count[OP_LINEAR], 1 + count[OP_ROUTE]);
    for (int t = 0; t < tape.ntensors; t++)
        if (tape.tensors[t].cls == CLASS_GRAD && tape.tensors[t].owner >= 0)
            assert_true(tape.tensors[tape.tensors[t].owner].type != DT_U8);
    quantise_release(&q);
    tape_release(&tape);
}

static void test_gradients_pass_through(void **state)
{
    (void)state;
    char dir[64], command[96];
    expect_gradients(golden("llama-tied"));
    make_model("mixtral", dir);
    expect_gradients(dir);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

static int experts_in_blocks(const char *model, enum weights_kind kind, bool tables)
{
    struct plim_error err = {0};
    struct model_spec spec;
    struct quantisation q;
    struct tape tape;
    struct model_shape shape = {.batch = 2, .time = 8, .head = HEAD_LOSS};
    int count = 0;
    tape_init(&tape);
    assert_int_equal(hf_config_load(model, &spec, &err), PLIM_OK);
    assert_int_equal(model_emit(&spec, &shape, &tape, &err), PLIM_OK);
    struct quantise_wish wish = {.kind = kind, .path = model, .experts = true, .tables = tables};
    assert_int_equal(quantise_choose(&q, &wish, &spec, &tape, &err), PLIM_OK);
    quantise_tape(&q, &spec, &tape);
    for (int o = 0; o < tape.nops; o++) count += tape.ops[o].kind == OP_EXPERT_LINEAR_Q;
    quantise_release(&q);
    tape_release(&tape);
    return count;
}

/* A GPU multiplies experts in 8 bits, and so none of a type with a table. */
static void test_experts_of_a_table(void **state)
{
    (void)state;
    char dir[64], command[96];
    make_model("mixtral", dir);
    assert_true(experts_in_blocks(dir, WEIGHTS_Q8, false) > 0);
    assert_true(experts_in_blocks(dir, WEIGHTS_NF4, true) > 0);
    assert_int_equal(experts_in_blocks(dir, WEIGHTS_NF4, false), 0);
    snprintf(command, sizeof command, "rm -rf '%s'", dir);
    assert_int_equal(system(command), 0);
}

/* What has no whole blocks in a row stays as it is: nothing is refused, nothing is rounded. */
static void test_rows_without_whole_blocks(void **state)
{
    (void)state;
    struct setting plain = {.model = golden("phi3")}, q4 = {.model = plain.model, .kind = WEIGHTS_Q4};
    char path[512];
    snprintf(path, sizeof path, "%s", plain.model);
    plain.model = q4.model = path;
    struct heard a = answer(&plain), b = answer(&q4);
    assert_int_equal(plain.plan.params, q4.plan.params);
    assert_memory_equal(a.logprob, b.logprob, sizeof a.logprob);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_panels),
        cmocka_unit_test(test_written_blocks),
        cmocka_unit_test(test_levels_agree),
        cmocka_unit_test(test_few_rows_in_place),
        cmocka_unit_test(test_near_the_reference),
        cmocka_unit_test(test_keys_and_values),
        cmocka_unit_test(test_depends_on_nothing_else),
        cmocka_unit_test(test_plan_counts_blocks),
        cmocka_unit_test(test_devices_without_fp8),
        cmocka_unit_test(test_gradients_pass_through),
        cmocka_unit_test(test_rows_without_whole_blocks),
        cmocka_unit_test(test_experts_and_columns),
        cmocka_unit_test(test_experts_of_a_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
