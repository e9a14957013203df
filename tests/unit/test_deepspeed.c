/* run-tests: not=tsan */
/* test_deepspeed.c - the table of DeepSpeed's keys is whole, scales and warm-ups move as its words say, and what bounds gathered
 * parameters holds op by op. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "job/deepspeed.h"
#include "job/deepspeed_keys.h"
#include "support/search_jobs.h"
#include "train/scaler.h"
#include "train/lr_schedule.h"

#include <math.h>
#include <string.h>

static struct plim_error err;

static void must(enum plim_status status)
{
    if (status != PLIM_OK) fail_msg("%s", err.text);
}

/* Every row says what it does: a key of ours that exists, or a text. */
static void the_table_is_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < deepspeed_row_count; i++) {
        const struct deepspeed_row *row = &deepspeed_rows[i];
        bool to_ours = row->how == DS_SET || row->how == DS_OWN;
        if (to_ours != (row->ours != NULL) || to_ours == (row->text != NULL)) fail_msg("%s", row->theirs);
        if (row->ours && !schema_find(&job_schema, row->ours)) fail_msg("%s: %s", row->theirs, row->ours);
        if (row->how == DS_FIXED) assert_non_null(row->fallback);
        for (size_t k = 0; k < i; k++) assert_string_not_equal(deepspeed_rows[k].theirs, row->theirs);
    }
}

static void keys_of_a_job_are_told_apart(void **state)
{
    (void)state;
    struct node map = {.kind = NODE_MAP}, flag = {.kind = NODE_BOOL};
    assert_true(deepspeed_owns("training.deepspeed.zero_optimization", &map));
    assert_true(deepspeed_owns("training.deepspeed.train_batch_size", &flag));
    assert_true(deepspeed_owns("training.deepspeed.activation_checkpointing", &map));
    assert_false(deepspeed_owns("training.deepspeed.activation_checkpointing", &flag));
    assert_false(deepspeed_owns("training.deepspeed.zero_stage", &flag));
    assert_false(deepspeed_owns("training.deepspeed.zero_stge", &flag));
    assert_false(deepspeed_owns("training.zero_stage", &flag));
}

static void a_scale_halves_and_doubles(void **state)
{
    (void)state;
    struct scaler s;
    scaler_init(&s, true, &(struct scaler_options){.first = 16, .least = 4, .window = 2, .hysteresis = 2});
    scaler_update(&s, false);
    assert_true(s.scale == 16); /* the first overflow is forgiven */
    scaler_update(&s, false);
    assert_true(s.scale == 8);
    scaler_update(&s, false);
    assert_true(s.scale == 4); /* the least */
    scaler_update(&s, true), scaler_update(&s, true);
    assert_true(s.scale == 8);
    scaler_update(&s, false);
    assert_true(s.scale == 8);
    scaler_update(&s, true), scaler_update(&s, false), scaler_update(&s, true);
    assert_true(s.scale == 4); /* a good step before an overflow is no part of the next window */
    scaler_init(&s, true, &(struct scaler_options){.first = 64, .least = 1, .window = 0, .hysteresis = 1});
    for (int i = 0; i < 9; i++) scaler_update(&s, i % 2);
    assert_true(s.scale == 64); /* a fixed scale stays */
    scaler_init(&s, false, &(struct scaler_options){.first = 64, .window = 1});
    assert_true(s.scale == 1);
}

static void a_warm_up_rises_by_the_logarithm(void **state)
{
    (void)state;
    struct lr_schedule s;
    struct job_schedule config = {
        .learning_rate = 1e-2, .warmup_steps = 8, .warmup_type = 1, .warmup_min_lr = 1e-3, .window_size = 1};
    lr_schedule_init(&s, &config, 100);
    assert_true(lr_schedule_rate(&s, 0) == 1e-3);
    assert_true(fabs(lr_schedule_rate(&s, 1) - (1e-3 + 9e-3 / 3)) < 1e-12); /* log 2 / log 8 */
    assert_true(fabs(lr_schedule_rate(&s, 7) - 1e-2) < 1e-12 && lr_schedule_rate(&s, 8) == 1e-2);
    config.warmup_type = 0;
    lr_schedule_init(&s, &config, 100);
    assert_true(fabs(lr_schedule_rate(&s, 3) - (1e-3 + 9e-3 / 2)) < 1e-12);
}

/* ---- what is whole of parameters in pieces ---- */

struct rig {
    struct job job;
    struct preset preset;
    struct plan_request request;
    struct knobs knobs;
    struct tape tape;
};

static void rig_open(struct rig *rig)
{
    char name[64];
    for (int i = search_job_count() - 1;; i--) {
        search_job_open(i, name, sizeof name, &rig->job, &rig->preset, &rig->request);
        if (!strncmp(name, "small/", 6)) break;
        job_release(&rig->job);
    }
    struct device_facts *facts = &rig->preset.facts;
    facts->ranks = 4, facts->async_exchanges = true;
    facts->link_bandwidth = 1e8, facts->link_seconds = 1e-4;
    rig->knobs = knobs_naive(&rig->request);
    rig->knobs.micro_batch = 4, rig->knobs.accumulation = rig->request.rows / 4,
    rig->knobs.zero = ZERO_PARAMS;
}

