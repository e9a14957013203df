/* run-tests: not=tsan */
/* test_model.c - forward tapes of specs, rotary frequencies and initial values. */
#include "model_configs.h"
#include "store/safetensors.h"
#include "tape/pass.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const golden[] = {
    "llama-tied", "llama-untied", "mistral", "qwen2",   "gpt2",      "qwen3", "gemma2",    "gemma3",
    "phi3",       "olmo2",        "smollm3", "mixtral", "qwen3_moe", "olmoe", "qwen2_moe", "llama-sparse"};
enum { GOLDEN = sizeof golden / sizeof golden[0] };

static const char *golden_path(char *buf, size_t size, const char *name, const char *file)
{
    const char *root = getenv("SRC_DIR");
    snprintf(buf, size, "%s/tests/golden/%s/%s", root ? root : ".", name, file);
    return buf;
}

/* --- rotary frequencies -----------------------------------------------------------------------------------
 */

static void expect_near(float a, float b)
{
    if (fabsf(a - b) > 3e-7f * fabsf(b)) print_error("%.9g is not %.9g\n", (double)a, (double)b);
    assert_true(fabsf(a - b) <= 3e-7f * fabsf(b));
}

/* Values of transformers for the three bands of LLaMA-3.2-1B, and for linear scaling. */
static void known_frequencies(void **state)
{
    static const struct {
        int index;
        float value;
    } llama3[] = {{0, 1.0f},
                  {1, 0.663601279f},
                  {14, 0.00321144611f},
                  {15, 0.00129054801f},
                  {16, 0.000429556705f},
                  {17, 9.70828623e-05f},
                  {18, 1.94616387e-05f},
                  {31, 9.41830649e-08f}};
    static const float linear[8] = {0.25f,          0.079056941f,    0.0250000004f,   0.00790569466f,
                                    0.00249999994f, 0.000790569466f, 0.000250000012f, 7.90569466e-05f};
    struct model_spec spec;
    float out[32];
    (void)state;
    expect_spec(llama_1b, &spec);
    model_rope_frequencies(&spec, 0, out);
    for (size_t i = 0; i < sizeof llama3 / sizeof llama3[0]; i++)
        expect_near(out[llama3[i].index], llama3[i].value);
    expect_spec(LLAMA ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4.0}}", &spec);
    model_rope_frequencies(&spec, 0, out);
    for (int i = 0; i < 8; i++) expect_near(out[i], linear[i]);
}

static void golden_frequencies(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN; i++) {
        struct model_spec spec;
        struct safetensors set;
        struct plim_error err = {0};
        char path[512];
        float want[64], got[64];
        assert_int_equal(
            hf_config_load(golden_path(path, sizeof path, golden[i], "config.json"), &spec, &err), PLIM_OK);
        if (!model_uses_rope(&spec)) continue;
        golden_path(path, sizeof path, golden[i], "expected.safetensors");
        assert_int_equal(safetensors_open(path, &set, &err), PLIM_OK);
        const struct safetensor *t = safetensors_find(&set, "inv_freq");
        assert_non_null(t);
        int half = model_rotary_size(&spec) / 2;
        assert_int_equal(t->count, model_rope_sets(&spec) * half);
        assert_int_equal(safetensors_read_all(&set, t, DT_F32, want, &err), PLIM_OK);
        for (int k = 0; k < model_rope_sets(&spec); k++) model_rope_frequencies(&spec, k, got + k * half);
        for (int k = 0; k < t->count; k++) expect_near(got[k], want[k]);
        safetensors_close(&set);
    }
}

