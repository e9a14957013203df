/* run-tests: not=tsan */
/* test_offload.c - what pass_offload and pass_prefetch promise about a tape: which bytes cross tiers and how often, who
 * updates what, that no stage is overwritten too soon, that nothing which moves passes what it depends on. */
#include "support/job_rig.h"
#include "support/pace.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct plim_error err;

/* --- tapes ------------------------------------------------------------------------------------------------ */

#define SMALL                                                                                                \
    "model.vocab_size=256", "model.hidden_size=32", "model.num_layers=2", "model.num_attention_heads=4",     \
        "data.max_length=16"

static const char *const models[][9] = {
    {SMALL, "model.architecture=llama", "model.tie_word_embeddings=true", "model.intermediate_size=72"},
    {SMALL, "model.architecture=qwen2", "model.tie_word_embeddings=false", "model.intermediate_size=48"},
    {SMALL, "model.architecture=gpt2"},
    {"model.vocab_size=256", "model.hidden_size=256", "model.num_layers=1", "model.num_attention_heads=4",
     "data.max_length=16", "model.architecture=llama", "model.intermediate_size=300"},
};
enum { NMODELS = 3, LARGER = NMODELS };

static const int64_t slices[] = {300, 5000, 1 << 20};
#define NSLICES (sizeof slices / sizeof *slices)

static const struct update_options adamw = {
    .optimizer = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .global_norm = true};
static const struct update_options adamw_inside = {
    .optimizer = OPTIMIZER_ADAMW, .beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .in_backward = true};
static const struct update_options momentum = {.optimizer = OPTIMIZER_SGD, .beta1 = 0.9f};

struct making {
    size_t model;
    const struct update_options *update;
    int recompute;
    bool f32;
};

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

/* Up to pass_update. */
static void make_near(struct tape *tape, const struct making *r)
{
    struct job job;
    struct model_shape shape = {.batch = 4, .time = 16, .head = HEAD_LOSS};
    struct recompute_options recompute = {(enum recompute)r->recompute, 0};
    rig_job(&job, models[r->model]);
    tape_init(tape);
    must(model_emit(&job.spec, &shape, tape, &err));
    must(pass_precision(tape, r->f32 ? PRECISION_F32 : PRECISION_BF16, &err));
    must(pass_loss_chunks(tape, 2, &err));
    must(pass_grad(tape, &err));
    must(pass_recompute(tape, &recompute, &err));
    must(pass_update(tape, r->update ? r->update : &adamw, &err));
    job_release(&job);
}

static void make_far(struct tape *tape, const struct making *r, const struct offload_options *offload)
{
    make_near(tape, r);
    must(pass_offload(tape, offload, &err));
    must(tape_verify(tape, &err));
}

static const struct tensor *root_of(const struct tape *tape, int id)
{
    return &tape->tensors[tape_root(tape, id)];
}

static bool is_state(const struct tensor *t) { return t->cls == CLASS_STATE || t->cls == CLASS_MASTER; }

static bool never_leaves(const struct tape *tape, const struct tensor *t)
{
    return t->flags & TENSOR_NEAR || (t->owner >= 0 && tape->tensors[t->owner].flags & TENSOR_NEAR);
}

/* --- stages ----------------------------------------------------------------------------------------------- */

/* Bytes of a host buffer in use: stored and waiting for the host's op, or computed and waiting for their fetch. */
struct held {
    int root, view;
    int64_t at, bytes;
    bool computed;
};

struct stages {
    struct held held[64];
    int count;
    int scalars; /* stores of what is the same for all slices */
};

static bool overlap(int64_t a, int64_t a_bytes, int64_t b, int64_t b_bytes)
{
    return a < b + b_bytes && b < a + a_bytes;
}

static void stage_store(struct stages *s, const struct tape *tape, const struct op *op)
{
    const struct tensor *v = &tape->tensors[op->out[MOVE_TO]];
    int root = tape_root(tape, op->out[MOVE_TO]);
    if (tape->tensors[root].cls != CLASS_WORK)
        return; /* not a stage: a gradient or parameter that lives there */
    if (v->view_of < 0) {
        s->scalars++;
        return;
    }
    int64_t bytes = tensor_bytes(v);
    for (int i = 0; i < s->count; i++)
        assert_false(s->held[i].root == root &&
                     overlap(s->held[i].at, s->held[i].bytes, v->view_offset, bytes));
    assert_true(s->count < 64);
    assert_true(v->view_offset % 64 == 0 && v->view_offset + bytes <= tensor_bytes(&tape->tensors[root]));
    s->held[s->count++] = (struct held){root, op->out[MOVE_TO], v->view_offset, bytes, false};
}