static void rig_make(struct rig *rig)
{
    must(rig->request.compute(&rig->request, &rig->knobs, TAPE_WHOLE, &rig->tape, &err));
    must(rig->request.place(&rig->request, &rig->knobs, &rig->tape, &err));
    must(tape_verify(&rig->tape, &err));
}

static int last_reader(const struct tape *tape, int id)
{
    int last = -1;
    for (int i = 0; i < tape->loop_end; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            if (tape->ops[i].in[k] >= 0 && tape_root(tape, tape->ops[i].in[k]) == id) last = i;
    return last;
}

static int first_reader(const struct tape *tape, int id, int from)
{
    for (int i = from; i < tape->loop_end; i++)
        for (int k = 0; k < OP_MAX_IN; k++)
            if (tape->ops[i].in[k] >= 0 && tape_root(tape, tape->ops[i].in[k]) == id &&
                tape->ops[i].kind != OP_HOLD)
                return i;
    return tape->loop_end;
}

/* The most elements that are whole at once, that are whole before they are read, and gathers of the loop. */
struct wholes {
    int64_t live, ahead;
    int gathers;
};

static struct wholes measure(const struct tape *tape)
{
    struct wholes most = {0};
    for (int at = 0; at < tape->loop_end; at++) {
        struct wholes now = {0};
        bool computes = !op_collects(&tape->ops[at]) && tape->ops[at].kind != OP_HOLD;
        for (int i = 0; i <= at; i++) {
            const struct op *op = &tape->ops[i];
            if (op->kind != OP_GATHER) continue;
            int id = op->out[MOVE_TO];
            int64_t n = tensor_count(&tape->tensors[id]);
            if (last_reader(tape, id) >= at) now.live += n;
            if (computes && first_reader(tape, id, i) > at) now.ahead += n;
        }
        if (now.live > most.live) most.live = now.live;
        if (now.ahead > most.ahead) most.ahead = now.ahead;
        most.gathers += tape->ops[at].kind == OP_GATHER;
    }
    return most;
}

static void set_prefetch(struct job *job, int64_t elements)
{
    char key[80];
    snprintf(key, sizeof key, "training.zero.prefetch_bucket_size=%lld", (long long)elements);
    if (job_set(job, key, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void bounds_of_gathers_hold(void **state)
{
    (void)state;
    struct rig rig = {0};
    rig_open(&rig);
    rig_make(&rig);
    struct wholes free = measure(&rig.tape);
    rig.job.zero.max_live = free.live / 2;
    rig_make(&rig);
    struct wholes less = measure(&rig.tape);
    assert_true(less.live < free.live && less.gathers == free.gathers);
    rig.job.zero.max_live = 0;
    set_prefetch(&rig.job, free.ahead / 3);
    rig_make(&rig);
    less = measure(&rig.tape);
    assert_true(less.ahead <= free.ahead / 3 && less.gathers == free.gathers);
    set_prefetch(&rig.job, 0);
    rig_make(&rig);
    assert_int_equal(measure(&rig.tape).ahead, 0);
    tape_release(&rig.tape);
    job_release(&rig.job);
}

static void parameters_stay_whole_as_far_as_they_may(void **state)
{
    (void)state;
    struct rig rig = {0};
    rig_open(&rig);
    rig_make(&rig);
    int free = measure(&rig.tape).gathers, before = free;
    rig.knobs.keep_gathered = 1;
    rig.job.zero.max_reuse = 1;
    rig_make(&rig);
    assert_true(measure(&rig.tape).gathers <= free);
    for (rig.job.zero.max_reuse = 100000; rig.job.zero.max_reuse < (int64_t)1e9;
         rig.job.zero.max_reuse *= 100) {
        rig_make(&rig);
        int now = measure(&rig.tape).gathers;
        assert_true(now <= before);
        before = now;
    }
    assert_true(before < 2 * free / 3);
    rig.knobs.keep_gathered = 0;
    rig_make(&rig);
    assert_int_equal(measure(&rig.tape).gathers, free);
    rig.job.zero.whole_below = (int64_t)1e15;
    rig_make(&rig);
    assert_int_equal(measure(&rig.tape).gathers, 0);
    tape_release(&rig.tape);
    job_release(&rig.job);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_whole),
        cmocka_unit_test(keys_of_a_job_are_told_apart),
        cmocka_unit_test(a_scale_halves_and_doubles),
        cmocka_unit_test(a_warm_up_rises_by_the_logarithm),
        cmocka_unit_test(bounds_of_gathers_hold),
        cmocka_unit_test(parameters_stay_whole_as_far_as_they_may),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
