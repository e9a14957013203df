/* run-tests: not=tsan */
/* test_passes.c - what each pass promises about the tape, and that none of them changes a single bit of a
 * result. */
#include "device/cpu/gemm.h"
#include "model/hf.h"
#include "support/golden.h"
#include "support/model_run.h"
#include "support/pace.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static const char *const models[] = {"llama-tied", "llama-untied", "mistral", "qwen2",
                                     "gpt2",       "gemma3",       "phi3",    "olmo2"};
#define NMODELS (sizeof models / sizeof *models)

static const struct recompute_options ways[] = {{RECOMPUTE_NONE, 0},
                                                {RECOMPUTE_SELECTIVE, 0},
                                                {RECOMPUTE_FULL, 0},
                                                {RECOMPUTE_SELECTIVE, 1},
                                                {RECOMPUTE_NONE, 1}};
#define NWAYS (sizeof ways / sizeof *ways)

_Static_assert(LOSS_CHUNK_ROWS % GEMM_KC == 0, "slices of the loss are whole blocks of the matmul");

/* --- results --- */

static void compare_all(const char *model, enum precision precision, int64_t accumulation)
{
    struct model_run plain, run;
    struct rig_options o = {.precision = precision, .loss_chunks = 1, .accumulation = accumulation};
    model_run(&plain, model, &o, 2);
    assert_true(isfinite(plain.loss[0]) && plain.loss[0] != plain.loss[1]);
    const size_t inside = accumulation > 1 ? 1 : 2; /* ways of updating */
    for (size_t k = strlen(model) % SOME; k < NWAYS * 2 * inside; k += SOME) {
        size_t w = k / inside / 2;
        o.recompute = ways[w], o.loss_chunks = k / inside % 2 ? 3 : 1, o.in_backward = k % inside;
        model_run(&run, model, &o, 2);
        if (!model_run_same(&plain, &run))
            fail_msg("%s: recompute %zu, %d slices, in backward %d: loss %.17g, not %.17g", model, w,
                     o.loss_chunks, o.in_backward, run.loss[1], plain.loss[1]);
    }
}

static void test_results_are_bit_identical(void **state)
{
    (void)state;
    for (size_t m = 0; m < NMODELS; m++) compare_all(models[m], PRECISION_F32, 1);
}

static void test_results_are_bit_identical_bf16(void **state)
{
    (void)state;
    compare_all("llama-tied", PRECISION_BF16, 1);
    compare_all("gpt2", PRECISION_BF16, 1);
}

/* fp8: however its numbers are kept or made again. Rows and widths of these models are multiples of 16. */
static void compare_fp8(const char *model, int64_t accumulation)
{
    struct model_run plain, run;
    struct rig_options o = {.precision = PRECISION_F8, .loss_chunks = 1, .accumulation = accumulation};
    model_run(&plain, model, &o, 2);
    assert_true(isfinite(plain.loss[0]) && plain.loss[0] != plain.loss[1]);
    for (size_t w = 0; w < NWAYS; w++)
        for (int k = EVERY > 1 ? (int)w % 4 : 0; k<(accumulation > 1 ? 2 : 4); k += EVERY> 1 ? 4 : 1) {
            o.recompute = ways[w], o.keep_fp8 = k % 2, o.in_backward = k / 2;
            model_run(&run, model, &o, 2);
            if (!model_run_same(&plain, &run))
                fail_msg("%s: recompute %zu, kept %d: loss %.17g, not %.17g", model, w, k % 2, run.loss[1],
                         plain.loss[1]);
        }
    struct rig_options bf16 = {.precision = PRECISION_BF16, .loss_chunks = 1, .accumulation = accumulation};
    model_run(&run, model, &bf16, 2);
    if (plain.loss[0] == run.loss[0] || fabs(plain.loss[0] - run.loss[0]) > 0.01 * run.loss[0])
        fail_msg("%s: loss %.9g, in bf16 %.9g", model, plain.loss[0], run.loss[0]);
}