static int held_of(const struct stages *s, int view)
{
    for (int i = 0; i < s->count; i++)
        if (s->held[i].view == view) return i;
    return -1;
}

static void stage_compute(struct stages *s, const struct tape *tape, const struct op *op)
{
    for (int k = 0; k < OP_MAX_IN; k++) {
        if (op->in[k] < 0 || tape->tensors[op->in[k]].view_of < 0) continue;
        if (root_of(tape, op->in[k])->cls != CLASS_WORK) continue;
        int i = held_of(s, op->in[k]);
        assert_true(i >= 0 && !s->held[i].computed);
        bool written = false;
        for (int o = 0; o < OP_MAX_OUT; o++) written |= op->out[o] == op->in[k];
        s->held[i].computed = written;
        if (!written) s->held[i] = s->held[--s->count];
    }
}

static void stage_fetch(struct stages *s, const struct tape *tape, const struct op *op)
{
    if (root_of(tape, op->in[MOVE_FROM])->cls != CLASS_WORK) return;
    int i = held_of(s, op->in[MOVE_FROM]);
    assert_true(i >= 0 && s->held[i].computed);
    s->held[i] = s->held[--s->count];
}

/* Walks the tape: nothing in a stage is lost. Returns stores of scalars. */
static int walk_stages(const struct tape *tape)
{
    struct stages s = {.count = 0};
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (op->kind == OP_STORE) stage_store(&s, tape, op);
        if (op->kind == OP_FETCH) stage_fetch(&s, tape, op);
        if (op->attr.on_host) stage_compute(&s, tape, op);
    }
    assert_int_equal(s.count, 0);
    return s.scalars;
}

/* --- who updates what ------------------------------------------------------------------------------------- */

/* Bytes that copies of the update part move, by root of the near end: down and up. */
static int64_t *moved_by_near(const struct tape *tape)
{
    int64_t *moved = calloc(2 * (size_t)tape->ntensors, sizeof *moved);
    assert_non_null(moved);
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (op_moves(op) && op->part == PART_UPDATE)
            moved[2 * tape_root(tape, move_near(op)) + (op->kind == OP_FETCH)] +=
                tensor_bytes(&tape->tensors[move_near(op)]);
    }
    return moved;
}

/* What the host updates: gradient and weights down once, weights up once, state not at all. */
static void check_host_traffic(const struct tape *tape)
{
    int64_t *moved = moved_by_near(tape);
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (op_moves(op)) assert_false(is_state(root_of(tape, move_far(op))));
        if (!op_row(op->kind)->on_cpu) continue;
        const struct tensor *p = root_of(tape, op->in[UPDATE_P]);
        assert_true(op->attr.on_host || p->flags & TENSOR_NEAR);
    }
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        bool weight = t->cls == CLASS_PARAM;
        if (t->view_of >= 0 || t->tier != TIER_DEVICE || (!weight && t->cls != CLASS_GRAD)) continue;
        int64_t bytes = never_leaves(tape, t) ? 0 : tensor_bytes(t);
        assert_int_equal(moved[2 * i], bytes);
        assert_int_equal(moved[2 * i + 1], weight ? bytes : 0);
    }
    free(moved);
}

static void test_the_host_updates_all(void **state)
{
    (void)state;
    static const struct update_options *const updates[] = {&adamw, &adamw_inside, &momentum};
    for (size_t k = 0; k < NMODELS * NSLICES * 3 * 8; k += EVERY) {
        struct tape tape;
        struct making r = {.model = k % NMODELS, .update = updates[k / NMODELS / NSLICES % 3]};
        int far = (int)(k / NMODELS / NSLICES / 3);
        struct offload_options o = {.state_tier = TIER_HOST,
                                    .grad_tier =
                                        far & 1 && r.update != &adamw_inside ? TIER_HOST : TIER_DEVICE,
                                    .param_tier = far & 2 ? TIER_HOST : TIER_DEVICE,
                                    .param_share = far & 4 ? 9 : 0,
                                    .slice_bytes = slices[k / NMODELS % NSLICES],
                                    .host_share = OFFLOAD_SHARES};
        make_far(&tape, &r, &o);
        check_host_traffic(&tape);
        /* the learning rate and, where there is one, the norm: each comes down once */
        assert_int_equal(walk_stages(&tape), 1 + (r.update->global_norm ? 1 : 0));
        tape_release(&tape);
    }
}

#define ELEMENTS (64 << 10) /* more than any parameter has */

static bool is_whole_param(const struct tensor *t) { return t->cls == CLASS_PARAM && t->view_of < 0; }

