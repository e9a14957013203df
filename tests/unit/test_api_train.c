/* test_api_train.c - jobs, plans and training through the public API: handles, errors as values, steps, a moved budget. */
#include <plimsoll/plimsoll.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct world {
    struct plim_context *context;
    char folder[64], yaml[1024];
    struct plim_error err;
};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof *w);
    char path[96];
    snprintf(w->folder, sizeof w->folder, "%s/api-train-XXXXXX",
             getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    if (!mkdtemp(w->folder)) return -1;
    snprintf(path, sizeof path, "%s/corpus.txt", w->folder);
    FILE *f = fopen(path, "w");
    for (int i = 0; i < 400; i++) fprintf(f, "line %d of a small corpus, with words that repeat\n", i % 17);
    fclose(f);
    snprintf(
        w->yaml, sizeof w->yaml,
        "model: {architecture: llama, vocab_size: 256, hidden_size: 64, intermediate_size: 128, num_layers: "
        "2,\n"
        "  num_attention_heads: 4}\n"
        "data: {train: %s, validation: %s, tokenizer: bytes, max_length: 32}\n"
        "training: {batch_size: 8, steps: 4, learning_rate: 1e-3, device: cpu, threads: 1, eval_every: 2}\n"
        "output: {dir: %s/run}\n",
        path, path, w->folder);
    *state = w;
    return plim_context_open(NULL, &w->context, &w->err);
}

static int teardown(void **state)
{
    struct world *w = *state;
    char command[128];
    plim_context_close(w->context);
    snprintf(command, sizeof command, "rm -rf %s", w->folder);
    int failed = system(command);
    free(w);
    return failed;
}

static struct plim_job *open_job(struct world *w)
{
    struct plim_job *job = NULL;
    assert_int_equal(plim_job_parse(w->context, w->yaml, &job, &w->err), PLIM_OK);
    return job;
}

static void test_handles(void **state)
{
    struct world *w = *state;
    struct plim_job *job = NULL;
    struct plim_trainer *trainer = NULL;
    assert_int_equal(plim_job_open(NULL, "x.yaml", &job, &w->err), PLIM_BAD_INPUT);
    assert_string_equal(w->err.text, "plim_job_open: expected a plim_context, got NULL");
    job = open_job(w);
    assert_int_equal(plim_job_open((struct plim_context *)job, "x.yaml", &(struct plim_job *){0}, &w->err),
                     PLIM_BAD_INPUT);
    assert_string_equal(w->err.text, "plim_job_open: expected a plim_context, got plim_job");
    assert_int_equal(plim_trainer_open(NULL, NULL, &trainer, NULL), PLIM_BAD_INPUT);
    assert_null(trainer);
    struct plim_train_options wrong = {.size = 3};
    assert_int_equal(plim_trainer_open(job, &wrong, &trainer, &w->err), PLIM_BAD_INPUT);
    assert_non_null(strstr(w->err.text, "options.size is 3"));
    plim_job_close(job);
    plim_trainer_close(NULL), plim_plan_close(NULL), plim_job_close(NULL), plim_context_close(NULL);
}

static void test_bad_jobs(void **state)
{
    struct world *w = *state;
    struct plim_job *job = NULL;
    assert_int_equal(plim_job_open(w->context, "/nowhere/job.yaml", &job, &w->err), PLIM_BAD_INPUT);
    assert_int_equal(plim_job_parse(w->context, "model: {hidden: 3}", &job, &w->err), PLIM_BAD_INPUT);
    assert_non_null(strstr(w->err.text, "hidden"));
    assert_null(job);
    job = open_job(w);
    assert_int_equal(plim_job_set(job, "training.batch_size=many", &w->err), PLIM_BAD_INPUT);
    assert_int_equal(plim_job_set(job, "training.steps=3", &w->err),
                     PLIM_OK); /* the wrong one left no trace */
    char *yaml = plim_job_yaml(job);
    assert_non_null(strstr(yaml, "steps: 3"));
    plim_free(yaml);
    plim_job_close(job);
}