static void test_results_are_bit_identical_fp8(void **state)
{
    (void)state;
    compare_fp8("llama-tied", 1);
    compare_fp8("gpt2", 1);
    compare_fp8("llama-tied", 2);
}

/* What is carried from micro-batch to micro-batch is not overwritten, whatever else lives in the arena. */
static void test_accumulation(void **state)
{
    (void)state;
    for (size_t m = 0; m < NMODELS; m++) {
        struct model_run whole, parts;
        struct rig_options o = {.loss_chunks = 1};
        model_run(&whole, models[m], &o, 2);
        o.accumulation = 4;
        model_run(&parts, models[m], &o, 2);
        for (int i = 0; i < 2; i++) assert_true(fabs(whole.loss[i] - parts.loss[i]) < 1e-5 * whole.loss[i]);
    }
    compare_all("llama-tied", PRECISION_F32, 2);
    compare_all("gpt2", PRECISION_BF16, 2);
}

/* --- tapes --- */

static struct plim_error err;

static void make_tape(struct tape *tape, const char *model, const struct recompute_options *recompute,
                      const struct update_options *update, const struct offload_options *offload)
{
    char path[512];
    struct model_spec spec;
    struct model_shape shape = {.batch = 32, .time = 40, .head = HEAD_LOSS};
    tape_init(tape);
    bool good = hf_config_load(golden_model(model, path, sizeof path), &spec, &err) == PLIM_OK &&
                model_emit(&spec, &shape, tape, &err) == PLIM_OK &&
                pass_precision(tape, PRECISION_BF16, &err) == PLIM_OK &&
                pass_loss_chunks(tape, 3, &err) == PLIM_OK && pass_grad(tape, &err) == PLIM_OK &&
                pass_recompute(tape, recompute, &err) == PLIM_OK;
    if (good && update) good = pass_update(tape, update, &err) == PLIM_OK;
    if (good && offload) good = pass_offload(tape, offload, &err) == PLIM_OK;
    if (good) good = tape_verify(tape, &err) == PLIM_OK;
    if (!good) fail_msg("%s", err.text);
}

static const struct update_options adamw = {
    .optimizer = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};

enum { FIRST }; /* output, which every op of a forward part has */

static bool same_work(const struct tape *t, const struct op *a, const struct op *b)
{
    return a->kind == b->kind && a->layer == b->layer &&
           t->tensors[a->out[FIRST]].label == t->tensors[b->out[FIRST]].label;
}

/* Every op is made again at most once, after the forward part and before what reads it (tape_verify). */
static void test_nothing_is_made_twice(void **state)
{
    (void)state;
    for (size_t m = 0; m < NMODELS; m++)
        for (size_t w = 0; w < NWAYS; w++) {
            struct tape tape;
            int again = 0;
            make_tape(&tape, models[m], &ways[w], NULL, NULL);
            for (int i = 0; i < tape.nops; i++) {
                if (tape.ops[i].part != PART_RECOMPUTE) continue;
                int forward = 0, recomputed = 0;
                for (int k = 0; k < tape.nops; k++) {
                    if (!same_work(&tape, &tape.ops[i], &tape.ops[k])) continue;
                    forward += tape.ops[k].part == PART_FORWARD;
                    recomputed += tape.ops[k].part == PART_RECOMPUTE;
                }
                assert_true(forward >= 1 && recomputed <= forward);
                again++;
            }
            assert_true((again > 0) == (w > 0));
            tape_release(&tape);
        }
}

/* Ops of one part that read the tensor. */
static int readers(const struct tape *tape, int id, enum op_part part)
{
    int count = 0;
    for (int i = 0; i < tape->nops; i++)
        for (int k = 0; k < OP_MAX_IN; k++) count += tape->ops[i].part == part && tape->ops[i].in[k] == id;
    return count;
}

/* Rows of all experts are several times a layer's: they are dispatched again for the products that are made again and for each
 * gradient of weights, which goes before the gradient of the rows. */