/* The host's part of the slices is the share within one, and together they are every element once. */
static void test_shares_of_the_host(void **state)
{
    (void)state;
    for (size_t k = 0; k < NMODELS * NSLICES * (OFFLOAD_SHARES + 1); k += EVERY) {
        struct tape tape;
        struct making r = {.model = k % NMODELS};
        int share = (int)(k / NMODELS / NSLICES), by_host = 0, by_device = 0;
        struct offload_options o = {
            .state_tier = TIER_HOST, .slice_bytes = slices[k / NMODELS % NSLICES], .host_share = share};
        make_far(&tape, &r, &o);
        walk_stages(&tape);
        char *updated = calloc((size_t)tape.ntensors, ELEMENTS);
        assert_non_null(updated);
        for (int i = 0; i < tape.nops; i++) {
            const struct op *op = &tape.ops[i];
            if (op->kind != OP_ADAMW) continue;
            int param =
                root_of(&tape, op->in[ADAMW_M])->owner; /* slices keep the owner of what they are cut from */
            by_host += op->attr.on_host;
            by_device += !op->attr.on_host && !(tape.tensors[param].flags & TENSOR_NEAR);
            assert_true(tensor_count(&tape.tensors[param]) <= ELEMENTS);
            for (int64_t e = 0; e < tensor_count(&tape.tensors[op->in[ADAMW_P]]); e++)
                assert_int_equal(updated[param * ELEMENTS + op->attr.first + e]++, 0);
        }
        for (int i = 0; i < tape.ntensors; i++)
            for (int64_t e = 0; is_whole_param(&tape.tensors[i]) && e < tensor_count(&tape.tensors[i]); e++)
                assert_int_equal(updated[i * ELEMENTS + e], 1);
        int want = (by_host + by_device) * share / OFFLOAD_SHARES;
        assert_true(by_host >= want - 1 && by_host <= want + 1);
        assert_int_equal(by_host > 0, share > 0 && want > 0);
        free(updated);
        tape_release(&tape);
    }
}

/* --- what is far ------------------------------------------------------------------------------------------ */

enum phase { FORWARD, HEAD, BACKWARD, PHASES };

static enum phase phase_of(enum op_part part)
{
    return part == PART_FORWARD ? FORWARD : part == PART_HEAD ? HEAD : BACKWARD;
}

/* Does an op of the loop, in this phase, read the tensor? */
static bool is_read(const struct tape *tape, int id, enum phase phase)
{
    for (int i = 0; i < tape->loop_end; i++) {
        const struct op *op = &tape->ops[i];
        if (op->part == PART_UPDATE || phase_of(op->part) != phase) continue;
        for (int k = 0; k < OP_MAX_IN; k++)
            if (op->in[k] == id) return true;
    }
    return false;
}

static int whole_fetches(const struct tape *tape, int id, enum phase phase)
{
    int n = 0;
    for (int i = 0; i < tape->loop_end; i++) {
        const struct op *op = &tape->ops[i];
        if (op->kind == OP_FETCH && op->part != PART_UPDATE)
            n += op->in[MOVE_FROM] == id && phase_of(op->part) == phase;
    }
    return n;
}

/* Shares leave from the last parameter on, as near to what was asked as whole parameters allow. */
static void check_share(const struct tape *tape, int share)
{
    int64_t all = 0, near = 0;
    bool far = false;
    for (int i = 0; i < tape->ntensors; i++) {
        const struct tensor *t = &tape->tensors[i];
        if (t->cls != CLASS_PARAM || t->view_of >= 0 || t->flags & TENSOR_NEAR) continue;
        all += tensor_bytes(t);
        assert_false(far && t->tier == TIER_DEVICE);
        far = far || t->tier != TIER_DEVICE;
        near += far ? 0 : tensor_bytes(t);
    }
    int64_t stays = all / OFFLOAD_SHARES * (OFFLOAD_SHARES - share);
    assert_true(near <= stays);
    for (int i = 0; i < tape->ntensors; i++) { /* the first that left did not fit any more */
        const struct tensor *t = &tape->tensors[i];
        if (t->cls != CLASS_PARAM || t->view_of >= 0 || t->tier == TIER_DEVICE) continue;
        assert_true(near + tensor_bytes(t) > stays);
        break;
    }
}