static void test_plan(void **state)
{
    struct world *w = *state;
    struct plim_job *job = open_job(w);
    struct plim_plan *plan = NULL;
    struct plim_plan_figures f = {.size = sizeof f},
                             shorter = {.size = offsetof(struct plim_plan_figures, total_bytes)};
    assert_int_equal(plim_job_set(job, "budget=32MiB", &w->err), PLIM_OK);
    assert_int_equal(plim_plan_open(job, NULL, &plan, &w->err), PLIM_OK);
    assert_int_equal(plim_plan_figures(plan, &f), PLIM_OK);
    assert_true(f.fits && f.total_bytes <= f.budget && f.parameters > 50000 &&
                f.micro_batch * f.accumulation == 8);
    shorter.total_bytes = 77; /* a caller with an older, shorter struct */
    assert_int_equal(plim_plan_figures(plan, &shorter), PLIM_OK);
    assert_true(shorter.fits && shorter.budget == f.budget && shorter.total_bytes == 77);
    char *json = plim_plan_json(plan), *page = plim_plan_html(plan), *text = plim_plan_text(plan);
    assert_true(strstr(json, "\"fits\": true") && strstr(page, "<html") && strlen(text) > 100);
    plim_free(json), plim_free(page), plim_free(text);
    plim_plan_close(plan), plan = NULL;
    assert_int_equal(plim_job_set(job, "budget=256KiB", &w->err), PLIM_OK);
    assert_int_equal(plim_plan_open(job, NULL, &plan, &w->err), PLIM_NO_FIT);
    assert_non_null(plan); /* the smallest one, with what is missing */
    assert_int_equal(plim_plan_figures(plan, &f), PLIM_OK);
    assert_true(!f.fits && f.missing_bytes > 0);
    plim_plan_close(plan);
    plim_job_close(job);
}

struct heard {
    struct plim_trainer *trainer;
    int steps, evals, saved, replanned;
    uint64_t budget;
};

static void hear(void *arg, const struct plim_train_event *e)
{
    struct heard *h = arg;
    h->steps += e->kind == PLIM_TRAIN_STEP, h->evals += e->kind == PLIM_TRAIN_EVAL;
    h->saved += e->kind == PLIM_TRAIN_SAVED, h->replanned += e->kind == PLIM_TRAIN_REPLANNED;
    h->budget = e->budget_bytes;
    assert_int_equal(e->size, sizeof *e);
    if (h->trainer && e->kind == PLIM_TRAIN_STEP) { /* a call inside a call is refused */
        struct plim_error err = {0};
        assert_int_equal(plim_trainer_save(h->trainer, &err), PLIM_BAD_INPUT);
        assert_non_null(strstr(err.text, "under way"));
    }
}

/* Trains the job to its end; `move` gives it another budget after two steps. */
static double train(struct world *w, const char *setting, uint64_t move, struct heard *h)
{
    struct plim_job *job = open_job(w);
    struct plim_trainer *trainer = NULL;
    struct plim_train_options options = {.size = sizeof options, .overwrite = 1, .hear = hear, .arg = h};
    struct plim_step step = {.size = sizeof step};
    double loss = 0;
    assert_int_equal(plim_job_set(job, setting, &w->err), PLIM_OK);
    assert_int_equal(plim_trainer_open(job, &options, &trainer, &w->err), PLIM_OK);
    plim_job_close(job); /* the trainer does not need it any more */
    h->trainer = trainer;
    for (int i = 1; plim_trainer_step(trainer, &step, &w->err) == PLIM_OK && !step.done; i++) {
        assert_int_equal(step.step, i);
        assert_int_equal(step.evaluated, i % 2 == 0);
        loss = step.loss;
        if (i == 2 && move) assert_int_equal(plim_trainer_set_budget(trainer, move, &w->err), PLIM_OK);
    }
    assert_true(step.done);
    assert_int_equal(plim_trainer_step(trainer, &step, &w->err), PLIM_OK); /* stays at its end */
    assert_int_equal(plim_trainer_set_budget(trainer, 1 << 30, &w->err), PLIM_BAD_INPUT);
    char *plan = plim_trainer_plan(trainer);
    assert_non_null(strstr(plan, "\"fits\": true"));
    plim_free(plan);
    plim_trainer_close(trainer);
    return loss;
}

static void test_training(void **state)
{
    struct world *w = *state;
    struct heard a = {0}, b = {0};
    double loss = train(w, "budget=32MiB", 0, &a);
    assert_true(a.steps == 4 && a.evals == 2 && a.saved == 1 && loss > 0 && a.budget == 32 << 20);
    assert_true(train(w, "budget=32MiB", 24 << 20, &b) == loss); /* to the bit */
    assert_true(b.replanned == 1 && b.budget == 24 << 20);
}