static void test_rows_of_experts_are_not_kept(void **state)
{
    (void)state;
    static const struct recompute_options full = {RECOMPUTE_FULL, 0}, some = {RECOMPUTE_SELECTIVE, 1};
    for (int w = 0; w < 2; w++) {
        struct tape tape;
        int gradients = 0;
        make_tape(&tape, "olmoe", w ? &some : &full, NULL, NULL);
        for (int i = 0; i < tape.nops; i++) {
            const struct op *op = &tape.ops[i];
            if (op->kind != OP_DISPATCH || op->part != PART_RECOMPUTE) continue;
            int again = readers(&tape, op->out[DISPATCH_Y], PART_RECOMPUTE),
                back = readers(&tape, op->out[DISPATCH_Y], PART_BACKWARD);
            assert_true((again > 0) != (back > 0) && back <= 1);
            if (!back) continue;
            assert_true(op[1].kind == OP_EXPERT_LINEAR_DW && op[2].kind == OP_EXPERT_LINEAR_DX);
            gradients++;
        }
        assert_true(gradients > 0);
        tape_release(&tape);
    }
}

/* Whether a forward op of another layer reads the tensor. */
static bool crosses(const struct tape *tape, int id, int layer)
{
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (op->part != PART_FORWARD && op->part != PART_HEAD) continue;
        for (int k = 0; k < OP_MAX_IN; k++)
            if (op->in[k] >= 0 && tape_root(tape, op->in[k]) == id && op->layer != layer) return true;
    }
    return false;
}

/* In full, backward of a layer reads nothing of that layer's forward but what crosses into it. */
static int some(struct tape *tape, enum tensor_class cls)
{
    return tape_tensor(
        tape,
        &(struct tensor){
            .label = "t", .type = DT_BF16, .cls = cls, .ndim = 2, .dim = {8, 8}, .view_of = -1, .owner = -1});
}

/* An adapter's weight gradient wants h; the gradient of its base's input comes next, and then that of what made h. */
static void test_a_gated_unit_is_left_by_its_gradient(void **state)
{
    (void)state;
    struct tape tape;
    struct op glu = tape_op(OP_GLU, 0), dw = tape_op(OP_LINEAR_DW, 0), dx = tape_op(OP_LINEAR_DX, 0),
              back = tape_op(OP_GLU_BWD, 0);
    tape_init(&tape);
    glu.in[GLU_GATE] = back.in[GLU_BWD_GATE] = some(&tape, CLASS_ACT);
    glu.in[GLU_UP] = back.in[GLU_BWD_UP] = some(&tape, CLASS_ACT);
    glu.out[GLU_H] = dw.in[LINEAR_DW_X] = some(&tape, CLASS_ACT);
    dw.in[LINEAR_DW_DY] = dx.in[LINEAR_DX_DY] = some(&tape, CLASS_ACT);
    dx.in[LINEAR_DX_W] = some(&tape, CLASS_PARAM), dw.out[LINEAR_DW_DW] = some(&tape, CLASS_GRAD);
    dx.out[LINEAR_DX_DX] = back.in[GLU_BWD_DH] = some(&tape, CLASS_ACT);
    for (int i = GLU_BWD_DGATE; i <= GLU_BWD_DUP; i++) back.out[i] = some(&tape, CLASS_ACT);
    dw.part = dx.part = back.part = PART_BACKWARD;
    tape_append(&tape, &glu), tape_append(&tape, &dw), tape_append(&tape, &dx), tape_append(&tape, &back);
    assert_int_equal(pass_recompute(&tape, &(struct recompute_options){RECOMPUTE_SELECTIVE, 0}, &err),
                     PLIM_OK);
    assert_int_equal(tape.nops, 4);
    assert_int_equal(tape.ops[1].kind, OP_LINEAR_DX);
    assert_int_equal(tape.ops[2].kind, OP_GLU_BWD);
    assert_int_equal(tape.ops[3].kind, OP_LINEAR_DW);
    assert_true(tape.ops[2].out[GLU_BWD_H] >= 0);
    assert_int_equal(tape.ops[3].in[LINEAR_DW_X], tape.ops[2].out[GLU_BWD_H]);
    tape_release(&tape);
}

