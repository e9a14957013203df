/* test_engine.c - what a request gets depends on nothing but itself: greedy tokens of random prompts are those of whole
 * forward passes, alone, side by side, in odd chunks, with a pool too small for all, with and without shared blocks, by
 * any number of threads, on a device with its own memory, and while the line moves. */
#include "support/fake_device.h"
#include "support/model_rig.h"
#include "base/rng.h"
#include "serve/engine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { REQUESTS = 9, LONGEST = 36, ANSWER = 12, CONTEXT = LONGEST + ANSWER };
#define OVERHEAD (8 << 20) /* said, not measured: budgets mean the same in every build */

static const char *model_dir(const char *name)
{
    const char *src = getenv("SRC_DIR");
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", src ? src : ".", name);
    return path;
}

struct heard {
    int32_t prompt[LONGEST], tokens[ANSWER];
    float logprob[ANSWER];
    int length, count, ended, ends;
    int64_t shared;
    enum engine_finish finish;
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct heard *h = arg;
    if (event->token >= 0) h->logprob[h->count] = event->logprob, h->tokens[h->count++] = event->token;
    if (event->finish != FINISH_NONE) h->finish = event->finish, h->ends++, h->shared = event->shared_tokens;
    return true;
}

/* Prompts of all lengths; every third begins like the one before. */
static void make_prompts(struct heard *h, int n)
{
    memset(h, 0, (size_t)n * sizeof *h);
    for (int r = 0; r < n; r++) {
        h[r].length = 1 + (int)rng_below(1, 2, (uint64_t)r, LONGEST);
        if (r % 3 == 2) h[r].length = LONGEST;
        for (int i = 0; i < h[r].length; i++)
            h[r].prompt[i] = (int32_t)(3 + rng_below(1, 3 + (uint64_t)(r % 3 ? 0 : r), (uint64_t)i, 90));
        if (r % 3) h[r].prompt[h[r].length - 1] = 3 + r;
    }
}

struct setting {
    const char *model;
    int threads, parallel;
    int64_t step, chunk, budget;
    bool alone, fake;
    struct engine_stats stats;
    struct engine_plan plan;
};

static struct device *open_device(const struct setting *s)
{
    struct device *device;
    struct plim_error err = {0};
    if (s->fake) return &fake_open(PROMPT)->device;
    if (device_cpu_open(s->threads ? s->threads : 2, &device, &err) != PLIM_OK) fail_msg("%s", err.text);
    return device;
}

static struct engine *open_engine(struct setting *s, struct device *device)
{
    struct engine *e;
    struct plim_error err = {0};
    struct engine_options o = {.model = model_dir(s->model),
                               .budget = s->budget,
                               .max_context = CONTEXT,
                               .parallel = s->parallel,
                               .step_tokens = s->step,
                               .chunk = s->chunk,
                               .queue = REQUESTS,
                               .alone = s->alone,
                               .overhead = OVERHEAD};
    if (engine_open(device, &o, &e, &err) != PLIM_OK) fail_msg("%s", err.text);
    s->plan = *engine_plan(e);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), s->plan.total);
    return e;
}

