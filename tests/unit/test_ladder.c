/* run-tests: long */
/* test_ladder.c - the right rung for each failure: too little memory for each of them, memory refused and kernels missing at each
 * stage, a device lost while requests run. What was under way goes on, and gets what it would have got. */
#include "support/fake_device.h"
#include "support/pace.h"
#include "base/fault.h"
#include "base/rng.h"
#include "device/registry.h"
#include "serve/ladder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { REQUESTS = 5, LONGEST = 50, ANSWER = 10, CONTEXT = LONGEST + ANSWER };
#define OVERHEAD (8 << 20)

static char model[512];

static int find_model(void **state)
{
    (void)state;
    const char *src = getenv("SRC_DIR");
    snprintf(model, sizeof model, "%s/tests/golden/llama-untied", src ? src : ".");
    return 0;
}

/* --- a place to serve from -------------------------------------------------------------------------------- */

struct place {
    struct ladder ladder;
    struct fake *fake; /* while it is open */
    int opened, fallbacks;
    bool full, on_cpu; /* the fake refuses memory; the device asked for is the CPU */
    char log[8192];
};

static enum plim_status open_device(void *arg, bool fallback, struct device **out, struct plim_error *err)
{
    struct place *p = arg;
    p->opened++, p->fallbacks += fallback;
    if (fallback || p->on_cpu) return backend_open_fallback(NULL, 2, out, err);
    p->fake = fake_open(LATE_FETCHES);
    p->fake->full = p->full;
    *out = &p->fake->device;
    return PLIM_OK;
}

static void keep_line(void *arg, enum log_level level, const char *line)
{
    struct place *p = arg;
    size_t at = strlen(p->log);
    snprintf(p->log + at, sizeof p->log - at, "%s%s\n", level == LOG_LEVEL_WARN ? "warning: " : "", line);
}

static struct log sink;

static void make_place(struct place *p, unsigned allowed, int64_t budget)
{
    *p = (struct place){.ladder = {.allowed = allowed, .fallback = true, .open = open_device, .arg = p}};
    sink = (struct log){LOG_LEVEL_DEBUG, keep_line, p};
    p->ladder.log = &sink;
    p->ladder.options = (struct engine_options){
        .model = model, .budget = budget, .max_context = 0, .queue = REQUESTS, .overhead = OVERHEAD};
}

static struct engine *stand(struct place *p)
{
    struct engine *e;
    struct plim_error err = {0};
    if (ladder_open(&p->ladder, &e, &err) != PLIM_OK) fail_msg("%s\n%s", err.text, p->log);
    p->ladder.stage = NULL;
    return e;
}

static const char *rung_of(const struct place *p) { return ladder_rung(p->ladder.rung)->name; }

static void leave(struct place *p, struct engine *e)
{
    engine_close(e);
    ladder_close(&p->ladder);
}

/* --- requests --------------------------------------------------------------------------------------------- */

struct heard {
    int32_t prompt[LONGEST], tokens[ANSWER];
    int length, count;
    enum engine_finish finish;
    char why[160];
};

static bool hear(void *arg, const struct engine_event *event)
{
    struct heard *h = arg;
    if (event->token >= 0) h->tokens[h->count++] = event->token;
    if (event->finish != FINISH_NONE) h->finish = event->finish;
    if (event->why) snprintf(h->why, sizeof h->why, "%s", event->why);
    return true;
}

