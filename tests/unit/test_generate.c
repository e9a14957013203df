/* test_generate.c - generation with a cache says what a whole forward pass says: for each architecture, the
 * likeliest token after every prefix is the one generator_run hands out, whatever the chunk of the prompt. */
#include "support/fake_device.h"
#include "support/model_rig.h"
#include "serve/generate.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define LENGTH   41
#define ANSWER   12
#define OVERHEAD (8 << 20) /* said, not measured: budgets mean the same in every build */

static const char *model_dir(const char *name)
{
    const char *src = getenv("SRC_DIR");
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", src ? src : ".", name);
    return path;
}

struct heard {
    int32_t tokens[ANSWER];
    int count, stop_after;
};

static bool hear(void *arg, int32_t token)
{
    struct heard *h = arg;
    h->tokens[h->count++] = token;
    return h->count != h->stop_after;
}

/* The likeliest token after tokens[0..n), by one pass without a cache; *sure: far enough from the second. */
static int32_t likeliest(const char *dir, const int32_t *tokens, int n, bool *sure)
{
    struct model_rig rig;
    int32_t pos[LENGTH + ANSWER];
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

static void make_prompt(int32_t *tokens)
{
    for (int i = 0; i < LENGTH; i++) tokens[i] = (i * 37 + 11) % 100 + 3;
}

/* One run from a fresh generator; the device is closed. */
static void answer_on(struct device *device, const char *dir, int64_t budget, struct heard *out,
                      struct generate_plan *plan)
{
    struct generator *g;
    struct generate_result result;
    struct plim_error err = {0};
    int32_t tokens[LENGTH];
    make_prompt(tokens);
    *out = (struct heard){0};
    struct generate_room room = {.prompt = LENGTH, .tokens = ANSWER, .budget = budget, .overhead = OVERHEAD};
    if (generator_open(dir, device, &room, &g, &err) != PLIM_OK) fail_msg("%s", err.text);
    *plan = *generator_plan(g);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), plan->total);
    struct generate_request ask = {
        .prompt = tokens, .count = LENGTH, .tokens = ANSWER, .hear = hear, .arg = out};
    for (int again = 0; again < 2; again++) { /* a second run starts from an empty cache */
        struct heard first = *out;
        *out = (struct heard){0};
        if (generator_run(g, &ask, &result, &err) != PLIM_OK) fail_msg("%s", err.text);
        assert_int_equal(result.tokens, out->count);
        if (again) assert_memory_equal(&first, out, sizeof first);
    }
    generator_close(g);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), 0);
    device->ops->close(device);
}

static void answer(const char *dir, int threads, int64_t budget, struct heard *out,
                   struct generate_plan *plan)
{
    struct device *device;
    struct plim_error err = {0};
    assert_int_equal(device_cpu_open(threads, &device, &err), PLIM_OK);
    answer_on(device, dir, budget, out, plan);
}

