/* run-tests: long */
/* test_engine.c - what a request gets depends on nothing but itself: greedy tokens of random prompts are those of whole
 * forward passes, alone, side by side, in odd chunks, with a pool too small for all, with and without shared blocks, by
 * any number of threads, on a device with its own memory, and while the line moves. */
#include "support/fake_device.h"
#include "support/model_rig.h"
#include "support/pace.h"
#include "base/rng.h"
#include "serve/engine_part.h"

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
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
    float logprob[ANSWER],
        tops[ANSWER]; /* tops: a sum that knows tokens, order and numbers of the likeliest */
    int length, count, ended, ends;
    int64_t shared;
    enum engine_finish finish;
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct heard *h = arg;
    if (event->token >= 0) {
        for (int i = 0; i < event->ntop; i++)
            h->tops[h->count] +=
                event->top[i].logprob * (float)(1 + event->top[i].token * ENGINE_LOGPROBS + i);
        h->logprob[h->count] = event->logprob, h->tokens[h->count++] = event->token;
    }
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
    int64_t step, chunk, budget, context; /* context 0: CONTEXT */
    bool alone, fake;
    bool drawn;         /* by the device: no log-probabilities, which would be the host's */
    int open_every;     /* of the fake device's reads, one has a token that the host must draw; 0: none */
    enum dtype kv_type; /* 0: the weights' */
    struct engine_stats stats;
    struct engine_plan plan;
};

static struct device *open_device(const struct setting *s)
{
    struct device *device;
    struct plim_error err = {0};
    if (s->fake) {
        struct fake *fake = fake_open(PROMPT);
        fake->open_every = s->open_every;
        return &fake->device;
    }
    if (device_cpu_open(NULL, s->threads ? s->threads : 2, &device, &err) != PLIM_OK)
        fail_msg("%s", err.text);
    return device;
}

static struct engine *open_engine(struct setting *s, struct device *device)
{
    struct engine *e;
    struct plim_error err = {0};
    struct engine_options o = {.model = model_dir(s->model),
                               .budget = s->budget,
                               .max_context = s->context ? s->context : CONTEXT,
                               .parallel = s->parallel,
                               .step_tokens = s->step,
                               .chunk = s->chunk,
                               .queue = REQUESTS,
                               .no_prefix_sharing = s->alone,
                               .kv_type = s->kv_type,
                               .usual_answer = -1, /* preempts when it can */
                               .overhead = OVERHEAD};
    if (engine_open(device, &o, &e, &err) != PLIM_OK) fail_msg("%s", err.text);
    s->plan = *engine_plan(e);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), s->plan.total);
    return e;
}

static void submit(struct engine *e, struct heard *h, double temperature, int logprobs, int64_t *id)
{
    struct plim_error err = {0};
    struct engine_request ask = {.prompt = h->prompt,
                                 .count = h->length,
                                 .tokens = ANSWER,
                                 .sampling = {.temperature = temperature, .seed = 7},
                                 .logprobs = logprobs,
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
    for (int r = 0; r < n; r++) submit(e, &h[r], temperature, s->drawn ? -1 : 0, NULL);
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
            memcmp(a[r].logprob, b[r].logprob, sizeof a[r].logprob) ||
            memcmp(a[r].tops, b[r].tops, sizeof a[r].tops))
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
    return s->plan.total - s->plan.pool +
           s->plan.pool / s->plan.blocks * ((CONTEXT + KV_BLOCK - 1) / KV_BLOCK);
}

