/* run-tests: not=tsan */
/* test_shard.c - tapes of several ranks: every stage's tape is valid, exchanges move only past what has nothing to do with them,
 * what is sent is held, and the layout leaves its bytes alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "plan/oracle.h"
#include "support/search_jobs.h"

#include <stdlib.h>
#include <string.h>

struct rig {
    struct job job;
    struct preset preset;
    struct plan_request request;
    struct knobs knobs;
};

static struct plim_error err;

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

/* A small model on a CPU, with so many ranks. */
static void rig_open(struct rig *rig, int ranks, int node_ranks, enum zero zero)
{
    char name[64];
    for (int i = search_job_count() - 1;; i--) {
        search_job_open(i, name, sizeof name, &rig->job, &rig->preset, &rig->request);
        if (!strncmp(name, "small/", 6)) break;
        job_release(&rig->job);
    }
    struct device_facts *facts = &rig->preset.facts;
    facts->ranks = ranks, facts->node_ranks = node_ranks, facts->async_exchanges = true;
    facts->link_bandwidth = facts->node_bandwidth = 1e8, facts->link_seconds = facts->node_seconds = 1e-4;
    rig->knobs = knobs_naive(&rig->request);
    rig->knobs.micro_batch = 4, rig->knobs.accumulation = rig->request.rows / 4, rig->knobs.zero = zero;
}

static bool shares_bytes(const struct tape *tape, int a, int b)
{
    return a >= 0 && b >= 0 && tape_root(tape, a) == tape_root(tape, b);
}

/* Does `op` write what `of` touches? */
static bool disturbs(const struct tape *tape, const struct op *op, const struct op *of)
{
    for (int o = 0; o < OP_MAX_OUT; o++)
        for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++)
            if (shares_bytes(tape, op->out[o], k < OP_MAX_IN ? of->in[k] : of->out[k - OP_MAX_IN]))
                return true;
    return false;
}

/* Ops carry their old number in attr.stream. */
static int check_order(const struct tape *tape)
{
    int moved = 0;
    for (int i = 0; i < tape->nops; i++)
        for (int k = i + 1; k < tape->nops && tape->ops[i].kind == OP_GATHER; k++) {
            const struct op *early = &tape->ops[i], *late = &tape->ops[k];
            if (late->kind == OP_HOLD || late->attr.stream > early->attr.stream) continue;
            moved++;
            assert_false(disturbs(tape, early, late) || disturbs(tape, late, early));
        }
    return moved;
}

/* Transients that an exchange of the loop reads are held. */
static int check_holds(const struct tape *tape, const struct layout *layout)
{
    int held = 0;
    for (int i = 0; i < tape->loop_end; i++) {
        const struct op *op = &tape->ops[i];
        if (op->kind != OP_REDUCE) continue;
        assert_true(layout->life[tape_root(tape, op->in[MOVE_FROM])].last > i);
        held++;
    }
    return held;
}

/* The tape of the rig's knobs without and with exchanges beside computing, ops numbered. */
static void make(struct rig *rig, struct tape *tape, bool beside)
{
    tape_init(tape);
    rig->preset.facts.async_exchanges = beside;
    must(rig->request.compute(&rig->request, &rig->knobs, TAPE_WHOLE, tape, &err));
    must(rig->request.place(&rig->request, &rig->knobs, tape, &err));
    must(tape_verify(tape, &err));
    rig->preset.facts.async_exchanges = true;
}

/* Gradients are in pieces and summed in the loop, or whole and summed behind it, whatever the stage; small ones always once. */
static void check_sums(const struct tape *tape, bool once)
{
    int pieces = 0, early = 0;
    for (int i = 0; i < tape->ntensors; i++)
        pieces +=
            tape->tensors[i].cls == CLASS_GRAD && tape->tensors[i].view_of < 0 && tape->tensors[i].piece;
    for (int i = 0; i < tape->loop_end; i++)
        early += tape->ops[i].kind == OP_REDUCE || tape->ops[i].kind == OP_SUM;
    assert_int_equal(pieces > 0, !once);
    assert_int_equal(early, pieces);
}

