/* test_t5_generate.c - greedy and beam search of encoder-decoders: for 50 sources of different lengths the tokens that
 * transformers' generate() writes (make_t5.py). */
#include "device/device.h"
#include "serve/engine.h"
#include "support/golden.h"
#include "support/test_device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { TEXTS = 50, SOURCE = 20, ANSWER = 12, BUDGET = 64 << 20 };

struct answer {
    int32_t token[ANSWER];
    int count;
    enum engine_finish finish;
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct answer *a = arg;
    if (event->token >= 0) a->token[a->count++] = event->token;
    a->finish = event->finish;
    return true;
}

static void read_numbers(const struct safetensors *set, const char *name, int32_t *out)
{
    struct plim_error err = {0};
    const struct safetensor *t = safetensors_find(set, name);
    assert_non_null(t);
    assert_int_equal(safetensors_read_all(set, t, DT_I32, out, &err), PLIM_OK);
}

/* The end token, 1, and what follows it are not handed out. */
static int length_of(const int32_t *tokens)
{
    int n = 0;
    while (n < ANSWER && tokens[n] != 1) n++;
    return n;
}

/* Fewer requests at once, then as many as before: those whose rows went begin again. */
static void move_budget(struct engine *e, int step)
{
    struct plim_error err = {0};
    int64_t total = engine_plan(e)->total;
    if (step == 5 && engine_set_budget(e, total - 1, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (step == 9 && engine_set_budget(e, BUDGET, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void compare(const char *model, const char *name, int beams, int parallel)
{
    static int32_t ids[TEXTS][SOURCE], want[TEXTS][ANSWER], lengths[TEXTS];
    char path[512], file[600];
    struct plim_error err = {0};
    struct safetensors set;
    struct device *device;
    struct engine *e;
    static struct answer have[TEXTS];
    struct engine_stats stats;
    int64_t least = INT64_MAX, most = 0;
    int ended = 0;
    snprintf(file, sizeof file, "%s/expected.safetensors", golden_model(model, path, sizeof path));
    assert_int_equal(safetensors_open(file, &set, &err), PLIM_OK);
    read_numbers(&set, "text.ids", ids[0]);
    read_numbers(&set, "text.lengths", lengths);
    read_numbers(&set, name, want[0]);
    safetensors_close(&set);
    assert_int_equal(test_device_open(2, &device, &err), PLIM_OK);
    struct engine_options options = {.model = path,
                                     .max_context = SOURCE,
                                     .max_answer = ANSWER,
                                     .beams = beams,
                                     .budget = BUDGET,
                                     .overhead = BUDGET / 4,
                                     .parallel = parallel,
                                     .queue = TEXTS};
    if (engine_open(device, &options, &e, &err) != PLIM_OK) fail_msg("%s", err.text);
    memset(have, 0, sizeof have);
    for (int i = 0; i < TEXTS; i++) {
        struct engine_request ask = {.prompt = ids[i],
                                     .count = lengths[i],
                                     .tokens = ANSWER,
                                     .length_penalty = 1,
                                     .logprobs = -1,
                                     .hear = hear,
                                     .arg = &have[i]};
        if (engine_submit(e, &ask, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
    }
    for (int step = 0; engine_busy(e); step++) {
        if (parallel > 1) move_budget(e, step);
        if (engine_step(e, &err) != PLIM_OK) fail_msg("%s", err.text);
        engine_stats(e, &stats);
        if (stats.blocks > most) most = stats.blocks;
        if (stats.blocks < least) least = stats.blocks;
    }
    assert_int_equal(most, parallel);
    assert_int_equal(least, parallel > 1 ? parallel / 2 : 1);
    for (int i = 0; i < TEXTS; i++) {
        int n = length_of(want[i]);
        ended += have[i].finish == FINISH_EOS;
        if (have[i].count != n || memcmp(have[i].token, want[i], (size_t)n * sizeof *want[i]))
            fail_msg("%s: %s: source %d of %d tokens: %d tokens, transformers %d", model, name, i, lengths[i],
                     have[i].count, n);
    }
    print_message("# %s: %s, %d at once: %d answers equal, %d of them ended by themselves\n", model, name,
                  parallel, TEXTS, ended);
    engine_close(e);
    device->ops->close(device);
}

static void test_greedy(void **state)
{
    (void)state;
    compare("t5-v10", "greedy", 1, 1);
    compare("t5-v11", "greedy", 1, 7);
}

static void test_beams(void **state)
{
    (void)state;
    compare("t5-v10", "beam", 4, 1);
    compare("t5-v11", "beam", 4, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_greedy), cmocka_unit_test(test_beams)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