static void check_model(const char *model)
{
    /* The thread sanitizer looks at how threads meet, which is the same for all models. */
    if (EVERY > 10 && strcmp(model, "llama-tied") && strcmp(model, "gemma3")) return;
    struct heard one[REQUESTS], other[REQUESTS];
    struct setting single = {.model = model, .parallel = 1, .alone = true};
    make_prompts(one, REQUESTS);
    answer_all(&single, one, REQUESTS, 0);
    check_truth(model, &one[2]);
    check_truth(model, &one[5]);
    int64_t tight = 0;
    const struct setting settings[] = {
        {.model = model, .parallel = 8, .alone = true},
        {.model = model, .parallel = 8},
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
static void test_qwen3(void **state) { (void)state, check_model("qwen3"); }
static void test_gemma2(void **state) { (void)state, check_model("gemma2"); }
static void test_gemma3(void **state) { (void)state, check_model("gemma3"); }
static void test_phi3(void **state) { (void)state, check_model("phi3"); }
static void test_olmo2(void **state) { (void)state, check_model("olmo2"); }
static void test_smollm3(void **state) { (void)state, check_model("smollm3"); }
static void test_gpt2(void **state) { (void)state, check_model("gpt2"); }

/* --- equal blocks after different ones --------------------------------------------------------------------- */

/* Prompts in turn, of blocks AC, BD, BC, AC: the third has the first's C after another block and shares B alone, the fourth begins
 * as the first and shares both. Each gets what it gets alone. */
static void test_equal_block_after_another(void **state)
{
    (void)state;
    enum { PROMPTS = 4 };
    static const int blocks[PROMPTS][2] = {{0, 2}, {1, 3}, {1, 2}, {0, 2}};
    struct heard one[PROMPTS] = {0}, other[PROMPTS] = {0};
    for (int r = 0; r < PROMPTS; r++) {
        one[r].length = 2 * KV_BLOCK + 3;
        for (int i = 0; i < one[r].length; i++)
            one[r].prompt[i] = 3 + (i * 5 + 11 * (i < 2 * KV_BLOCK ? blocks[r][i / KV_BLOCK] : r)) % 90;
        other[r] = one[r];
    }
    for (int alone = 1; alone >= 0; alone--) {
        struct setting s = {.model = "llama-tied", .parallel = 2, .alone = alone};
        struct heard *h = alone ? one : other;
        struct device *device = open_device(&s);
        struct engine *e = open_engine(&s, device);
        for (int r = 0; r < PROMPTS; r++) submit(e, &h[r], 0, 0, NULL), steps(e);
        engine_close(e);
        device->ops->close(device);
    }
    same(other, one, PROMPTS, "after another block");
    assert_int_equal(other[0].shared, 0);
    assert_int_equal(other[1].shared, 0);
    assert_int_equal(other[2].shared, KV_BLOCK);
    assert_int_equal(other[3].shared, 2 * KV_BLOCK);
}

/* --- keys and values in 8 bits ------------------------------------------------------------------------------ */

/* What a request gets depends on nothing but itself in 8 bits too; how far the likelihood of its first token is from that of
 * exact keys and values is bounded, and the pool is smaller. */
static void check_coded(const char *model)
{
    struct heard exact[REQUESTS], one[REQUESTS], other[REQUESTS];
    struct setting whole = {.model = model, .parallel = 1, .alone = true};
    struct setting single = {.model = model, .parallel = 1, .alone = true, .kv_type = DT_U8};
    make_prompts(exact, REQUESTS), make_prompts(one, REQUESTS);
    answer_all(&whole, exact, REQUESTS, 0), answer_all(&single, one, REQUESTS, 0);
    assert_int_equal(single.plan.kv_type, DT_U8);
    assert_true(2 * single.plan.pool / single.plan.blocks < whole.plan.pool / whole.plan.blocks);
    for (int r = 0; r < REQUESTS; r++)
        if (one[r].tokens[0] == exact[r].tokens[0])
            assert_true(fabsf(one[r].logprob[0] - exact[r].logprob[0]) < 0.15f);
    const struct setting settings[] = {
        {.model = model, .parallel = 8, .kv_type = DT_U8},
        {.model = model, .parallel = 4, .step = 11, .chunk = 7, .threads = 1, .kv_type = DT_U8},
        {.model = model, .parallel = 8, .fake = true, .kv_type = DT_U8},
        {.model = model, .parallel = 8, .budget = 1, .kv_type = DT_U8},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        struct setting s = settings[i];
        if (s.budget) {
            struct setting wide = settings[0];
            answer_all(&wide, other, 0, 0);
            s.budget = smallest_budget(&wide);
        }
        make_prompts(other, REQUESTS);
        answer_all(&s, other, REQUESTS, 0);
        same(other, one, REQUESTS, "8 bits");
        if (s.budget) assert_true(s.stats.preemptions > 0);
    }
}

static void test_coded(void **state)
{
    (void)state;
    check_coded("llama-tied");
    if (EVERY <= 10) check_coded("gemma2"), check_coded("qwen3"); /* other models, the same threads */
}

/* --- the next step before this one is read ------------------------------------------------------------------ */

/* Ends a request after some tokens, as a stop string does. */
static bool hear_some(void *arg, const struct engine_event *event)
{
    struct heard *h = arg;
    hear(arg, event);
    return h->count != 1 + h->length % ANSWER;
}

/* Requests that come and go while steps run ahead, with and without log-probabilities and penalties. */
static void answer_some(struct setting *s, struct heard *h, int n, bool penalties)
{
    struct device *device = open_device(s);
    struct engine *e = open_engine(s, device);
    struct plim_error err = {0};
    int reads = s->fake ? ((struct fake *)device)->reads : 0;
    for (int r = 0; r < n; r++) {
        bool strict = penalties && r % 4 == 3;
        struct engine_request ask = {.prompt = h[r].prompt,
                                     .count = h[r].length,
                                     .tokens = ANSWER,
                                     .sampling = {.temperature = r % 2 ? 0.8 : 0,
                                                  .seed = 3,
                                                  .repetition_penalty = strict ? 1.3 : 0,
                                                  .presence_penalty = penalties && r == 4 ? 0.5 : 0,
                                                  .frequency_penalty = strict ? 0.7 : 0},
                                     .logprobs = r % 5 - 1,
                                     .hear = hear_some,
                                     .arg = &h[r]};
        assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_OK);
        for (int i = 0; i < r % 4 && penalties; i++) assert_int_equal(engine_step(e, &err), PLIM_OK);
    }
    steps(e);
    engine_stats(e, &s->stats);
    assert_int_equal(s->stats.blocks_used, 0);
    if (s->fake && !s->open_every) assert_int_equal(((struct fake *)device)->reads, reads); /* no logits */
    engine_close(e);
    device->ops->close(device);
}

/* The same tokens, as likely, whoever draws them: by the host after each step, by the device whose steps overtake the host, of requests that end
 * by length and in the middle, and where the device leaves some tokens to the host. */
static void test_ahead(void **state)
{
    (void)state;
    struct heard one[REQUESTS], other[REQUESTS];
    struct setting single = {.model = "llama-tied", .parallel = 1, .drawn = true};
    const struct setting settings[] = {
        {.model = "llama-tied", .parallel = 1, .fake = true, .drawn = true},
        {.model = "llama-tied", .parallel = 8, .fake = true, .drawn = true},
        {.model = "llama-tied", .parallel = 3, .step = 7, .fake = true, .drawn = true},
        {.model = "llama-tied", .parallel = 8, .fake = true, .drawn = true, .open_every = 5},
        {.model = "llama-tied", .parallel = 1, .fake = true, .drawn = true, .open_every = 4},
    };
    for (int some = 0; some < 3; some++)
        for (size_t i = 0; i < 1 + sizeof settings / sizeof *settings; i++) {
            struct setting s = i ? settings[i - 1] : single;
            struct heard *h = i ? other : one;
            make_prompts(h, REQUESTS);
            if (some)
                answer_some(&s, h, REQUESTS, some == 2);
            else
                answer_all(&s, h, REQUESTS, 0.9);
            if (i) same(other, one, REQUESTS, "ahead");
            if (!s.fake) assert_int_equal(s.stats.ahead, 0);
            if (s.fake && !some && !s.open_every) assert_true(s.stats.ahead > s.stats.steps / 3);
            if (s.fake && some < 2) assert_true(s.stats.ahead > 0);
        }
}

/* --- very many at once --------------------------------------------------------------------------------------- */

enum { CROWD = 2100, SAID = ANSWER }; /* so long that all write at once */

/* Steps whose table of blocks is too large to be copied whole, and tokens that are reported while the next step runs. */
static void test_crowd(void **state)
{
    (void)state;
    if (EVERY > 10) skip(); /* one thread steps, which takes minutes with the thread sanitizer */
    static struct heard crowd[CROWD];
    struct heard one[REQUESTS];
    struct setting single = {.model = "llama-tied", .parallel = 1, .drawn = true};
    struct setting s = {
        .model = "llama-tied", .parallel = CROWD, .context = 128, .fake = true, .drawn = true, .alone = true};
    struct plim_error err = {0};
    make_prompts(one, REQUESTS);
    answer_all(&single, one, REQUESTS, 0);
    struct device *device = open_device(&s);
    struct engine *e = open_engine(&s, device);
    int writes = ((struct fake *)device)->row_writes;
    memset(crowd, 0, sizeof crowd);
    for (int r = 0; r < CROWD; r++) {
        struct heard *h = &crowd[r], *like = &one[r % REQUESTS];
        struct engine_request ask = {.prompt = like->prompt,
                                     .count = like->length,
                                     .tokens = SAID,
                                     .sampling = {.seed = 7},
                                     .logprobs = -1,
                                     .hear = hear,
                                     .arg = h};
        assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_OK);
    }
    steps(e);
    engine_stats(e, &s.stats);
    assert_int_equal(s.stats.blocks_used, 0);
    assert_true(((struct fake *)device)->row_writes > writes);
    for (int r = 0; r < CROWD; r++) {
        const struct heard *like = &one[r % REQUESTS];
        int count = like->count < SAID ? like->count : SAID;
        assert_true(crowd[r].ends == 1 && crowd[r].count == count);
        assert_memory_equal(crowd[r].tokens, like->tokens, (size_t)count * sizeof *like->tokens);
    }
    engine_close(e);
    device->ops->close(device);
}

