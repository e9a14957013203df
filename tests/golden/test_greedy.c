/* test_greedy.c - the engine's greedy tokens and their log-probabilities are transformers' (greedy.json, made by make_greedy.py), alone and side by
 * side, in chunks, with a pool too small for all and with shared blocks. With a file of more cases it says what it has seen.
 *
 *     TEST_DEVICE=pjrt:/path/plugin.so test_greedy --as-cpu llama-tied granite
 *
 * compares the device's answers with the CPU's instead. The engine has few sizes there, because each is a program to compile. */
#include "base/json.h"
#include "serve/engine.h"
#include "support/test_device.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ANSWER = 12, MOST = 1000 };
#define AS_CPU 2e-5 /* between two orders of summation in fp32 */

static const char *cases_file; /* NULL: the golden one */
static char **models;          /* to compare with the CPU; NULL after the last */
static int64_t shared;         /* tokens, by all models */
static int64_t preempted;      /* requests, in pools too small for all, by all models */

struct heard {
    int32_t tokens[ANSWER];
    float logprobs[ANSWER];
    int count;
};

static const char *golden(const char *name)
{
    const char *src = getenv("SRC_DIR");
    static char path[512];
    snprintf(path, sizeof path, "%s/tests/golden/%s", src ? src : ".", name);
    return path;
}

static bool hear(void *arg, const struct engine_event *event)
{
    struct heard *h = arg;
    if (event->token >= 0) h->logprobs[h->count] = event->logprob, h->tokens[h->count++] = event->token;
    return true;
}