static void test_full_drops_everything(void **state)
{
    (void)state;
    for (size_t m = 0; m < NMODELS; m++) {
        struct tape tape;
        make_tape(&tape, models[m], &ways[2], NULL, NULL);
        int *producer = calloc((size_t)tape.ntensors, sizeof *producer);
        assert_non_null(producer);
        for (int i = 0; i < tape.nops; i++)
            for (int o = 0; o < OP_MAX_OUT; o++)
                if (tape.ops[i].out[o] >= 0 && tape.ops[i].part == PART_FORWARD)
                    producer[tape.ops[i].out[o]] = i + 1;
        for (int i = 0; i < tape.nops; i++) {
            if (tape.ops[i].part != PART_BACKWARD) continue;
            for (int k = 0; k < OP_MAX_IN; k++) {
                int id = tape.ops[i].in[k];
                if (id < 0 || !producer[id] || tape.tensors[id].cls != CLASS_ACT) continue;
                int layer = tape.ops[producer[id] - 1].layer;
                if (layer >= 0 && !crosses(&tape, id, layer))
                    fail_msg("%s: op %d keeps tensor %d", models[m], i, id);
            }
        }
        free(producer);
        tape_release(&tape);
    }
}

/* Layers that were not asked for keep what they have. */
static void test_only_layers_asked_for(void **state)
{
    (void)state;
    for (size_t m = 0; m < NMODELS; m++)
        for (int first = 0; first < 2; first++) {
            struct tape tape;
            int again = 0;
            make_tape(&tape, models[m], &(struct recompute_options){RECOMPUTE_NONE, 1, first}, NULL, NULL);
            for (int i = 0; i < tape.nops; i++) {
                if (tape.ops[i].part != PART_RECOMPUTE) continue;
                assert_int_equal(tape.ops[i].layer, first);
                again++;
            }
            assert_true(again > 0);
            tape_release(&tape);
        }
}

/* Small parameters keep moments of 32 bits. */
static void test_least_of_8_bits(void **state)
{
    (void)state;
    struct tape tape;
    struct update_options update = adamw;
    int at_limit = 0, below = 0;
    update.optimizer = OPTIMIZER_ADAMW8;
    make_tape(&tape, "llama-tied", &ways[0], &update, NULL);
    for (int i = 0; i < tape.nops; i++) {
        int kind = tape.ops[i].kind;
        if (kind != OP_ADAMW && kind != OP_ADAMW8) continue;
        int64_t n = tensor_count(&tape.tensors[tape.ops[i].in[ADAMW_P]]);
        assert_int_equal(kind == OP_ADAMW8, n >= ADAMW8_LEAST);
        at_limit += n == ADAMW8_LEAST, below += n < ADAMW8_LEAST;
    }
    assert_true(at_limit > 0 && below > 0);
    tape_release(&tape);
}

/* One update per parameter; inside backward it is the last op that touches parameter or gradient. */
static void test_updates(void **state)
{
    (void)state;
    for (size_t m = 0; m < NMODELS; m++)
        for (int in_backward = 0; in_backward < 2; in_backward++) {
            struct tape tape;
            struct update_options update = adamw;
            update.in_backward = in_backward, update.global_norm = !in_backward;
            make_tape(&tape, models[m], &ways[2], &update, NULL);
            int grads = 0, updates = 0;
            for (int i = 0; i < tape.ntensors; i++) grads += tape.tensors[i].cls == CLASS_GRAD;
            for (int i = 0; i < tape.nops; i++) {
                if (tape.ops[i].kind != OP_ADAMW) continue;
                updates++;
                assert_true(i < tape.loop_end ? in_backward : !in_backward);
                for (int k = i + 1; k < tape.nops; k++)
                    for (int o = 0; o < OP_MAX_IN; o++)
                        if (tape.ops[k].in[o] >= 0)
                            assert_true(tape.ops[k].in[o] != tape.ops[i].in[ADAMW_P] &&
                                        tape.ops[k].in[o] != tape.ops[i].in[ADAMW_G]);
            }
            assert_true(grads > 0 && grads == updates);
            tape_release(&tape);
        }
}