/* --- lines that move, requests that go --------------------------------------------------------------------- */

/* 100, 60, 30 and again 100 % of a pool, under load: the same answers, no request lost, plan and ledger agree. */
static void move_lines(bool fake, bool drawn)
{
    struct heard one[REQUESTS], other[REQUESTS];
    struct setting single = {.model = "llama-tied", .parallel = 1, .drawn = drawn},
                   s = {.model = "llama-tied", .parallel = 8, .fake = fake, .drawn = drawn};
    struct plim_error err = {0};
    make_prompts(one, REQUESTS), make_prompts(other, REQUESTS);
    answer_all(&single, one, REQUESTS, 0.9);
    struct device *device = open_device(&s);
    struct engine *e = open_engine(&s, device);
    int64_t fixed = s.plan.total - s.plan.pool;
    static const int percent[] = {60, 30, 100, 15, 100};
    for (int r = 0; r < REQUESTS; r++) submit(e, &other[r], 0.9, s.drawn ? -1 : 0, NULL);
    for (int i = 0; engine_busy(e); i++) {
        if (i % 4 == 3 && i / 4 < 5) {
            int64_t line = fixed + s.plan.pool * percent[i / 4] / 100;
            if (engine_set_budget(e, line, &err) != PLIM_OK) fail_msg("%s", err.text);
            if (engine_step(e, &err) != PLIM_OK) fail_msg("%s", err.text);
            assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), engine_plan(e)->total);
            assert_true(engine_plan(e)->total <= line && engine_plan(e)->budget == line);
        } else if (engine_step(e, &err) != PLIM_OK) {
            fail_msg("%s", err.text);
        }
        assert_true(i < 500);
    }
    same(other, one, REQUESTS, "a line that moves");
    assert_int_equal(engine_set_budget(e, fixed, &err), PLIM_NO_FIT);
    engine_stats(e, &s.stats);
    assert_int_equal(s.stats.finished[FINISH_LENGTH] + s.stats.finished[FINISH_EOS], REQUESTS);
    engine_close(e);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), 0);
    device->ops->close(device);
}