/* Short rows of data that have long ones rotate as the long ones do. */
static void longest_row_decides_rotation(void **state)
{
    (void)state;
    struct model_spec spec;
    struct plim_error err;
    expect_spec(
        PHI3
        ",\"original_max_position_embeddings\":64,\"max_position_embeddings\":256,\"rope_scaling\":{\"type\":"
        "\"longrope\",\"short_factor\":[1,1,1,1,1,1,1,2],\"long_factor\":[1,1,1,1,1,1,1,4]}}",
        &spec);
    static const struct {
        int64_t time, longest;
        bool is_long;
    } cases[] = {{32, 0, false}, {32, 64, false}, {32, 128, true}, {128, 0, true}, {128, 32, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct tape tape;
        tape_init(&tape);
        struct model_shape shape = {.batch = 1, .time = cases[i].time, .longest = cases[i].longest};
        assert_int_equal(model_emit(&spec, &shape, &tape, &err), PLIM_OK);
        assert_int_equal(tape_find(&tape, "rope.table.other", -1) >= 0, cases[i].is_long);
        assert_int_equal(tape_find(&tape, "rope.table", -1) >= 0, !cases[i].is_long);
        tape_release(&tape);
    }
}

/* --- tapes ------------------------------------------------------------------------------------------------
 */

static void load_golden(int i, struct model_spec *spec)
{
    char path[512];
    struct plim_error err = {0};
    enum plim_status status =
        hf_config_load(golden_path(path, sizeof path, golden[i], "config.json"), spec, &err);
    if (status != PLIM_OK) print_error("%s\n", err.text);
    assert_int_equal(status, PLIM_OK);
}

static void emit(const struct model_spec *spec, const struct model_shape *shape, struct tape *tape)
{
    struct plim_error err = {0};
    tape_init(tape);
    enum plim_status status = model_emit(spec, shape, tape, &err);
    if (status == PLIM_OK) status = tape_verify(tape, &err);
    if (status != PLIM_OK) print_error("%s\n", err.text);
    assert_int_equal(status, PLIM_OK);
}

static int64_t params_of(const struct tape *tape)
{
    int64_t n = 0;
    for (int i = 0; i < tape->ntensors; i++)
        if (tape->tensors[i].cls == CLASS_PARAM) n += tensor_count(&tape->tensors[i]);
    return n;
}

static const struct op *op_writing(const struct tape *tape, int id)
{
    for (int i = 0; i < tape->nops; i++)
        for (int k = 0; k < OP_MAX_OUT; k++)
            if (tape->ops[i].out[k] == id) return &tape->ops[i];
    return NULL;
}

/* Layers are marked, parts are right, residuals ride on linears and sums of experts, every parameter is counted once and read. */
static void check_ops(const struct model_spec *spec, const struct tape *tape)
{
    int layer = -1, adds = 0, sums = 0;
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        bool head = op->kind == OP_XENT || ((op->kind == OP_LINEAR || op->kind == OP_ACT) && op->layer < 0);
        assert_int_equal(op->part, head ? PART_HEAD : PART_FORWARD);
        assert_true(op->layer == layer || op->layer == layer + 1 || op->layer == -1);
        if (op->layer >= 0) layer = op->layer;
        if (op->kind == OP_LINEAR && op->in[LINEAR_ADD] >= 0) adds++;
        if (op->kind == OP_COMBINE && op->in[COMBINE_ADD] >= 0) adds++;
        if (op->kind == OP_ADD) sums++; /* only where a norm stands between */
    }
    assert_int_equal(layer, spec->num_layers - 1);
    assert_true(adds + sums == 2 * spec->num_layers && (adds == 0 || sums == 0));
    assert_int_equal(params_of(tape), model_param_count(spec));
}

static void training_tapes(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN; i++) {
        struct model_spec spec;
        struct tape tape;
        load_golden(i, &spec);
        emit(&spec, &(struct model_shape){.batch = 2, .time = 24, .head = HEAD_LOSS}, &tape);
        check_ops(&spec, &tape);
        int loss = tape_find(&tape, "loss", -1);
        assert_true(loss >= 0 && (tape.tensors[loss].flags & TENSOR_OUTPUT));
        assert_int_equal(op_writing(&tape, loss)->accumulate, ACC_AFTER_FIRST);
        assert_true(tape_find(&tape, "targets", -1) >= 0 && tape_find(&tape, "step.scalars", -1) >= 0);
        assert_int_equal(tape_find(&tape, "rope.inv_freq", -1) >= 0, model_uses_rope(&spec));
        assert_int_equal(tape.loop_end, tape.nops);
        tape_release(&tape);
    }
}

/* The passes accept what the builders emit. */
static void training_passes(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN; i++) {
        struct model_spec spec;
        struct tape tape;
        struct plim_error err = {0};
        load_golden(i, &spec);
        emit(&spec, &(struct model_shape){.batch = 2, .time = 24, .head = HEAD_LOSS}, &tape);
        struct update_options update = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
        enum plim_status status = pass_precision(&tape, PRECISION_BF16, &err);
        if (status == PLIM_OK) status = pass_loss_chunks(&tape, 2, &err);
        if (status == PLIM_OK) status = pass_grad(&tape, &err);
        if (status == PLIM_OK)
            status = pass_recompute(&tape, &(struct recompute_options){RECOMPUTE_FULL, 0}, &err);
        if (status == PLIM_OK) status = pass_update(&tape, &update, &err);
        if (status == PLIM_OK) status = tape_verify(&tape, &err);
        if (status != PLIM_OK) print_error("%s: %s\n", golden[i], err.text);
        assert_int_equal(status, PLIM_OK);
        int64_t grads = 0;
        for (int k = 0; k < tape.ntensors; k++)
            if (tape.tensors[k].cls == CLASS_GRAD && tape.tensors[k].view_of < 0)
                grads += tensor_count(&tape.tensors[k]);
        assert_int_equal(grads, model_param_count(&spec));
        tape_release(&tape);
    }
}