static void test_far_parameters(void **state)
{
    (void)state;
    static const int shares[] = {16, 1, 5, 11};
    for (size_t k = 0; k < NMODELS * RECOMPUTE_COUNT * 4; k += EVERY) {
        struct tape tape, before;
        struct making r = {.model = k % NMODELS, .recompute = (int)(k / NMODELS % RECOMPUTE_COUNT)};
        int share = shares[k / NMODELS / RECOMPUTE_COUNT];
        struct offload_options o = {.state_tier = TIER_DISK,
                                    .param_tier = TIER_DISK,
                                    .grad_tier = k & 1 ? TIER_DISK : TIER_DEVICE,
                                    .param_share = share,
                                    .slice_bytes = 5000};
        make_near(&before, &r);
        make_far(&tape, &r, &o);
        check_share(&tape, share);
        int far = 0;
        for (int i = 0; i < before.ntensors; i++) {
            bool leaves = before.tensors[i].cls == CLASS_PARAM && tape.tensors[i].tier != TIER_DEVICE;
            far += leaves;
            for (int p = 0; p < PHASES && before.tensors[i].cls == CLASS_PARAM; p++)
                assert_int_equal(whole_fetches(&tape, i, (enum phase)p),
                                 leaves && is_read(&before, i, (enum phase)p));
        }
        assert_true(far > 0);
        for (int i = 0; i < tape.nops; i++)
            for (int n = 0; n < OP_MAX_IN && op_computes(&tape.ops[i]); n++)
                assert_true(tape.ops[i].in[n] < 0 || root_of(&tape, tape.ops[i].in[n])->tier == TIER_DEVICE);
        tape_release(&tape);
        tape_release(&before);
    }
}

/* A gradient that leaves is squared on its way, where nothing adds to it any more: it need not come back for the norm. */
static void test_far_gradients_are_squared_before_they_leave(void **state)
{
    (void)state;
    for (size_t k = 0; k < NMODELS * RECOMPUTE_COUNT; k += EVERY) {
        struct tape tape, before;
        struct making r = {.model = k % NMODELS, .recompute = (int)(k / NMODELS)};
        struct offload_options o = {.state_tier = TIER_HOST,
                                    .grad_tier = TIER_HOST,
                                    .slice_bytes = 5000,
                                    .host_share = k & 1 ? 10 : 0};
        make_near(&before, &r);
        make_far(&tape, &r, &o);
        int gradients = 0, squares = 0, slots = 0;
        for (int i = 0; i < before.ntensors; i++) gradients += before.tensors[i].cls == CLASS_GRAD;
        for (int i = 0; i < tape.nops; i++) {
            const struct op *op = &tape.ops[i];
            if (op->kind == OP_CLIP) slots = (int)tape.tensors[op->in[CLIP_SUMS]].dim[0];
            if (op->kind != OP_SUMSQ) continue;
            squares++;
            assert_true(op->accumulate == ACC_OVERWRITE);
            if (i >= tape.loop_end) { /* one that stays */
                assert_true(tape.tensors[op->in[SUMSQ_GRAD]].cls == CLASS_GRAD);
                continue;
            }
            const struct op *store = &tape.ops[i + 1];
            assert_true(store->kind == OP_STORE && move_near(store) == op->in[SUMSQ_GRAD]);
            int far = move_far(store);
            for (int j = i + 2; j < tape.loop_end; j++)
                assert_false(tape.ops[j].kind == OP_STORE && move_far(&tape.ops[j]) == far);
        }
        assert_true(squares == gradients && slots == gradients);
        tape_release(&tape);
        tape_release(&before);
    }
}

/* Vectors and what belongs to them: no option sends them away. */
static void test_vectors_stay(void **state)
{
    (void)state;
    for (size_t k = 0; k < NMODELS * OPTIMIZER_COUNT; k++) {
        struct tape tape;
        struct update_options update = adamw;
        update.optimizer = (enum optimizer)(k / NMODELS);
        struct making r = {.model = k % NMODELS, .update = &update};
        struct offload_options o = {.state_tier = TIER_HOST,
                                    .grad_tier = TIER_HOST,
                                    .param_tier = TIER_HOST,
                                    .slice_bytes = 1000,
                                    .host_share = 7};
        make_far(&tape, &r, &o);
        int vectors = 0, matrices = 0;
        for (int i = 0; i < tape.ntensors; i++) {
            const struct tensor *t = &tape.tensors[i];
            bool known = t->cls == CLASS_PARAM || t->cls == CLASS_GRAD || is_state(t);
            if (!known || t->view_of >= 0) continue;
            const struct tensor *p = t->owner >= 0 && t->cls != CLASS_PARAM ? &tape.tensors[t->owner] : t;
            if (p->cls != CLASS_PARAM) continue;
            if (p->ndim == 1) {
                vectors++;
                assert_int_equal(t->tier, TIER_DEVICE);
            } else if (t->cls != CLASS_STATE || !(t->flags & TENSOR_NEAR)) {
                matrices++;
                assert_int_equal(t->tier, TIER_HOST);
            }
        }
        assert_true(vectors > 0 && matrices > 0);
        for (int i = 0; i < tape.nops; i++)
            if (op_moves(&tape.ops[i]))
                assert_false(never_leaves(&tape, root_of(&tape, move_far(&tape.ops[i]))));
        tape_release(&tape);
    }
}