/* A device with its own memory keeps what preempted requests have on the host: nothing is read twice, and everybody gets the same. */
static void test_swapped(void **state)
{
    (void)state;
    struct heard one[REQUESTS], other[REQUESTS];
    struct setting single = {.model = "llama-tied", .parallel = 1, .alone = true};
    struct setting wide = {.model = "llama-tied", .parallel = 8, .fake = true}, s = wide;
    make_prompts(one, REQUESTS), make_prompts(other, REQUESTS);
    answer_all(&single, one, REQUESTS, 0);
    answer_all(&wide, other, 0, 0);
    for (int alone = 0; alone < 2; alone++) {
        s.budget = smallest_budget(&wide), s.alone = alone;
        make_prompts(other, REQUESTS);
        answer_all(&s, other, REQUESTS, 0);
        same(other, one, REQUESTS, "swapped");
        assert_true(s.stats.preemptions > 0 && (!alone || s.stats.swapped > 0));
        int64_t all = 0; /* each token once */
        for (int r = 0; r < REQUESTS; r++) all += one[r].length;
        if (alone) assert_int_equal(s.stats.prompt_tokens, all);
    }
}

static void test_moving_line(void **state) { (void)state, move_lines(false, false); }
static void test_moving_line_of_a_device(void **state)
{
    (void)state;
    move_lines(true, false), move_lines(true, true);
}

