/* run-tests: not=tsan */
/* test_job.c - what a job knows of its keys: which were given, and which knobs they pin. */
#include "support/job_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#define MODEL                                                                                                \
    "model.architecture=llama", "model.vocab_size=300", "model.hidden_size=64", "model.num_layers=4",        \
        "model.num_attention_heads=4", "model.intermediate_size=128"
#define KEYS(...)                                                                                            \
    (const char *const[]) { MODEL, __VA_ARGS__, NULL }

static bool is_key(const struct schema_row *row) { return !row->alias && row->kind != SCHEMA_NOTHING; }

/* job_given finds a key by its field. */
static void every_key_has_a_field_of_its_own(void **state)
{
    (void)state;
    for (size_t i = 0; i < job_schema.count; i++)
        for (size_t k = i + 1; k < job_schema.count; k++) {
            const struct schema_row *a = &job_schema.rows[i], *b = &job_schema.rows[k];
            if (is_key(a) && is_key(b) && a->offset == b->offset) fail_msg("%s and %s", a->path, b->path);
        }
}

static void given_is_what_somebody_wrote(void **state)
{
    (void)state;
    struct job job;
    struct plim_error err = {0};
    rig_job(&job, KEYS("training.per_device_train_batch_size=4", "training.preset=a10g", "budget=64MiB",
                       "training.optimizer_in_backward=true", "training.optimizer_in_backward="));
    const struct job_training *t = &job.training;
    assert_true(job_given(&job, &t->batch_size) && job_key_given(&job, "training.batch_size"));
    assert_string_equal(job_key_name(&job, "training.batch_size"), "training.per_device_train_batch_size");
    assert_false(job_given(&job, &t->accumulation)); /* only recommended */
    assert_int_equal(job_origin(&job, "training.gradient_accumulation_steps")->kind, ORIGIN_PRESET);
    assert_false(job_given(&job, &t->steps));
    assert_false(job_given(&job, &t->in_backward) || t->in_backward); /* taken back */
    assert_true(job_given(&job, &job.budget) && job.budget == 64 << 20);
    assert_int_equal(job_set(&job, "budget=", NULL, &err), PLIM_OK);
    assert_false(job_given(&job, &job.budget) || job.budget);
    job_release(&job);
}

static void keys_pin_their_knobs(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int knob;
        int64_t value;
    } cases[] = {
        {"training.micro_batch_size=2", KNOB_ROW(micro_batch), 2},
        {"training.recompute=selective", KNOB_ROW(recompute), RECOMPUTE_SELECTIVE},
        {"training.gradient_checkpointing=true", KNOB_ROW(recompute), RECOMPUTE_FULL},
        {"training.recompute_layers=9", KNOB_ROW(full_layers), 4},
        {"training.loss_chunks=3", KNOB_ROW(loss_chunks), 3},
        {"training.optimizer_in_backward=false", KNOB_ROW(optimizer_in_backward), 0},
        {"training.state_tier=host", KNOB_ROW(state_tier), TIER_HOST},
        {"training.grad_tier=device", KNOB_ROW(grad_tier), TIER_DEVICE},
        {"training.param_tier=host", KNOB_ROW(param_tier), TIER_HOST},
        {"training.host_update=0.5", KNOB_ROW(host_share), OFFLOAD_SHARES / 2},
        {"training.offload_layers=2", KNOB_ROW(offload_layers), 2},
        {"training.zero_stage=2", KNOB_ROW(zero), 2},
    };
    struct device_facts facts = {.unified_memory = false};
    struct knobs pins, open;
    knobs_open(&open);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job;
        rig_job(&job, KEYS(cases[i].key));
        job_pins(&job, &facts, 0, &pins);
        if (knob_get(&pins, cases[i].knob) != cases[i].value)
            fail_msg("%s: %lld", cases[i].key, (long long)knob_get(&pins, cases[i].knob));
        const char *name = job_pin_name(&job, cases[i].knob);
        assert_true(name && !strncmp(name, cases[i].key, strlen(name)));
        job_pins(&job, &facts, 1u << cases[i].knob, &pins);
        assert_true(knobs_equal(&pins, &open));
        job_release(&job);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_key_has_a_field_of_its_own),
        cmocka_unit_test(given_is_what_somebody_wrote),
        cmocka_unit_test(keys_pin_their_knobs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