/* --- invariant 5 ------------------------------------------------------------------------------------------- */

static int find_host_op(const struct tape *tape)
{
    for (int i = 0; i < tape->nops; i++)
        if (tape->ops[i].attr.on_host) return i;
    fail_msg("no op of the host");
    return -1;
}

static void test_only_copies_cross_tiers(void **state)
{
    (void)state;
    struct tape tape;
    struct making r = {.model = 0};
    struct offload_options o = {.state_tier = TIER_HOST, .slice_bytes = 5000, .host_share = OFFLOAD_SHARES};
    make_far(&tape, &r, &o);
    struct op *host = &tape.ops[find_host_op(&tape)];

    host->attr.on_host = false; /* the device at host memory */
    assert_int_equal(tape_verify(&tape, &err), PLIM_BUG);
    assert_non_null(strstr(err.text, "tier host"));
    host->attr.on_host = true;
    must(tape_verify(&tape, &err));

    tape.tensors[host->in[UPDATE_P]].tier = TIER_DEVICE; /* the host at the device's */
    assert_int_equal(tape_verify(&tape, &err), PLIM_BUG);
    tape.tensors[host->in[UPDATE_P]].tier = TIER_HOST;

    for (int i = 0; i < tape.nops; i++) { /* a matmul of a far weight, a hold of a far buffer */
        struct op *op = &tape.ops[i];
        if (op->kind != OP_LINEAR) continue;
        int weight = op->in[LINEAR_W];
        enum tier tier = tape.tensors[weight].tier;
        tape.tensors[weight].tier = TIER_DISK;
        assert_int_equal(tape_verify(&tape, &err), PLIM_BUG);
        assert_non_null(strstr(err.text, "tier disk"));
        tape.tensors[weight].tier = tier;
        break;
    }
    must(tape_verify(&tape, &err));
    struct op hold = tape_op(OP_HOLD, -1);
    hold.part = PART_UPDATE, hold.in[0] = host->in[ADAMW_M];
    tape_append(&tape, &hold);
    assert_int_equal(tape_verify(&tape, &err), PLIM_BUG);
    tape_release(&tape);
}

/* --- pass_prefetch -------------------------------------------------------------------------------------------- */

/* Bytes an op touches; writes first. */
struct touch {
    int root;
    int64_t at, bytes;
    bool writes;
};

static int touches(const struct tape *tape, const struct op *op, struct touch *out)
{
    int n = 0;
    for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++) {
        int id = k < OP_MAX_OUT ? op->out[k] : op->in[k - OP_MAX_OUT];
        if (id < 0) continue;
        const struct tensor *t = &tape->tensors[id];
        out[n++] = (struct touch){tape_root(tape, id), t->view_of < 0 ? 0 : t->view_offset, tensor_bytes(t),
                                  k < OP_MAX_OUT};
    }
    return n;
}

static bool depend(const struct tape *tape, const struct op *a, const struct op *b)
{
    struct touch x[OP_MAX_IN + OP_MAX_OUT], y[OP_MAX_IN + OP_MAX_OUT];
    int n = touches(tape, a, x), m = touches(tape, b, y);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < m; k++)
            if ((x[i].writes || y[k].writes) && x[i].root == y[k].root &&
                overlap(x[i].at, x[i].bytes, y[k].at, y[k].bytes))
                return true;
    return false;
}

/* Ops of the spread tape carry their old index in attr.stream. Only a fetch may overtake, and only what it has nothing
 * to do with. */
static void check_order(const struct tape *tape)
{
    for (int i = 0; i < tape->nops; i++) {
        const struct op *late = &tape->ops[i];
        for (int k = 0; k < i && late->kind != OP_HOLD; k++) {
            const struct op *early = &tape->ops[k];
            if (early->kind == OP_HOLD || early->attr.stream < late->attr.stream) continue;
            assert_int_equal(early->kind, OP_FETCH); /* it overtook */
            if (depend(tape, early, late))
                fail_msg("op %d was before op %d, which needs it", (int)late->attr.stream,
                         (int)early->attr.stream);
        }
    }
}