static void check_cancel(bool fake)
{
    struct heard h[REQUESTS];
    struct setting s = {.model = "llama-tied", .parallel = 8, .fake = fake, .drawn = fake};
    struct plim_error err = {0};
    struct device *device = open_device(&s);
    struct engine *e = open_engine(&s, device);
    int64_t id[REQUESTS];
    make_prompts(h, REQUESTS);
    for (int r = 0; r < REQUESTS; r++) submit(e, &h[r], 0, s.drawn ? -1 : 0, &id[r]);
    for (int i = 0; i < 4; i++) assert_int_equal(engine_step(e, &err), PLIM_OK);
    engine_stats(e, &s.stats);
    assert_true(s.stats.blocks_used > 0 && s.stats.running > 1);
    for (int r = 0; r < REQUESTS; r++) engine_cancel(e, id[r]);
    assert_int_equal(engine_step(e, &err), PLIM_OK); /* at the next step */
    engine_stats(e, &s.stats);
    assert_int_equal(s.stats.blocks_used, 0);
    assert_false(engine_busy(e));
    for (int r = 0; r < REQUESTS; r++) assert_true(h[r].ends == 1);
    submit(e, &h[0], 0, 0, NULL); /* closing ends what is under way */
    engine_close(e);
    assert_true(h[0].ends == 2 && h[0].finish == FINISH_CANCELLED);
    device->ops->close(device);
}

static void test_cancel(void **state)
{
    (void)state;
    check_cancel(false), check_cancel(true);
}

struct told {
    const struct heard *h;
    int n, before, times; /* tokens heard by all until the last call; calls with news */
};

static int heard_by_all(const struct told *t)
{
    int sum = 0;
    for (int r = 0; r < t->n; r++) sum += t->h[r].count;
    return sum;
}

static void hear_told(void *arg)
{
    struct told *t = arg;
    int sum = heard_by_all(t);
    assert_true(sum - t->before <= t->n);
    t->times += sum > t->before, t->before = sum;
}