static void submit(struct engine *e, struct heard *h, double temperature, int64_t *id)
{
    struct plim_error err = {0};
    struct engine_request ask = {.prompt = h->prompt,
                                 .count = h->length,
                                 .tokens = ANSWER,
                                 .sampling = {.temperature = temperature, .seed = 7},
                                 .logprobs = 0,
                                 .hear = hear,
                                 .arg = h};
    if (engine_submit(e, &ask, id, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void steps(struct engine *e)
{
    struct plim_error err = {0};
    for (int i = 0; engine_busy(e); i++) {
        if (engine_step(e, &err) != PLIM_OK) fail_msg("%s", err.text);
        assert_true(i < 2000);
    }
}

static void answer_all(struct setting *s, struct heard *h, int n, double temperature)
{
    struct device *device = open_device(s);
    struct engine *e = open_engine(s, device);
    for (int r = 0; r < n; r++) submit(e, &h[r], temperature, NULL);
    steps(e);
    engine_stats(e, &s->stats);
    assert_int_equal(s->stats.blocks_used, 0);
    engine_close(e);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), 0);
    device->ops->close(device);
}

static void same(const struct heard *a, const struct heard *b, int n, const char *what)
{
    for (int r = 0; r < n; r++) {
        assert_int_equal(a[r].ends, 1);
        if (a[r].count != b[r].count || a[r].finish != b[r].finish ||
            memcmp(a[r].tokens, b[r].tokens, sizeof a[r].tokens) ||
            memcmp(a[r].logprob, b[r].logprob, sizeof a[r].logprob))
            fail_msg("%s: request %d gets something else", what, r);
    }
}

/* The likeliest token after tokens[0..n), by one pass without a cache; *sure: far enough from the second. */
static int32_t likeliest(const char *dir, const int32_t *tokens, int n, bool *sure)
{
    struct model_rig rig;
    int32_t pos[CONTEXT];
    float logits[256];
    rig_open(&rig, &(struct rig_options){.model = dir, .batch = 1, .time = n, .head = HEAD_LAST_LOGITS});
    for (int i = 0; i < n; i++) pos[i] = i;
    rig_write(&rig, "ids", tokens, (size_t)n * sizeof *tokens);
    rig_write(&rig, "pos", pos, (size_t)n * sizeof *pos);
    assert_int_equal(exec_loop(&rig.exec, 0, &rig.err), PLIM_OK);
    int vocab = (int)rig.spec.vocab_size, best = 0;
    rig_read(&rig, tape_find(&rig.tape, "logits", -1), logits, (size_t)vocab * sizeof *logits);
    for (int i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    *sure = true;
    for (int i = 0; i < vocab; i++)
        if (i != best && logits[best] - logits[i] < 1e-4f) *sure = false;
    rig_close(&rig);
    return best;
}

static void check_truth(const char *model, const struct heard *h)
{
    int32_t tokens[CONTEXT];
    memcpy(tokens, h->prompt, sizeof h->prompt);
    for (int i = 0; i < h->count; i++) {
        bool sure;
        int32_t want = likeliest(model_dir(model), tokens, h->length + i, &sure);
        if (sure) assert_int_equal(h->tokens[i], want);
        tokens[h->length + i] = h->tokens[i];
    }
}

static int64_t smallest_budget(const struct setting *s)
{
    return s->plan.total - s->plan.pool + s->plan.pool / s->plan.blocks * ((CONTEXT + KV_BLOCK - 1) / KV_BLOCK);
}

static void check_model(const char *model)
{
    struct heard one[REQUESTS], other[REQUESTS];
    struct setting single = {.model = model, .parallel = 1, .alone = true};
    make_prompts(one, REQUESTS);
    answer_all(&single, one, REQUESTS, 0);
    check_truth(model, &one[2]);
    check_truth(model, &one[3]);
    int64_t tight = 0;
    const struct setting settings[] = {
        {.model = model, .parallel = 8, .alone = true}, {.model = model, .parallel = 8},
        {.model = model, .parallel = 4, .step = 11, .chunk = 7, .threads = 1},
        {.model = model, .parallel = 8, .step = 8, .chunk = 1, .threads = 3},
        {.model = model, .parallel = 8, .fake = true},
        {.model = model, .parallel = 8, .budget = 1, .alone = true},
        {.model = model, .parallel = 8, .budget = 1, .step = 19, .chunk = 5},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct setting s = settings[i];
        char what[32];
        if (s.budget) { /* room for hardly more than one */
            struct setting wide = s;
            struct device *device = open_device(&wide);
            wide.budget = 0;
            struct engine *e = open_engine(&wide, device);
            engine_close(e);
            device->ops->close(device);
            tight = s.budget = smallest_budget(&wide);
        }
        make_prompts(other, REQUESTS);
        answer_all(&s, other, REQUESTS, 0);
        snprintf(what, sizeof what, "%s %zu", model, i);
        same(other, one, REQUESTS, what);
        if (s.budget) assert_true(s.plan.total <= tight && s.stats.preemptions > 0);
        if (i == 0) assert_int_equal(s.stats.shared_tokens, 0);
        if (i == 1) assert_true(s.stats.steps < 60);
        if (i == 2) assert_true(s.stats.shared_tokens > 0);
    }
}

static void test_llama(void **state) { (void)state, check_model("llama-tied"); }
static void test_llama_untied(void **state) { (void)state, check_model("llama-untied"); }
static void test_mistral(void **state) { (void)state, check_model("mistral"); }
static void test_qwen2(void **state) { (void)state, check_model("qwen2"); }
static void test_gpt2(void **state) { (void)state, check_model("gpt2"); }

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),   cmocka_unit_test(test_llama_untied), cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_qwen2),   cmocka_unit_test(test_gpt2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