static void logits_tapes(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN; i++) {
        struct model_spec spec;
        struct tape tape;
        load_golden(i, &spec);
        emit(&spec, &(struct model_shape){.batch = 2, .time = 7, .head = HEAD_LOGITS}, &tape);
        check_ops(&spec, &tape);
        const struct tensor *logits = &tape.tensors[tape_find(&tape, "logits", -1)];
        assert_true(logits->flags & TENSOR_OUTPUT);
        assert_int_equal(tensor_count(logits), 2 * 7 * spec.vocab_size);
        assert_int_equal(tape_find(&tape, "targets", -1), -1);
        tape_release(&tape);
    }
}

static void check_cached(const struct model_spec *spec, const struct model_shape *shape, int64_t rows)
{
    struct tape tape;
    emit(spec, shape, &tape);
    check_ops(spec, &tape);
    assert_int_equal(tensor_count(&tape.tensors[tape_find(&tape, "logits", -1)]), rows * spec->vocab_size);
    for (int layer = 0; layer < spec->num_layers; layer++) {
        int k = tape_find(&tape, "kv.k", layer), v = tape_find(&tape, "kv.v", layer);
        assert_true(k >= 0 && v >= 0 && k != v);
        assert_int_equal(tape.tensors[k].cls, CLASS_KV);
        assert_int_equal(tape.tensors[k].dim[1], shape->kv_length);
    }
    for (int i = 0; i < tape.nops; i++) {
        const struct op *op = &tape.ops[i];
        if (op->kind != OP_ATTN) continue;
        assert_true(op->attr.cached);
        assert_int_equal(op->attr.window, model_layer_window(spec, op->layer));
        assert_int_equal(op->in[ATTN_K], tape_find(&tape, "kv.k", op->layer));
    }
    struct plim_error err = {0};
    assert_int_equal(pass_precision(&tape, PRECISION_BF16, &err), PLIM_OK);
    assert_int_equal(tape_verify(&tape, &err), PLIM_OK);
    tape_release(&tape);
}

static void cached_tapes(void **state)
{
    (void)state;
    for (int i = 0; i < GOLDEN; i++) {
        struct model_spec spec;
        load_golden(i, &spec);
        check_cached(&spec, &(struct model_shape){1, 9, 40, HEAD_LAST_LOGITS}, 1);
        check_cached(&spec, &(struct model_shape){3, 1, 40, HEAD_LAST_LOGITS}, 3);
        check_cached(&spec, &(struct model_shape){2, 5, 40, HEAD_LOGITS}, 10);
    }
}

/* The last token's hidden state is the last row of the norm's output. */
static void last_row_is_a_view(void **state)
{
    struct model_spec spec;
    struct tape tape;
    (void)state;
    load_golden(0, &spec);
    emit(&spec, &(struct model_shape){1, 9, 0, HEAD_LAST_LOGITS}, &tape);
    const struct op *op = op_writing(&tape, tape_find(&tape, "logits", -1));
    const struct tensor *x = &tape.tensors[op->in[LINEAR_X]];
    assert_int_equal(x->view_of, tape_find(&tape, "norm", -1));
    assert_int_equal(x->view_offset, 8 * spec.hidden_size * 4);
    assert_int_equal(tensor_count(x), spec.hidden_size);
    tape_release(&tape);
}