static void check_told(struct setting s)
{
    struct heard h[3];
    struct told told = {.h = h, .n = 3};
    struct device *device = open_device(&s);
    struct engine *e = open_engine(&s, device);
    make_prompts(h, 3);
    engine_on_told(e, hear_told, &told);
    for (int r = 0; r < 3; r++) submit(e, &h[r], 0, -1, NULL);
    steps(e);
    int heard = heard_by_all(&told);
    assert_true(heard > 0 && told.before == heard);
    engine_stats(e, &s.stats);
    assert_true(told.times >= h[0].count && told.times <= s.stats.steps);
    engine_on_told(e, NULL, NULL);
    submit(e, &h[0], 0, -1, NULL);
    h[0].count = 0;
    steps(e);
    assert_int_equal(told.before, heard);
    engine_close(e);
    device->ops->close(device);
}

/* After each step whoever hears is told once that all its tokens were heard, also where they are reported later. */
static void test_told(void **state)
{
    (void)state;
    check_told((struct setting){.model = "llama-tied", .parallel = 3});
    check_told((struct setting){.model = "llama-tied", .parallel = 3, .fake = true});
}

/* The row of an encoder-decoder is taken. Who waits for it and is cancelled need not wait for the row's answer. */
static void test_cancel_while_rows_are_taken(void **state)
{
    (void)state;
    struct heard h[3];
    struct setting s = {.model = "t5-v10", .parallel = 1};
    struct plim_error err = {0};
    struct device *device = open_device(&s);
    struct engine *e = open_engine(&s, device);
    int64_t id[3];
    int32_t prompt[] = {5, 6, 7};
    memset(h, 0, sizeof h);
    for (int r = 0; r < 3; r++) {
        struct engine_request ask = {.prompt = prompt, .count = 3, .tokens = ANSWER, .logprobs = -1};
        ask.ignore_eos = true, ask.hear = hear, ask.arg = &h[r];
        assert_int_equal(engine_submit(e, &ask, &id[r], &err), PLIM_OK);
    }
    assert_int_equal(engine_step(e, &err), PLIM_OK);
    engine_cancel(e, id[1]);
    assert_int_equal(engine_step(e, &err), PLIM_OK);
    engine_stats(e, &s.stats);
    assert_true(h[1].ends == 1 && h[1].finish == FINISH_CANCELLED);
    assert_true(h[0].ends == 0 && s.stats.running == 1 && s.stats.waiting == 1);
    steps(e);
    assert_true(h[0].count == ANSWER && h[2].count == ANSWER);
    engine_close(e);
    device->ops->close(device);
}

struct listener {
    struct engine *engine;
    int64_t budget; /* when the end was heard */
};

static bool hear_budget(void *arg, const struct engine_event *event)
{
    struct listener *l = arg;
    if (event->finish) l->budget = engine_plan(l->engine)->budget;
    return true;
}

/* The last token is counted, and reported when the next step begins. Meanwhile the request does not count as waiting, and it is
 * reported before a new plan is made. */
static void test_ended_requests_do_not_wait(void **state)
{
    (void)state;
    struct setting s = {.model = "llama-tied", .parallel = 4, .fake = true, .drawn = true};
    struct plim_error err = {0};
    struct device *device = open_device(&s);
    struct engine *e = open_engine(&s, device);
    struct listener l = {e, -1};
    int32_t prompt[] = {5, 6, 7};
    struct engine_request ask = {.prompt = prompt, .count = 3, .tokens = 2, .logprobs = -1};
    ask.ignore_eos = true, ask.hear = hear_budget, ask.arg = &l;
    for (int i = 0; i < 2; i++) assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_OK);
    while (!e->untold_ends) {
        assert_int_equal(engine_step(e, &err), PLIM_OK);
        engine_stats(e, &s.stats);
        assert_int_equal(s.stats.waiting, 0);
    }
    assert_true(engine_busy(e) && s.stats.running == 0 && l.budget == -1);
    int64_t before = engine_plan(e)->budget, after = engine_plan(e)->total - s.plan.pool / 4;
    assert_int_equal(engine_set_budget(e, after, &err), PLIM_OK);
    assert_int_equal(engine_step(e, &err), PLIM_OK);
    assert_int_equal(l.budget, before);
    assert_int_equal(engine_plan(e)->budget, after);
    assert_false(engine_busy(e));
    engine_close(e);
    device->ops->close(device);
}