static void check_stage(enum zero zero, int ranks, int node_ranks, bool once)
{
    struct rig rig;
    struct tape plain, tape;
    struct layout layout;
    rig_open(&rig, ranks, node_ranks, zero);
    rig.job.zero.sum_gradients = once;
    make(&rig, &plain, false);
    for (int i = 0; i < plain.nops; i++) plain.ops[i].attr.stream = (uint32_t)i;
    struct prefetch_options spread = {.gather_lead = 10, .exchange_lag = 10, .exchange_update_lag = 3};
    assert_true(tape_borrow((tape_init(&tape), &tape), &plain));
    must(pass_prefetch(&tape, &spread, &err));
    must(tape_verify(&tape, &err));
    struct layout_options options = plan_layout_options(&rig.request, &rig.knobs);
    must(layout_make(&tape, &options, &layout, &err));
    must(layout_verify(&tape, &layout, &err));
    int moved = check_order(&tape), held = check_holds(&tape, &layout);
    assert_int_equal(moved > 0, zero >= ZERO_PARAMS);
    assert_int_equal(held > 0, !once);
    assert_int_equal(tape.node_pieces, zero == ZERO_NODE);
    assert_int_equal(layout.lane_bytes[0] > 0, !once);
    check_sums(&tape, once);
    layout_release(&layout);
    tape_release(&plain), tape_release(&tape);
    job_release(&rig.job);
}

static void every_stage_has_a_valid_tape(void **state)
{
    (void)state;
    for (int zero = 0; zero < ZERO_COUNT; zero++)
        for (int once = 0; once < 2; once++) check_stage((enum zero)zero, 4, 2, once);
}

/* Both parts by themselves are what the whole is, but for the names of pieces that both have. */
enum { VIEWS = 16 << 10 };
static void parts_add_up(void **state)
{
    (void)state;
    for (int zero = 0; zero < ZERO_COUNT; zero++) {
        struct rig rig;
        struct oracle oracle;
        struct plan_bound parts, whole;
        rig_open(&rig, 4, 2, (enum zero)zero);
        oracle_init(&oracle, &rig.request);
        must(oracle_ask(&oracle, &rig.knobs, &parts, &err));
        must(plan_bound_of(&rig.request, &rig.knobs, NULL, &whole, &err));
        assert_true(parts.total >= whole.total && parts.total < whole.total + VIEWS);
        assert_true(parts.step_seconds == whole.step_seconds);
        oracle_release(&oracle);
        job_release(&rig.job);
    }
}

/* Beside a link that is not much slower than computing, exchanges cost less time and a little more memory. */
static void exchanges_beside_computing_pay(void **state)
{
    (void)state;
    struct rig rig;
    struct plan_bound beside, alone;
    rig_open(&rig, 4, 0, ZERO_PARAMS);
    must(plan_bound_of(&rig.request, &rig.knobs, NULL, &beside, &err));
    rig.preset.facts.async_exchanges = false;
    must(plan_bound_of(&rig.request, &rig.knobs, NULL, &alone, &err));
    assert_true(beside.step_seconds < 0.95 * alone.step_seconds);
    assert_true(beside.total >= alone.total && beside.total < alone.total + alone.total / 4);
    job_release(&rig.job);
}

/* Of a node's pieces there are fewer: each rank has more, and sends less over the network. */
static void a_node_has_the_model(void **state)
{
    (void)state;
    struct rig rig;
    struct tape all, node;
    rig_open(&rig, 4, 2, ZERO_PARAMS);
    make(&rig, &all, true);
    rig.knobs.zero = ZERO_NODE;
    make(&rig, &node, true);
    int64_t pieces[2] = {0};
    for (int i = 0; i < all.ntensors && i < node.ntensors; i++)
        if (all.tensors[i].cls == CLASS_STATE && all.tensors[i].piece)
            pieces[0] += all.tensors[i].piece, pieces[1] += node.tensors[i].piece;
    assert_true(pieces[0] > 0 && pieces[1] > 19 * pieces[0] / 10 && pieces[1] <= 2 * pieces[0]);
    int across = 0;
    for (int i = 0; i < node.nops; i++) {
        across += node.ops[i].attr.among == AMONG_NODES;
        assert_true(i >= node.loop_end || !op_collects(&node.ops[i]) || node.ops[i].attr.among == AMONG_NODE);
    }
    assert_true(across > 0);
    tape_release(&all), tape_release(&node);
    job_release(&rig.job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_stage_has_a_valid_tape),
        cmocka_unit_test(parts_add_up),
        cmocka_unit_test(exchanges_beside_computing_pay),
        cmocka_unit_test(a_node_has_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