static void submit(struct engine *e, struct heard *h, int length, int tokens)
{
    struct plim_error err = {0};
    struct engine_request ask = {.prompt = h->prompt,
                                 .count = length,
                                 .tokens = tokens,
                                 .logprobs = -1,
                                 .ignore_eos = true,
                                 .hear = hear,
                                 .arg = h};
    if (engine_submit(e, &ask, NULL, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void submit_all(struct engine *e, struct heard *h)
{
    memset(h, 0, REQUESTS * sizeof *h);
    for (int r = 0; r < REQUESTS; r++) {
        h[r].length = LONGEST - 7 * r;
        for (int i = 0; i < h[r].length; i++)
            h[r].prompt[i] = (int32_t)(3 + rng_below(5, (uint64_t)r, (uint64_t)i, 60));
        submit(e, &h[r], h[r].length, ANSWER);
    }
}

static void finish_all(struct engine *e)
{
    struct plim_error err = {0};
    while (engine_busy(e))
        if (engine_step(e, &err) != PLIM_OK) fail_msg("%s", err.text);
}

/* What everybody gets where nothing fails. */
static void undisturbed(struct heard *h)
{
    struct place p;
    make_place(&p, 0, 0);
    p.on_cpu = true;
    struct engine *e = stand(&p);
    submit_all(e, h);
    finish_all(e);
    leave(&p, e);
}

static void same(const struct heard *a, const struct heard *b)
{
    for (int r = 0; r < REQUESTS; r++) {
        assert_int_equal(a[r].finish, FINISH_LENGTH);
        assert_memory_equal(a[r].tokens, b[r].tokens, sizeof a[r].tokens);
    }
}

/* --- too little memory for each rung ---------------------------------------------------------------------- */

/* The rung that the planner takes on the fake device; OFFER_RUNGS: nothing fits that is of any use. */
static enum offer_rung planned(int64_t budget, unsigned allowed)
{
    struct fake *fake = fake_open(PROMPT);
    struct engine *e = NULL;
    struct plim_error err = {0};
    struct engine_options o = {.model = model, .budget = budget, .queue = REQUESTS, .overhead = OVERHEAD};
    o.plan_only = o.stream = true;
    o.allow_kv8 = allowed & ALLOW_KV8, o.allow_window = allowed & ALLOW_WINDOW;
    enum plim_status status = engine_open(&fake->device, &o, &e, &err);
    if (status != PLIM_OK) assert_int_equal(status, PLIM_NO_FIT);
    bool useful = status == PLIM_OK && (!o.allow_window || engine_plan(e)->context >= CONTEXT);
    enum offer_rung rung = useful ? engine_plan(e)->offer_rung : OFFER_RUNGS;
    if (status == PLIM_OK) engine_close(e);
    fake->device.ops->close(&fake->device);
    return rung;
}

/* The smallest budget that does not come below a rung. */
static int64_t smallest(enum offer_rung rung, unsigned allowed)
{
    int64_t low = 1, high = 1 << 25;
    assert_true(planned(high, allowed) == OFFER_FULL);
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (planned(middle, allowed) <= rung)
            high = middle;
        else
            low = middle;
    }
    return high;
}

static void each_budget_has_its_rung(void **state)
{
    (void)state;
    int64_t full = smallest(OFFER_FULL, 0), fewer = smallest(OFFER_FEWER, 0);
    int64_t streamed = smallest(OFFER_STREAMED, 0), minimal = smallest(OFFER_MINIMAL, ALLOW_WINDOW);
    int64_t streamed_long = smallest(OFFER_STREAMED, ALLOW_WINDOW);
    assert_true(full > fewer && fewer > streamed && streamed_long > minimal);
    struct heard want[REQUESTS], got[REQUESTS];
    undisturbed(want);
    const struct {
        int64_t budget;
        unsigned allowed;
        const char *rung;
        bool limited;
    } cases[] = {{0, 0, "full", false},
                 {full, 0, "full", false},
                 {full - 1, 0, "fewer", false},
                 {fewer, 0, "fewer", false},
                 {fewer - 1, ALLOW_KV8, "kv8", false},
                 {fewer - 1, 0, "streamed", true},
                 {streamed, 0, "streamed", true},
                 {fewer, ALLOW_WINDOW, "fewer", false},
                 {fewer - 1, ALLOW_WINDOW, "streamed", true},
                 {streamed_long - 1, ALLOW_WINDOW, "minimal", true},
                 {minimal, ALLOW_WINDOW, "minimal", true}};
    for (size_t i = 0; i<sizeof cases / sizeof *cases; i += EVERY> 10 ? 2 : 1) {
        struct place p;
        make_place(&p, cases[i].allowed, cases[i].budget);
        struct engine *e = stand(&p);
        if (strcmp(rung_of(&p), cases[i].rung)) fail_msg("case %zu: rung %s\n%s", i, rung_of(&p), p.log);
        assert_string_equal(engine_plan(e)->rung, cases[i].rung);
        assert_true(!cases[i].budget || engine_plan(e)->total <= cases[i].budget);
        assert_int_equal(engine_plan(e)->window, strcmp(cases[i].rung, "minimal") ? 0 : 32);
        if (engine_plan(e)->streamed == 0) assert_string_not_equal(cases[i].rung, "streamed");
        assert_true(!strstr(p.log, "performance will be limited") == !cases[i].limited);
        assert_int_equal(engine_plan(e)->kv_type == DT_U8, !strcmp(cases[i].rung, "kv8"));
        bool exact = !engine_plan(e)->window && engine_plan(e)->kv_type != DT_U8;
        if (engine_plan(e)->context >= CONTEXT && exact) {
            submit_all(e, got);
            finish_all(e);
            same(got, want);
        }
        leave(&p, e);
    }
    struct place p;
    struct engine *e;
    struct plim_error err = {0};
    make_place(&p, 0, streamed - 1);
    p.ladder.fallback = false;
    assert_int_equal(ladder_open(&p.ladder, &e, &err), PLIM_NO_FIT);
    assert_non_null(strstr(err.text, "missing"));
    ladder_close(&p.ladder);
}

/* --- refused at each stage -------------------------------------------------------------------------------- */

static void refused_memory_leads_to_the_cpu(void **state)
{
    (void)state;
    struct heard want[REQUESTS], got[REQUESTS];
    undisturbed(want);
    struct place p;
    make_place(&p, ALLOW_WINDOW, 0);
    p.full = true;
    struct engine *e = stand(&p);
    assert_string_equal(rung_of(&p), "cpu");
    assert_int_equal(p.fallbacks, 1);
    const char *tried[] = {
        "rung full: RESOURCE_EXHAUSTED",
        "rung fewer: RESOURCE_EXHAUSTED",
        "rung streamed: RESOURCE_EXHAUSTED",
        "rung minimal: RESOURCE_EXHAUSTED",
        "warning: rung cpu: on the CPU, in the type of the weights; performance will be limited",
        "host ",
        "after stage model_loaded_cpu"};
    for (size_t i = 0; i < sizeof tried / sizeof *tried; i++)
        if (!strstr(p.log, tried[i])) fail_msg("no '%s' in\n%s", tried[i], p.log);
    submit_all(e, got);
    finish_all(e);
    same(got, want);
    leave(&p, e);
}

/* The nth call of a fault point fails while the server opens, until so many are over that nothing fails. */
static int each_call_fails(enum fault_point point, const char *cause, bool on_cpu)
{
    struct heard want[REQUESTS], got[REQUESTS];
    undisturbed(want);
    for (int n = 1;; n += EVERY > 10 ? 3 : 1) {
        struct place p;
        make_place(&p, 0, 0);
        p.on_cpu = on_cpu;
        fault_set(fault_process(), point, n);
        struct engine *e = stand(&p);
        bool hit = atomic_load(&fault_process()->left[point]) <= 0;
        fault_set(fault_process(), point, 0);
        if (hit != (strstr(p.log, cause) != NULL)) fail_msg("call %d: no %s in\n%s", n, cause, p.log);
        if (hit == !strcmp(rung_of(&p), "full")) fail_msg("call %d: rung %s\n%s", n, rung_of(&p), p.log);
        submit_all(e, got);
        finish_all(e);
        same(got, want);
        leave(&p, e);
        if (!hit) return n - 1;
        assert_true(n < 400);
    }
}

static void every_allocation_may_fail(void **state)
{
    (void)state;
    assert_true(each_call_fails(FAULT_ALLOC, "RESOURCE_EXHAUSTED", true) >= 1);
    assert_true(each_call_fails(FAULT_RESERVE, "RESOURCE_EXHAUSTED", false) >= 2);
}

static void every_program_may_fail(void **state)
{
    (void)state;
    assert_true(each_call_fails(FAULT_COMPILE, "compile", false) >= 5);
    struct place p; /* on the CPU float32 is left */
    make_place(&p, 0, 0);
    p.on_cpu = true;
    fault_set(fault_process(), FAULT_COMPILE, 1);
    struct engine *e = stand(&p);
    assert_string_equal(rung_of(&p), "cpu-fp32");
    assert_int_equal(engine_plan(e)->precision, PRECISION_F32);
    leave(&p, e);
}

/* A file that is not there is no reason to try anything else. */
static void bad_input_is_told_at_once(void **state)
{
    (void)state;
    struct place p;
    struct engine *e;
    struct plim_error err = {0};
    make_place(&p, ALLOW_KV8 | ALLOW_WINDOW, 0);
    p.ladder.options.model = "/nowhere";
    assert_int_not_equal(ladder_open(&p.ladder, &e, &err), PLIM_OK);
    assert_string_equal(rung_of(&p), "full");
    assert_string_equal(p.log, "");
    ladder_close(&p.ladder);
}

/* --- lost while requests run ------------------------------------------------------------------------------ */

static void a_lost_device_loses_no_request(void **state)
{
    (void)state;
    struct heard want[REQUESTS], got[REQUESTS];
    undisturbed(want);
    for (int after = 0; after < 10; after += 3) {
        struct place p;
        struct plim_error err = {0};
        make_place(&p, 0, 0);
        struct engine *e = stand(&p);
        submit_all(e, got);
        for (int i = 0; i < after; i++) assert_int_equal(engine_step(e, &err), PLIM_OK);
        p.fake->lost = true;
        enum plim_status status = engine_step(e, &err);
        assert_int_equal(status, PLIM_IO);
        assert_int_equal(failure_of(status, NULL, p.ladder.device), FAILURE_LOST);
        if (ladder_down(&p.ladder, e, status, &err) != PLIM_OK) fail_msg("%s\n%s", err.text, p.log);
        assert_string_equal(rung_of(&p), "cpu");
        assert_non_null(strstr(p.log, "rung full: device lost after stage ready"));
        finish_all(e);
        same(got, want);
        assert_int_equal(ledger_current(p.ladder.device->ledger[TIER_DEVICE]), engine_plan(e)->total);
        leave(&p, e);
    }
}

static void a_lost_device_without_another_ends(void **state)
{
    (void)state;
    struct place p;
    struct plim_error err = {0};
    struct heard got[REQUESTS];
    make_place(&p, ALLOW_KV8 | ALLOW_WINDOW, 0);
    p.ladder.fallback = false;
    struct engine *e = stand(&p);
    submit_all(e, got);
    p.fake->lost = true;
    enum plim_status status = engine_step(e, &err);
    assert_int_equal(ladder_down(&p.ladder, e, status, &err), PLIM_IO);
    assert_non_null(strstr(err.text, "lost"));
    leave(&p, e);
    for (int r = 0; r < REQUESTS; r++) assert_int_equal(got[r].finish, FINISH_CANCELLED);
}

/* A request that the new plan does not promise is told so; the others go on. */
static void too_long_for_the_next_rung(void **state)
{
    (void)state;
    struct place p;
    struct plim_error err = {0};
    struct heard got[REQUESTS];
    make_place(&p, 0, 0);
    struct engine *e = stand(&p);
    int64_t before = engine_plan(e)->context;
    submit_all(e, got);
    assert_int_equal(engine_step(e, &err), PLIM_OK);
    p.fake->lost = true;
    enum plim_status status = engine_step(e, &err);
    p.ladder.options.max_context = got[1].length + ANSWER - 1;
    assert_int_equal(ladder_down(&p.ladder, e, status, &err), PLIM_OK);
    assert_true(engine_plan(e)->context < before);
    finish_all(e);
    assert_int_equal(got[0].finish, FINISH_FAILED);
    assert_non_null(strstr(got[0].why, "59"));
    for (int r = 1; r < REQUESTS; r++) assert_int_equal(got[r].finish, FINISH_LENGTH);
    leave(&p, e);
}

/* --- the window ------------------------------------------------------------------------------------------- */

static void a_window_sees_the_last_tokens(void **state)
{
    (void)state;
    struct place p, q;
    struct heard got[REQUESTS], one;
    make_place(&p, ALLOW_WINDOW, 0), make_place(&q, 0, 0);
    p.ladder.options.window = p.ladder.options.step_tokens = 32, p.ladder.options.parallel = 1;
    p.on_cpu = q.on_cpu = true;
    struct engine *e = stand(&p), *whole = stand(&q);
    assert_int_equal(engine_plan(e)->blocks, 2);
    submit_all(e, got);
    finish_all(e);
    for (int r = 0; r < REQUESTS; r++)
        for (int i = 0; i < ANSWER; i++) {
            int known = got[r].length + i, seen = known < 32 ? known : 32;
            int32_t all[LONGEST + ANSWER];
            memcpy(all, got[r].prompt, sizeof got[r].prompt);
            memcpy(all + got[r].length, got[r].tokens, sizeof got[r].tokens);
            one = (struct heard){0};
            memcpy(one.prompt, all + known - seen, (size_t)seen * sizeof *all);
            submit(whole, &one, seen, 1);
            finish_all(whole);
            assert_int_equal(one.tokens[0], got[r].tokens[i]);
        }
    struct engine_stats stats;
    engine_stats(e, &stats);
    assert_int_equal(stats.blocks_used, 0);
    leave(&p, e), leave(&q, whole);
}

static void kinds_are_read(void **state)
{
    (void)state;
    unsigned bits = 9;
    assert_true(ladder_read_allowed("kv8,window", &bits) && bits == (ALLOW_KV8 | ALLOW_WINDOW));
    assert_true(ladder_read_allowed("all", &bits) && bits == (ALLOW_KV8 | ALLOW_WINDOW));
    assert_true(ladder_read_allowed("none", &bits) && bits == 0);
    assert_false(ladder_read_allowed("", &bits) || ladder_read_allowed("kv8,", &bits) ||
                 ladder_read_allowed("kv", &bits));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_budget_has_its_rung),
        cmocka_unit_test(refused_memory_leads_to_the_cpu),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_program_may_fail),
        cmocka_unit_test(bad_input_is_told_at_once),
        cmocka_unit_test(a_lost_device_loses_no_request),
        cmocka_unit_test(a_lost_device_without_another_ends),
        cmocka_unit_test(too_long_for_the_next_rung),
        cmocka_unit_test(a_window_sees_the_last_tokens),
        cmocka_unit_test(kinds_are_read),
    };
    return cmocka_run_group_tests(tests, find_model, NULL);
}