static bool stop_at_two(void *arg, const struct engine_event *event)
{
    struct heard *h = arg;
    hear(h, event);
    return h->count < 2;
}

/* A stop string is the caller's: it cancels. Such answers have ended as others do, so what is expected falls from 256 tokens. One that
 * is cancelled before its first token says nothing. */
static void test_stopped_answers_are_expected(void **state)
{
    (void)state;
    for (int fake = 0; fake < 2; fake++) {
        struct heard h[REQUESTS];
        struct setting s = {.model = "llama-tied", .parallel = 4, .fake = fake, .drawn = fake};
        struct plim_error err = {0};
        struct device *device = open_device(&s);
        struct engine *e = open_engine(&s, device);
        int64_t id;
        e->schedule.answer = 256;
        make_prompts(h, REQUESTS);
        submit(e, &h[0], 0, -1, &id);
        engine_cancel(e, id);
        steps(e);
        assert_true(h[0].ends == 1 && e->schedule.answer == 256);
        for (int r = 1; r < REQUESTS; r++) {
            struct engine_request ask = {
                .prompt = h[r].prompt, .count = h[r].length, .tokens = ANSWER, .logprobs = -1};
            ask.hear = stop_at_two, ask.arg = &h[r];
            assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_OK);
        }
        steps(e);
        assert_true(e->schedule.to_limit == 0 && e->schedule.answer > 150 && e->schedule.answer < 210);
        engine_close(e);
        device->ops->close(device);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    struct heard h[1];
    struct setting s = {.model = "llama-tied", .parallel = 1};
    struct plim_error err = {0};
    struct device *device = open_device(&s);
    struct engine *e = open_engine(&s, device), *none = NULL;
    struct engine_request ask = {
        .prompt = h->prompt, .count = 4, .tokens = 2, .hear = hear, .arg = h, .logprobs = -1};
    make_prompts(h, 1);
    ask.tokens = CONTEXT;
    assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_NO_FIT);
    ask.tokens = 1, h->prompt[2] = 100000;
    assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_BAD_INPUT);
    h->prompt[2] = 5, ask.sampling.top_p = 3;
    assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_BAD_INPUT);
    ask.sampling.top_p = 0, ask.count = 0;
    assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_BAD_INPUT);
    ask.count = 4;
    for (int r = 0; r < 1 + REQUESTS; r++) assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_OK);
    assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_BUSY);
    engine_drain(e);
    assert_int_equal(engine_run(e, NULL, &err), PLIM_OK);
    assert_int_equal(h->ends, 1 + REQUESTS);
    assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_BUSY);
    engine_close(e);
    struct engine_options o = {.model = model_dir("llama-tied"), .budget = 1000, .overhead = OVERHEAD};
    assert_int_equal(engine_open(device, &o, &none, &err), PLIM_NO_FIT);
    assert_non_null(strstr(err.text, "missing"));
    o.model = "/none";
    assert_int_equal(engine_open(device, &o, &none, &err), PLIM_IO);
    assert_null(none);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), 0);
    device->ops->close(device);
}

/* Log-probabilities of a prompt are those of the same text as an answer, in one piece and in pieces. */
static bool hear_all(void *arg, const struct engine_event *event)
{
    float **at = arg;
    if (event->token >= 0) *(*at)++ = event->logprob;
    return true;
}