static void check_model(const char *name)
{
    const char *dir = model_dir(name);
    int32_t tokens[LENGTH + ANSWER];
    struct heard chunked, single;
    struct generate_plan plan;
    answer(dir, 2, 0, &chunked, &plan);
    assert_int_equal(plan.chunk, GENERATE_CHUNK);
    assert_in_range(plan.positions, LENGTH, LENGTH + ANSWER - 1); /* a model may have fewer */
    make_prompt(tokens);
    for (int i = 0; i < chunked.count; i++) {
        bool sure;
        int32_t want = likeliest(dir, tokens, LENGTH + i, &sure);
        if (sure) assert_int_equal(chunked.tokens[i], want);
        tokens[LENGTH + i] = chunked.tokens[i];
    }
    answer(dir, 1, 0, &single, &plan);
    assert_memory_equal(&chunked, &single, sizeof single);
    /* A device with its own memory, which begins as anything, and with recordings. */
    answer_on(&fake_open(PROMPT)->device, dir, 0, &single, &plan);
    assert_memory_equal(&chunked, &single, sizeof single);
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

/* A token costs a device with its own memory one launch, a write each for token and position, and one read; both passes
 * have their programs at once. */
static void test_cost_of_a_token(void **state)
{
    (void)state;
    struct fake *f = fake_open(PROMPT);
    struct generator *g;
    struct generate_result result;
    struct plim_error err = {0};
    int32_t tokens[LENGTH];
    make_prompt(tokens);
    struct generate_room room = {.prompt = LENGTH, .tokens = ANSWER, .overhead = OVERHEAD};
    if (generator_open(model_dir("llama-tied"), &f->device, &room, &g, &err) != PLIM_OK)
        fail_msg("%s", err.text);
    assert_int_equal(ledger_current(f->device.ledger[TIER_HOST]), OVERHEAD);
    struct generate_request ask = {.prompt = tokens, .count = LENGTH, .tokens = 1};
    assert_int_equal(generator_run(g, &ask, &result, &err), PLIM_OK); /* the prompt's program */
    for (int tokens_more = 4; tokens_more <= ANSWER; tokens_more += 4) {
        int launches = f->launches, reads = f->reads, writes = f->writes;
        ask.tokens = tokens_more;
        assert_int_equal(generator_run(g, &ask, &result, &err), PLIM_OK);
        int passes = (int)(f->launches - launches);
        assert_int_equal(f->writes - writes, 2 * passes);
        assert_int_equal(f->reads - reads, result.tokens + (result.stop == GENERATE_END));
        assert_int_equal(passes,
                         2 + result.tokens - (result.stop != GENERATE_END)); /* two chunks of the prompt */
    }
    assert_int_equal(fake_programs(f), 2);
    assert_int_equal(f->compiled, 2);
    generator_close(g);
    assert_int_equal(fake_programs(f), 0);
    f->device.ops->close(&f->device);
}

static void test_tight_budget(void **state)
{
    (void)state;
    struct heard wide, tight;
    struct generate_plan plan, less;
    answer(model_dir("llama-tied"), 2, 0, &wide, &plan);
    /* Room for single tokens and little more: the chunk shrinks, the text stays. */
    answer(model_dir("llama-tied"), 2, plan.total - plan.arena / 16, &tight, &less);
    assert_true(less.chunk < plan.chunk && less.total <= less.budget);
    assert_memory_equal(&wide, &tight, sizeof wide);
    struct device *device;
    struct generator *g;
    struct plim_error err = {0};
    struct generate_room room = {LENGTH, ANSWER, .budget = OVERHEAD + plan.params, .overhead = OVERHEAD};
    assert_int_equal(device_cpu_open(1, &device, &err), PLIM_OK);
    assert_int_equal(generator_open(model_dir("llama-tied"), device, &room, &g, &err), PLIM_NO_FIT);
    assert_non_null(strstr(err.text, "missing"));
    device->ops->close(device);
}

static void test_refusals(void **state)
{
    (void)state;
    struct device *device;
    struct generator *g = NULL;
    struct plim_error err = {0};
    assert_int_equal(device_cpu_open(1, &device, &err), PLIM_OK);
    const char *dir = model_dir("llama-tied");
    assert_int_equal(
        generator_open(dir, device, &(struct generate_room){LENGTH, ANSWER, .budget = 1000}, &g, &err),
        PLIM_NO_FIT);
    assert_int_equal(generator_open(dir, device, &(struct generate_room){1 << 20, 1}, &g, &err),
                     PLIM_BAD_INPUT);
    assert_int_equal(generator_open(dir, device, &(struct generate_room){0, 1}, &g, &err), PLIM_BAD_INPUT);
    assert_int_equal(generator_open("/none", device, &(struct generate_room){1, 1}, &g, &err), PLIM_IO);
    assert_null(g);
    assert_int_equal(ledger_current(device->ledger[TIER_DEVICE]), 0);
    device->ops->close(device);
}

static void test_stops(void **state)
{
    (void)state;
    struct device *device;
    struct generator *g;
    struct generate_result result;
    struct plim_error err = {0};
    struct heard heard = {.stop_after = 3};
    int32_t tokens[LENGTH];
    make_prompt(tokens);
    assert_int_equal(device_cpu_open(1, &device, &err), PLIM_OK);
    struct generate_room room = {.prompt = LENGTH, .tokens = ANSWER};
    assert_int_equal(generator_open(model_dir("llama-tied"), device, &room, &g, &err), PLIM_OK);
    struct generate_request ask = {
        .prompt = tokens, .count = LENGTH, .tokens = ANSWER, .hear = hear, .arg = &heard};
    assert_int_equal(generator_run(g, &ask, &result, &err), PLIM_OK);
    assert_int_equal(result.stop, GENERATE_ASKED);
    assert_int_equal(heard.count, 3);
    ask.tokens = 2 * ANSWER, ask.hear = NULL; /* more than there is room for */
    assert_int_equal(generator_run(g, &ask, &result, &err), PLIM_OK);
    assert_true(result.stop == GENERATE_FULL || result.stop == GENERATE_END);
    tokens[5] = 100000;
    assert_int_equal(generator_run(g, &ask, &result, &err), PLIM_BAD_INPUT);
    generator_close(g);
    device->ops->close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_llama),
        cmocka_unit_test(test_llama_untied),
        cmocka_unit_test(test_mistral),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_qwen3),
        cmocka_unit_test(test_gemma2),
        cmocka_unit_test(test_gemma3),
        cmocka_unit_test(test_phi3),
        cmocka_unit_test(test_olmo2),
        cmocka_unit_test(test_smollm3),
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_tight_budget),
        cmocka_unit_test(test_cost_of_a_token),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