static bool holds(const struct op *op, int id)
{
    for (int k = 0; k < OP_MAX_IN && op->kind == OP_HOLD; k++)
        if (op->in[k] == id) return true;
    return false;
}

/* Every store of a transient buffer has its hold `lag` computing ops later or at the end of its part. Returns holds. */
static int check_holds(const struct tape *tape, int begin, int end, int lag)
{
    int found = 0, stores = 0;
    for (int i = begin; i < end; i++) {
        const struct op *op = &tape->ops[i];
        for (int k = 0; k < OP_MAX_IN && op->kind == OP_HOLD; k++) found += op->in[k] >= 0;
        if (op->kind != OP_STORE || root_of(tape, op->in[MOVE_FROM])->flags & TENSOR_KEPT) continue;
        stores++;
        int at = i + 1, computed = 0, after = 0;
        while (at < end && !holds(&tape->ops[at], op->in[MOVE_FROM]))
            computed += op_computes(&tape->ops[at++]);
        if (lag == 0) continue;
        assert_true(at < end);
        for (int k = at; k < end; k++) after += op_computes(&tape->ops[k]);
        assert_true(computed == lag || (computed < lag && after == 0));
    }
    assert_int_equal(found, lag > 0 ? stores : 0);
    return found;
}

static int count_ops(const struct tape *tape, int end)
{
    int n = 0;
    for (int i = 0; i < end; i++) n += tape->ops[i].kind != OP_HOLD;
    return n;
}

static void check_spread(const struct making *r, const struct offload_options *o,
                         const struct prefetch_options *spread, int *moved, int *held)
{
    struct tape tape;
    make_far(&tape, r, o);
    int nops = tape.nops, loop_end = tape.loop_end;
    for (int i = 0; i < nops; i++) tape.ops[i].attr.stream = (uint32_t)i;
    must(pass_prefetch(&tape, spread, &err));
    must(tape_verify(&tape, &err));
    assert_int_equal(count_ops(&tape, tape.nops), nops);
    assert_int_equal(count_ops(&tape, tape.loop_end), loop_end);
    for (int i = 0; i < tape.nops; i++)
        if (tape.ops[i].kind != OP_HOLD)
            assert_int_equal(tape.ops[i].attr.stream < (uint32_t)loop_end, i < tape.loop_end);
    check_order(&tape);
    *held += check_holds(&tape, 0, tape.loop_end, spread->loop_lag) +
             check_holds(&tape, tape.loop_end, tape.nops, spread->update_lag);
    for (int i = 1; i < tape.nops; i++)
        *moved += tape.ops[i].kind != OP_HOLD && tape.ops[i].attr.stream < tape.ops[i - 1].attr.stream &&
                  tape.ops[i - 1].kind == OP_FETCH;
    walk_stages(&tape);
    tape_release(&tape);
}

static void test_spread(void **state)
{
    (void)state;
    static const struct prefetch_options spreads[] = {{3, 2, 2}, {1, 1, 1}, {40, 30, 9}, {0, 0, 0}};
    static const struct offload_options places[] = {
        {.state_tier = TIER_HOST},
        {.state_tier = TIER_HOST, .host_share = 16},
        {.state_tier = TIER_HOST, .grad_tier = TIER_HOST, .host_share = 6},
        {.state_tier = TIER_HOST, .param_tier = TIER_HOST, .host_share = 16, .param_share = 9},
        {.state_tier = TIER_HOST, .grad_tier = TIER_HOST, .param_tier = TIER_HOST, .host_share = 16},
        {.grad_tier = TIER_HOST},
        {.param_tier = TIER_HOST},
    };
    enum { SPREADS = sizeof spreads / sizeof *spreads, PLACES = sizeof places / sizeof *places };
    int moved = 0, held = 0;
    for (size_t k = 0; k < SPREADS * PLACES * NMODELS * 2; k += EVERY) {
        struct offload_options o = places[k / SPREADS % PLACES];
        struct making r = {.model = k / SPREADS / PLACES % NMODELS, .recompute = (int)(k % RECOMPUTE_COUNT)};
        r.update = k / SPREADS / PLACES / NMODELS ? &adamw_inside : &adamw;
        if (o.grad_tier != TIER_DEVICE && r.update == &adamw_inside) continue; /* nothing waits there */
        o.slice_bytes = 20000;
        check_spread(&r, &o, &spreads[k % SPREADS], &moved, &held);
    }
    assert_true(moved > 0 && held > 0);
}

/* --- disks ------------------------------------------------------------------------------------------------- */