static void test_prompt_logprobs(void **state)
{
    (void)state;
    enum { WAYS = 3 };
    float told[WAYS][CONTEXT + ANSWER], *at;
    struct heard h[REQUESTS];
    struct plim_error err = {0};
    make_prompts(h, REQUESTS);
    for (int way = 0; way < WAYS; way++) {
        struct setting s = {.model = "llama-tied", .parallel = way == 1 ? 3 : 16, .fake = way == 2};
        struct device *device = open_device(&s);
        struct engine *e = open_engine(&s, device);
        at = told[way];
        struct engine_request ask = {.prompt = h[2].prompt,
                                     .count = LONGEST,
                                     .tokens = 3,
                                     .prompt_logprobs = true,
                                     .hear = hear_all,
                                     .arg = &at};
        assert_int_equal(engine_submit(e, &ask, NULL, &err), PLIM_OK);
        steps(e);
        assert_int_equal(at - told[way], LONGEST + 3);
        engine_close(e);
        device->ops->close(device);
    }
    assert_true(isnan(told[0][0]));
    for (int i = 1; i < LONGEST + 3; i++)
        for (int way = 1; way < WAYS; way++) assert_true(told[0][i] < 0 && told[0][i] == told[way][i]);
}

/* --- threads ---------------------------------------------------------------------------------------------- */

struct client {
    struct engine *e;
    struct heard h[REQUESTS];
    int number;
    atomic_int ended;
};

static bool hear_client(void *arg, const struct engine_event *event)
{
    struct client *c = arg;
    if (event->finish != FINISH_NONE) atomic_fetch_add(&c->ended, 1);
    return event->tokens < 9;
}

static void *client_main(void *arg)
{
    struct client *c = arg;
    struct engine_stats stats;
    int sent = 0;
    for (int r = 0; r < REQUESTS; r++) {
        struct engine_request ask = {.prompt = c->h[r].prompt,
                                     .count = c->h[r].length,
                                     .tokens = ANSWER,
                                     .logprobs = -1,
                                     .hear = hear_client,
                                     .arg = c};
        int64_t id;
        if (engine_submit(c->e, &ask, &id, NULL) == PLIM_OK) sent++;
        if ((r + c->number) % 3 == 0) engine_cancel(c->e, id);
        engine_stats(c->e, &stats);
        if (c->number == 0 && r % 3 == 0) engine_set_budget(c->e, 0, NULL);
    }
    while (atomic_load(&c->ended) < sent) sched_yield();
    return NULL;
}

static void *run_main(void *arg)
{
    struct plim_error err = {0};
    return engine_run(arg, NULL, &err) == PLIM_OK ? NULL : arg;
}

static void test_threads(void **state)
{
    (void)state;
    enum { CLIENTS = 3 };
    static struct client clients[CLIENTS];
    struct setting s = {.model = "llama-tied", .parallel = 8};
    struct device *device = open_device(&s);
    struct engine *e = open_engine(&s, device);
    pthread_t runner, thread[CLIENTS];
    void *failed = NULL;
    assert_int_equal(pthread_create(&runner, NULL, run_main, e), 0);
    for (int i = 0; i < CLIENTS; i++) {
        clients[i].e = e, clients[i].number = i;
        make_prompts(clients[i].h, REQUESTS);
        assert_int_equal(pthread_create(&thread[i], NULL, client_main, &clients[i]), 0);
    }
    for (int i = 0; i < CLIENTS; i++) pthread_join(thread[i], NULL);
    engine_drain(e);
    pthread_join(runner, &failed);
    assert_null(failed);
    engine_stats(e, &s.stats);
    assert_int_equal(s.stats.blocks_used, 0);
    engine_close(e);
    device->ops->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_llama_untied),
        cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_equal_block_after_another),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_gemma2),
        cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_phi3),
        cmocka_unit_test(test_olmo2),
        cmocka_unit_test(test_smollm3),
        cmocka_unit_test(test_coded),
        cmocka_unit_test(test_ahead),
        cmocka_unit_test(test_crowd),
        cmocka_unit_test(test_swapped),
        cmocka_unit_test(test_moving_line),
        cmocka_unit_test(test_moving_line_of_a_device),
        cmocka_unit_test(test_cancel),
        cmocka_unit_test(test_told),
        cmocka_unit_test(test_cancel_while_rows_are_taken),
        cmocka_unit_test(test_ended_requests_do_not_wait),
        cmocka_unit_test(test_stopped_answers_are_expected),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