static void test_stop(void **state)
{
    struct world *w = *state;
    struct plim_job *job = open_job(w);
    struct plim_trainer *trainer = NULL;
    struct plim_train_options options = {.size = sizeof options, .overwrite = 1};
    struct plim_step step = {.size = sizeof step};
    double loss = 0;
    assert_int_equal(plim_trainer_open(job, &options, &trainer, &w->err), PLIM_OK);
    assert_int_equal(plim_trainer_step(trainer, &step, &w->err), PLIM_OK);
    assert_int_equal(plim_trainer_evaluate(trainer, &loss, &w->err), PLIM_OK);
    assert_true(loss > 0);
    plim_trainer_stop(trainer);
    assert_int_equal(plim_trainer_step(trainer, &step, &w->err), PLIM_INTERRUPTED);
    assert_int_equal(plim_trainer_step(trainer, &step, &w->err), PLIM_INTERRUPTED); /* and again */
    plim_trainer_close(trainer);
    struct plim_train_options again = {.size = sizeof again, .resume = 1};
    assert_int_equal(plim_trainer_open(job, &again, &trainer, &w->err), PLIM_OK);
    assert_int_equal(plim_trainer_step(trainer, &step, &w->err), PLIM_OK);
    assert_int_equal(step.step, 2);
    assert_int_equal(plim_trainer_run(trainer, &w->err), PLIM_OK);
    plim_trainer_close(trainer);
    plim_job_close(job);
}

static void test_two_at_once(void **state)
{
    struct world *w = *state;
    struct plim_trainer *t[2] = {0};
    struct plim_job *job[2];
    struct plim_step step[2] = {{.size = sizeof *step}, {.size = sizeof *step}};
    for (int i = 0; i < 2; i++) {
        char setting[128];
        job[i] = open_job(w);
        snprintf(setting, sizeof setting, "output.dir=%s/run-%d", w->folder, i);
        assert_int_equal(plim_job_set(job[i], setting, &w->err), PLIM_OK);
        assert_int_equal(plim_trainer_open(job[i], NULL, &t[i], &w->err), PLIM_OK);
    }
    for (int n = 0; n < 3; n++)
        for (int i = 0; i < 2; i++) assert_int_equal(plim_trainer_step(t[i], &step[i], &w->err), PLIM_OK);
    assert_true(step[0].loss == step[1].loss && step[0].step == 3);
    for (int i = 0; i < 2; i++) plim_trainer_close(t[i]), plim_job_close(job[i]);
}

static void test_activations(void **state)
{
    struct world *w = *state;
    struct plim_activation_query q = {.size = sizeof q,
                                      .batch_size = 2,
                                      .sequence_length = 128,
                                      .hidden_size = 64,
                                      .num_layers = 8,
                                      .num_attention_heads = 4,
                                      .vocab_size = 256,
                                      .use_flash_attention = 1};
    struct plim_activation_memory full = {.size = sizeof full}, less = {.size = sizeof less};
    assert_int_equal(plim_activation_memory(w->context, &q, &full, &w->err), PLIM_OK);
    q.use_gradient_checkpointing = 1;
    assert_int_equal(plim_activation_memory(w->context, &q, &less, &w->err), PLIM_OK);
    assert_true(full.saved_bytes == 0 && less.full_bytes == full.full_bytes);
    assert_true(less.effective_bytes < full.effective_bytes / 2);
    assert_int_equal(less.saved_bytes, less.full_bytes - less.effective_bytes);
    q.num_attention_heads = 7;
    assert_int_equal(plim_activation_memory(w->context, &q, &less, &w->err), PLIM_BAD_INPUT);
}

static void test_pack(void **state)
{
    struct world *w = *state;
    struct plim_interval blocks[] = {{0, 4, 1000, 0}, {2, 6, 500, 0}, {4, 8, 1000, 0}};
    uint64_t height = 0;
    assert_int_equal(plim_pack(blocks, 3, 512, &height, &w->err), PLIM_OK);
    assert_int_equal(height, 1024 + 512);
    assert_true(blocks[0].offset == blocks[2].offset && blocks[1].offset != blocks[0].offset);
    blocks[1].died = 1;
    assert_int_equal(plim_pack(blocks, 3, 512, &height, &w->err), PLIM_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_handles, setup, teardown),
        cmocka_unit_test_setup_teardown(test_bad_jobs, setup, teardown),
        cmocka_unit_test_setup_teardown(test_plan, setup, teardown),
        cmocka_unit_test_setup_teardown(test_training, setup, teardown),
        cmocka_unit_test_setup_teardown(test_stop, setup, teardown),
        cmocka_unit_test_setup_teardown(test_two_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_activations, setup, teardown),
        cmocka_unit_test_setup_teardown(test_pack, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