/* Updates of state on disk whose first fetch stands before the update before them, and all but the first. */
static void count_ahead(const struct tape *tape, int *ahead, int *all)
{
    int last = -1, *fetched = malloc(((size_t)tape->ntensors + 1) * sizeof *fetched);
    assert_non_null(fetched);
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (op->kind == OP_FETCH) fetched[op->out[MOVE_TO]] = i;
        if (op->kind != OP_ADAMW || !(tape->tensors[op->in[ADAMW_M]].flags & TENSOR_OF_DISK)) continue;
        if (last >= 0) *ahead += fetched[op->in[ADAMW_M]] < last, ++*all;
        last = i;
    }
    free(fetched);
}

/* What is written behind is held once, behind the next update or at the end of its part. */
static void check_behind(const struct tape *tape, bool wanted)
{
    for (int i = 0; i < tape->nops; i++) {
        const struct op *op = &tape->ops[i];
        if (op->kind != OP_STORE) continue;
        assert_int_equal(op->attr.behind, wanted);
        int end = i < tape->loop_end ? tape->loop_end : tape->nops, held = 0, updates = 0;
        for (int k = i + 1; k < end; k++) {
            held += holds(&tape->ops[k], op->in[MOVE_FROM]);
            updates += !held && tape->ops[k].kind == OP_ADAMW &&
                       tape->tensors[tape->ops[k].in[ADAMW_M]].flags & TENSOR_OF_DISK;
        }
        assert_int_equal(held, wanted);
        if (wanted) assert_true(updates <= 1);
    }
}

static void test_a_disk_beside_updates(void **state)
{
    (void)state;
    for (size_t k = 0; k < NMODELS * 4; k++) {
        struct tape tape;
        struct making r = {.model = k % NMODELS, .update = k / NMODELS % 2 ? &adamw_inside : &adamw};
        struct offload_options o = {
            .state_tier = TIER_DISK, .slice_bytes = 5000, .overlap_disk = k / NMODELS / 2};
        int ahead = 0, all = 0;
        make_far(&tape, &r, &o);
        count_ahead(&tape, &ahead, &all);
        assert_true(all > 0 && (o.overlap_disk ? ahead == all : ahead < all));
        check_behind(&tape, o.overlap_disk);
        tape_release(&tape);
    }
}

/* Large near copies begin where a disk reads into memory, small ones anywhere; nothing collides. */
static void test_near_copies_are_aligned(void **state)
{
    (void)state;
    struct tape tape;
    struct layout layout;
    struct making r = {.model = LARGER, .update = &adamw_inside};
    struct offload_options o = {.state_tier = TIER_DISK, .slice_bytes = 400 << 10, .overlap_disk = true};
    struct device_facts facts = {.align = 64};
    facts_set_memory(&facts, MEMORY_PROCESS);
    make_far(&tape, &r, &o);
    struct layout_options options = {.facts = &facts, .accumulation = 1};
    must(layout_make(&tape, &options, &layout, &err));
    must(layout_verify(&tape, &layout, &err));
    assert_true(layout.lower_bound <= layout.arena_bytes);
    int large = 0;
    for (int i = 0; i < tape.ntensors; i++)
        if (tape.tensors[i].flags & TENSOR_OF_DISK && tensor_bytes(&tape.tensors[i]) >= DISK_SMALL)
            assert_int_equal(layout.offset[i] % DISK_MEMORY, 0), large++;
    assert_true(large > 0);
    layout_release(&layout);
    tape_release(&tape);
}

/* --- before the norm -------------------------------------------------------------------------------------- */

static const struct update_options adamw_forward = {.optimizer = OPTIMIZER_ADAMW,
                                                    .beta1 = 0.9f,
                                                    .beta2 = 0.999f,
                                                    .eps = 1e-8f,
                                                    .global_norm = true,
                                                    .in_forward = true};

/* The op that stored the whole gradient last, before op `before`; -1: none. */
static int stored_at(const struct tape *tape, int grad, int before)
{
    for (int i = before - 1; i >= 0; i--)
        if (tape->ops[i].kind == OP_STORE && tape->ops[i].out[MOVE_TO] == grad) return i;
    return -1;
}

/* The one op with these marks that changes the same rows, from the same half. */
static const struct op *partner(const struct tape *tape, const struct op *like, bool guesses,
                                enum pair_half half)
{
    const struct op *found = NULL;
    for (int i = 0; i < tape->loop_end; i++) {
        const struct op *op = &tape->ops[i];
        bool same = op->kind == like->kind && op->in[ADAMW_M] == like->in[ADAMW_M] &&
                    op->out[ADAMW_NEW_M] == like->out[ADAMW_NEW_M];
        if (!same || op->attr.guesses != guesses || op->attr.half != half) continue;
        assert_null(found);
        found = op;
    }
    return found;
}