static void submit(struct engine *e, const struct node *one, struct heard *h)
{
    const struct node *prompt = node_get(one, "prompt");
    size_t count = node_count(prompt);
    struct plim_error err = {0};
    int32_t *ids = malloc(count * sizeof *ids);
    for (size_t i = 0; i < count; i++) ids[i] = (int32_t)node_int(node_item(prompt, i), -1);
    struct engine_request ask = {
        .prompt = ids, .count = (int64_t)count, .tokens = ANSWER, .logprobs = 0, .hear = hear, .arg = h};
    if (engine_submit(e, &ask, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
    free(ids);
}

/* The most by which log-probabilities differ; tokens are the same. */
static double compare(const char *model, const struct node *cases, const struct heard *heard)
{
    double worst = 0;
    for (size_t i = 0; i < node_count(cases); i++) {
        const struct node *tokens = node_get(node_item(cases, i), "tokens"),
                          *logprobs = node_get(node_item(cases, i), "logprobs");
        for (size_t k = 0; k < node_count(tokens); k++) {
            double apart = fabs((double)heard[i].logprobs[k] - node_float(node_item(logprobs, k), 1));
            if ((int)k >= heard[i].count || heard[i].tokens[k] != node_int(node_item(tokens, k), -1))
                fail_msg("%s: prompt %zu, token %zu", model, i, k);
            if (!(apart < 1e-4)) fail_msg("%s: prompt %zu, token %zu: %g apart", model, i, k, apart);
            worst = apart > worst ? apart : worst;
        }
    }
    return worst;
}

/* A model's answers to the prompts of all cases, and what there is to know of the engine. */
struct answers {
    struct heard heard[MOST];
    struct engine_stats stats;
    struct engine_plan plan;
};

static void shrink_pool(struct engine *e)
{
    struct plim_error err = {0};
    const struct engine_plan *p = engine_plan(e);
    int64_t block = p->pool / p->blocks, least = (p->context + ENGINE_BLOCK - 1) / ENGINE_BLOCK;
    assert_int_equal(engine_set_budget(e, p->total - p->pool + (least + 1) * block, &err), PLIM_OK);
}

/* The device is closed. */
static void answer(struct device *device, const char *model, const struct node *cases,
                   struct engine_options o, bool tight, struct answers *out)
{
    struct engine *e;
    struct plim_error err = {0};
    memset(out, 0, sizeof *out);
    o.model = golden(model), o.queue = MOST, o.overhead = 8 << 20;
    o.usual_answer = -1; /* expects nothing of answers until some have ended: a small pool preempts */
    if (!strncmp(model, "t5", 2)) o.max_context = 100; /* it has no last position */
    if (engine_open(device, &o, &e, &err) != PLIM_OK) fail_msg("%s: %s", model, err.text);
    if (tight && !engine_plan(e)->answer) shrink_pool(e);
    for (size_t i = 0; i < node_count(cases); i++) submit(e, node_item(cases, i), &out->heard[i]);
    while (engine_busy(e))
        if (engine_step(e, &err) != PLIM_OK) fail_msg("%s: %s", model, err.text);
    engine_stats(e, &out->stats);
    out->plan = *engine_plan(e);
    engine_close(e);
    device->ops->close(device);
}

static void check(const char *model, const struct node *cases, struct engine_options o, bool tight)
{
    static struct answers got;
    struct device *device;
    struct plim_error err = {0};
    if (test_device_open(2, &device, &err) != PLIM_OK) fail_msg("%s", err.text);
    answer(device, model, cases, o, tight, &got);
    double worst = compare(model, cases, got.heard);
    if (tight && !got.plan.answer) preempted += got.stats.preemptions;
    if (o.no_prefix_sharing) assert_int_equal(got.stats.shared_tokens, 0);
    shared += got.stats.shared_tokens;
    if (cases_file)
        print_message(
            "%-12s %zu prompts, %d at once%s: log-probabilities %.1e apart, %lld tokens shared, %lld "
            "preemptions\n",
            model, node_count(cases), got.plan.parallel, o.chunk ? ", chunks" : "", worst,
            (long long)got.stats.shared_tokens, (long long)got.stats.preemptions);
}

/* A model without golden answers gets another's prompts. */
static void check_as_cpu(const struct node *all, const char *model)
{
    static struct answers got, want;
    struct device *device, *cpu;
    struct plim_error err = {0};
    double worst = 0;
    int tokens = 0;
    const struct node *cases = node_get(all, model) ? node_get(all, model) : node_get(all, "mixtral");
    struct engine_options o = {.parallel = 8, .step_tokens = 8};
    if (test_device_open(2, &device, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (test_device_named(backend_fallback()->name, 2, &cpu, &err) != PLIM_OK) fail_msg("%s", err.text);
    answer(cpu, model, cases, o, false, &want);
    answer(device, model, cases, o, false, &got);
    for (size_t i = 0; i < node_count(cases); i++) {
        const struct heard *a = &got.heard[i], *b = &want.heard[i];
        if (a->count != b->count) fail_msg("%s: prompt %zu: %d tokens", model, i, a->count);
        for (int k = 0; k < b->count; k++) {
            if (a->tokens[k] != b->tokens[k])
                fail_msg("%s: prompt %zu, token %d: %d instead of %d", model, i, k, a->tokens[k],
                         b->tokens[k]);
            double apart = fabs((double)a->logprobs[k] - (double)b->logprobs[k]);
            if (!(apart < AS_CPU)) fail_msg("%s: prompt %zu, token %d: %g apart", model, i, k, apart);
            worst = apart > worst ? apart : worst;
        }
        tokens += b->count;
    }
    assert_in_range(tokens, 100, MOST * ANSWER);
    print_message("# %s: %d tokens are the CPU's, log-probabilities %.1e apart\n", model, tokens, worst);
}

static void test_as_cpu(void **state)
{
    (void)state;
    struct doc *doc;
    struct plim_error err = {0};
    if (json_load(golden("greedy.json"), &doc, &err) != PLIM_OK) fail_msg("%s", err.text);
    for (char **name = models; *name; name++) check_as_cpu(&doc->root, *name);
    doc_free(doc);
}

static void test_greedy(void **state)
{
    (void)state;
    struct doc *doc;
    struct plim_error err = {0};
    if (json_load(cases_file ? cases_file : golden("greedy.json"), &doc, &err) != PLIM_OK)
        fail_msg("%s", err.text);
    assert_in_range(node_count(&doc->root), 1, 100);
    for (size_t i = 0; i < node_count(&doc->root); i++) {
        const struct node *cases = node_item(&doc->root, i);
        assert_in_range(node_count(cases), 10, MOST);
        check(cases->key, cases, (struct engine_options){.parallel = 1, .no_prefix_sharing = true}, false);
        check(cases->key, cases, (struct engine_options){.parallel = 16}, false);
        check(cases->key, cases, (struct engine_options){.parallel = 8, .step_tokens = 37, .chunk = 13},
              true);
    }
    assert_true(shared > 0);
    assert_true(preempted > 0);
    doc_free(doc);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--as-cpu")) {
        const struct CMUnitTest other[] = {cmocka_unit_test(test_as_cpu)};
        models = argv + 2;
        return cmocka_run_group_tests(other, NULL, NULL);
    }
    if (argc > 1) cases_file = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