/* Adafactor's statistics of queries, keys and values are each part's own, as those of the files' parameters are. Each row
 * of the joint parameter is updated once, wherever state, gradients and parameters are. */
static void test_adafactor_by_part(void **state)
{
    (void)state;
    static const struct offload_options tiers[] = {
        {.slice_bytes = 1000},
        {.state_tier = TIER_DISK, .grad_tier = TIER_DISK, .slice_bytes = 1000},
        {.state_tier = TIER_HOST, .param_tier = TIER_HOST, .slice_bytes = 1 << 20}};
    for (size_t m = 0; m < NMODELS * 3; m++) {
        struct tape tape;
        struct model_spec spec;
        char path[512];
        if (hf_config_load(golden_model(models[m % NMODELS], path, sizeof path), &spec, &err) != PLIM_OK)
            fail_msg("%s", err.text);
        int64_t q = (int64_t)spec.num_heads * spec.head_dim, k = (int64_t)spec.num_kv_heads * spec.head_dim;
        struct update_options update = {
            .optimizer = OPTIMIZER_ADAFACTOR, .beta1 = 0.9f, .limit = 1, .joint_rows = {q, k, k}};
        make_tape(&tape, models[m % NMODELS], &ways[0], &update, &tiers[m / NMODELS]);
        int stats = 0, wanted = 0;
        int64_t joint = 0, updated = 0, first = 0;
        for (int i = 0; i < tape.ntensors; i++) {
            const struct tensor *t = &tape.tensors[i];
            bool whole = t->cls == CLASS_PARAM && t->view_of < 0, parts = whole && strchr(t->label, '{');
            wanted += whole ? parts ? 3 : 1 : 0, joint += parts ? tensor_count(t) : 0;
        }
        for (int i = 0; i < tape.nops; i++) {
            const struct op *op = &tape.ops[i];
            stats += op->kind == OP_FACTOR_STAT;
            if (op->kind != OP_ADAFACTOR) continue;
            const struct tensor *p = &tape.tensors[op->in[ADAFACTOR_P]];
            if (!strchr(p->label, '{')) continue;
            assert_true(op->attr.first == 0 || op->attr.first == first); /* slices follow one another */
            first = op->attr.first + tensor_count(p), updated += tensor_count(p);
        }
        assert_int_equal(stats, wanted);
        assert_true(updated == joint);
        tape_release(&tape);
    }
}

/* A of an adapter on queries, keys and values is three matrices of as many rows, B has the rows of the product. */
static void test_adafactor_of_joint_adapters(void **state)
{
    (void)state;
    enum { R = 4, IN = 8, Q = 16, K = 8 };
    static const int64_t rows[2][UPDATE_PARTS] = {{R, R, R}, {Q, K, K}};
    const struct update_options update = {
        .optimizer = OPTIMIZER_ADAFACTOR, .limit = 1, .joint_rows = {Q, K, K}};
    struct tape tape;
    struct tensor t = {.label = "step.scalars",
                       .layer = -1,
                       .cls = CLASS_IO,
                       .ndim = 1,
                       .dim = {SCALAR_COUNT},
                       .view_of = -1,
                       .owner = -1};
    tape_init(&tape);
    tape_tensor(&tape, &t);
    for (int b = 0; b < 2; b++) {
        t.label = b ? "q.{q,k,v}_proj.lora_B.weight" : "q.{q,k,v}_proj.lora_A.weight";
        t.cls = CLASS_PARAM, t.flags = TENSOR_KEPT | TENSOR_ADDED, t.owner = -1;
        t.ndim = 2, t.dim[0] = b ? Q + 2 * K : 3 * R, t.dim[1] = b ? R : IN;
        int param = tape_tensor(&tape, &t);
        t.cls = CLASS_GRAD, t.flags = 0, t.owner = param;
        tape_tensor(&tape, &t);
    }
    assert_int_equal(pass_update(&tape, &update, &err), PLIM_OK);
    assert_int_equal(tape.nops, 2 * 2 * UPDATE_PARTS);
    for (int i = 0; i < tape.nops; i += 2) {
        const struct op *stat = &tape.ops[i], *step = &tape.ops[i + 1];
        int b = i / 2 / UPDATE_PARTS, part = i / 2 % UPDATE_PARTS;
        assert_true(stat->kind == OP_FACTOR_STAT && step->kind == OP_ADAFACTOR);
        assert_int_equal(tape.tensors[step->in[ADAFACTOR_P]].dim[0], rows[b][part]);
        assert_int_equal(tape.tensors[stat->in[FACTOR_STAT_COL]].dim[0], b ? R : IN);
    }
    tape_release(&tape);
}