static bool writes_after(const struct tape *tape, int from, int to, int grad)
{
    for (int i = from + 1; i < to; i++)
        for (int o = 0; o < OP_MAX_OUT; o++)
            if (tape->ops[i].out[o] >= 0 && tape_root(tape, tape->ops[i].out[o]) == grad) return true;
    return false;
}

/* Updates before the norm stand behind the last store of their gradient, those of both halves; one for the same rows stands in front of
 * forward and ends in the half that is valid there; weights return from that half; all of it is the asked part of what the host updates
 * early, but for the gradient that is whole last. */
static void test_updates_before_the_norm(void **state)
{
    (void)state;
    for (size_t k = 0; k < (NMODELS + 1) * 4 * 2; k += EVERY) {
        struct tape tape;
        struct making r = {.model = k % (NMODELS + 1), .update = &adamw_forward};
        int share = (int)(k / (NMODELS + 1) % 4 + 1) * OFFLOAD_SHARES / 4, guessed = 0, rest = 0, last = -1;
        struct offload_options o = {.state_tier = TIER_HOST,
                                    .grad_tier = TIER_HOST,
                                    .slice_bytes = 5000,
                                    .host_share = OFFLOAD_SHARES,
                                    .once = true,
                                    .in_forward = true,
                                    .before_norm = share};
        make_far(&tape, &r, &o);
        for (int spread = 0; spread < 2; spread++) {
            struct prefetch_options ahead = {.loop_lead = 10, .state_lead = 16, .loop_lag = 2};
            if (spread) must(pass_prefetch(&tape, &ahead, &err));
            must(tape_verify(&tape, &err));
            for (int i = 0; i < tape.loop_end; i++) {
                const struct op *op = &tape.ops[i];
                bool stores = op->kind == OP_STORE && root_of(&tape, op->out[MOVE_TO])->cls == CLASS_GRAD;
                if (stores) last = op->out[MOVE_TO];
                if (op->kind != OP_ADAMW || !op->attr.on_host) continue;
                int grad = tape_root(&tape, op->in[ADAMW_G]), stored = stored_at(&tape, grad, i);
                int64_t count = tensor_count(&tape.tensors[op->in[ADAMW_P]]);
                assert_int_equal(op->attr.guesses, stored >= 0);
                if (op->attr.half == HALF_ANY) {
                    rest += (int)count;
                    continue;
                }
                assert_true(op->attr.guesses != op->attr.redoes);
                bool home = root_of(&tape, op->in[ADAMW_M])->flags & TENSOR_KEPT;
                assert_int_equal(op->attr.half == HALF_HOME, op->attr.guesses == home);
                assert_true(op->in[ADAMW_M] != op->out[ADAMW_NEW_M] &&
                            op->in[ADAMW_P] != op->out[ADAMW_NEW_P]);
                assert_int_equal(op->in[ADAMW_COEF] < 0, op->attr.guesses);
                if (!op->attr.guesses) continue;
                enum pair_half after = op->attr.half == HALF_HOME ? HALF_AWAY : HALF_HOME;
                assert_false(writes_after(&tape, stored, tape.loop_end, grad));
                assert_non_null(partner(&tape, op, false, after));
                guessed += home ? (int)count : 0;
            }
            for (int i = 0; i < tape.loop_end; i++) { /* weights come from the half that is valid */
                const struct op *op = &tape.ops[i];
                if (op->kind != OP_FETCH || op->attr.half == HALF_ANY) continue;
                bool away = !strcmp(root_of(&tape, op->in[MOVE_FROM])->label, "update.away");
                assert_int_equal(op->attr.half == HALF_AWAY, away);
            }
            assert_true(last >= 0);
            if (share == OFFLOAD_SHARES) { /* the late one alone is left, and shared with the device */
                int64_t late = tensor_count(&tape.tensors[tape.tensors[last].owner]);
                assert_true(rest <= late / 2);
            }
            assert_true(guessed > 0 && (double)guessed <= (double)(guessed + rest) * share / OFFLOAD_SHARES);
            guessed = rest = 0;
        }
        tape_release(&tape);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_host_updates_all),
        cmocka_unit_test(test_shares_of_the_host),
        cmocka_unit_test(test_far_parameters),
        cmocka_unit_test(test_vectors_stay),
        cmocka_unit_test(test_only_copies_cross_tiers),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_far_gradients_are_squared_before_they_leave),
        cmocka_unit_test(test_a_disk_beside_updates),
        cmocka_unit_test(test_near_copies_are_aligned),
        cmocka_unit_test(test_updates_before_the_norm),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