static void shapes_are_checked(void **state)
{
    static const struct {
        struct model_shape shape;
        const char *part;
    } cases[] = {{{0, 8, 0, HEAD_LOSS}, "at least 1"},
                 {{1, 0, 0, HEAD_LOSS}, "at least 1"},
                 {{1, 129, 0, HEAD_LOSS}, "'max_position_embeddings' 128"},
                 {{1, 8, 129, HEAD_LOGITS}, "'max_position_embeddings' 128"},
                 {{INT64_C(1) << 40, 8, 0, HEAD_LOSS}, "2^31 tokens"},
                 {{1, 8, 4, HEAD_LOGITS}, "cannot take 8 tokens"},
                 {{1, 8, 16, HEAD_LOSS}, "no loss"},
                 {{2, 8, 0, HEAD_LAST_LOGITS}, "batch 1 or time 1"}};
    struct model_spec spec;
    (void)state;
    load_golden(0, &spec);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct tape tape;
        struct plim_error err = {0};
        tape_init(&tape);
        assert_int_not_equal(model_emit(&spec, &cases[i].shape, &tape, &err), PLIM_OK);
        if (!strstr(err.text, cases[i].part)) print_error("%s\n", err.text);
        assert_non_null(strstr(err.text, cases[i].part));
        tape_release(&tape);
    }
}

static void initial_values(void **state)
{
    struct model_spec spec;
    (void)state;
    expect_spec(llama_1b, &spec);
    assert_int_equal(model_param_init(&spec, "model.norm.weight").kind, INIT_ONES);
    assert_true(model_param_init(&spec, "model.layers.%d.mlp.down_proj.weight").std == 0.02f);
    expect_spec(gpt2_small, &spec);
    assert_int_equal(model_param_init(&spec, "transformer.h.%d.attn.c_attn.bias").kind, INIT_ZEROS);
    assert_true(model_param_init(&spec, "transformer.h.%d.attn.c_attn.weight").std == 0.02f);
    struct param_init narrow = model_param_init(&spec, "transformer.h.%d.mlp.c_proj.weight");
    assert_int_equal(narrow.kind, INIT_NORMAL);
    assert_true(fabsf(narrow.std - 0.02f / sqrtf(24.0f)) < 1e-8f);
}

static void architectures_are_listed(void **state)
{
    (void)state;
    assert_null(model_architecture("albert"));
    assert_null(model_architecture_at(-1));
    assert_null(model_architecture_at(1000));
    for (int i = 0; model_architecture_at(i); i++)
        assert_ptr_equal(model_architecture(model_architecture_name(model_architecture_at(i))),
                         model_architecture_at(i));
}

/* transformers' _compute_yarn_parameters in double precision; truncate: whole borders. */
static double yarn_frequency(int i, int dim, double base, double factor, double length, double fast,
                             double slow, bool truncate)
{
    double low = dim * log(length / (fast * 2 * M_PI)) / (2 * log(base));
    double high = dim * log(length / (slow * 2 * M_PI)) / (2 * log(base));
    if (truncate) low = floor(low), high = ceil(high);
    low = low < 0 ? 0 : low, high = high > dim - 1 ? dim - 1 : high;
    if (low == high) high += 0.001;
    double ramp = (i - low) / (high - low), power = pow(base, 2.0 * i / dim);
    ramp = ramp < 0 ? 0 : ramp > 1 ? 1 : ramp;
    return ramp / (factor * power) + (1 - ramp) / power;
}

static void yarn_borders(void **state)
{
    (void)state;
    bool apart = false;
    float got[2][64];
    for (int truncate = 0; truncate < 2; truncate++) {
        struct model_spec spec;
        char text[1024];
        snprintf(text, sizeof text,
                 LLAMA ",\"head_dim\":32,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4,"
                       "\"original_max_position_embeddings\":64,\"beta_fast\":8,\"beta_slow\":1.5%s}}",
                 truncate ? "" : ",\"truncate\":false");
        expect_spec(text, &spec);
        model_rope_frequencies(&spec, 0, got[truncate]);
        for (int i = 0; i < 16; i++) {
            double want = yarn_frequency(i, 32, spec.rope_theta, 4, 64, 8, 1.5, truncate);
            if (!(fabs(got[truncate][i] - want) < 1e-6 * want))
                fail_msg("truncate %d, %d: %.9g, not %.9g", truncate, i, got[truncate][i], want);
        }
    }
    for (int i = 0; i < 16; i++) apart = apart || fabs(got[0][i] / got[1][i] - 1) > 0.01;
    assert_true(apart);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_frequencies),
        cmocka_unit_test(golden_frequencies),
        cmocka_unit_test(longest_row_decides_rotation),
        cmocka_unit_test(training_tapes),
        cmocka_unit_test(training_passes),
        cmocka_unit_test(logits_tapes),
        cmocka_unit_test(cached_tapes),
        cmocka_unit_test(last_row_is_a_view),
        cmocka_unit_test(shapes_are_checked),
        cmocka_unit_test(initial_values),
        cmocka_unit_test(yarn_borders),
        cmocka_unit_test(architectures_are_listed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