/* Every byte of far state is fetched once and stored once; staging stays within a slice or one row. */
static void test_offload_moves_every_byte_once(void **state)
{
    (void)state;
    static const int64_t slices[] = {64, 1000, 1 << 20};
    for (size_t m = 0; m < NMODELS * 3; m++) {
        struct tape tape;
        struct offload_options offload = {.state_tier = TIER_DISK, .slice_bytes = slices[m / NMODELS]};
        make_tape(&tape, models[m % NMODELS], &ways[0], &adamw, &offload);
        int64_t *moved = calloc((size_t)tape.ntensors * 2, sizeof *moved);
        assert_non_null(moved);
        for (int i = 0; i < tape.nops; i++) {
            const struct op *op = &tape.ops[i];
            if (!op_moves(op)) continue;
            int far = move_far(op), near = move_near(op);
            moved[2 * tape_root(&tape, far) + (op->kind == OP_STORE)] += tensor_bytes(&tape.tensors[far]);
            assert_true(tape.tensors[near].dim[0] == 1 ||
                        tensor_bytes(&tape.tensors[near]) <= offload.slice_bytes);
        }
        for (int i = 0; i < tape.ntensors; i++) {
            const struct tensor *t = &tape.tensors[i];
            if (t->tier != TIER_DISK || t->view_of >= 0) continue;
            assert_true(moved[2 * i] == tensor_bytes(t) && moved[2 * i + 1] == tensor_bytes(t));
        }
        free(moved);
        tape_release(&tape);
    }
}

static void test_precisions_have_names_and_types(void **state)
{
    (void)state;
    static const enum dtype types[PRECISION_COUNT] = {DT_F32, DT_BF16, DT_F16, DT_BF16};
    for (enum precision p = 0; p < PRECISION_COUNT; p++) {
        assert_int_equal(precision_type(p), types[p]);
        assert_int_equal(precision_parse(precision_name(p)), p);
    }
    assert_int_equal(precision_parse("fp4"), PRECISION_COUNT);
    assert_int_equal(precision_parse(""), PRECISION_COUNT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_precisions_have_names_and_types),
        cmocka_unit_test(test_nothing_is_made_twice),
        cmocka_unit_test(test_rows_of_experts_are_not_kept),
        cmocka_unit_test(test_a_gated_unit_is_left_by_its_gradient),
        cmocka_unit_test(test_full_drops_everything),
        cmocka_unit_test(test_only_layers_asked_for),
        cmocka_unit_test(test_least_of_8_bits),
        cmocka_unit_test(test_updates),
        cmocka_unit_test(test_adafactor_by_part),
        cmocka_unit_test(test_adafactor_of_joint_adapters),
        cmocka_unit_test(test_offload_moves_every_byte_once),
        cmocka_unit_test(test_accumulation),
        cmocka_unit_test(test_results_are_bit_identical),
        cmocka_unit_test(test_results_are_bit_identical_bf16),
        cmocka_unit_test(test_results_are_bit_identical_fp8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
