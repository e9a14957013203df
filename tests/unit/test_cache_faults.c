/* run-tests: not=tsan */
/* test_cache_faults.c - every refusal at every place: the device's calls, the ledger's and the host's own memory fail one after
 * another, and the allocator stays whole, gives everything back and serves again. Then a training job: how much of the reserved
 * memory is never used at once. */
#include "mem/cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static struct plim_error err;

/* ---- the host's memory fails on demand ---- */

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define HOST_FAILS 1
void *__libc_calloc(size_t n, size_t size);
static int64_t calloc_left;

void *calloc(size_t n, size_t size)
{
    if (calloc_left > 0 && --calloc_left == 0) return NULL;
    return __libc_calloc(n, size);
}
#else
#define HOST_FAILS 0
static int64_t calloc_left;
#endif

enum point { AT_ALLOC, AT_RESERVE, AT_MAP, AT_EVENT, AT_LEDGER, AT_HOST, POINTS };

struct job {
    struct backing_simulated device;
    struct ledger ledger;
    struct fault fault;
    struct cache *cache;
    uint64_t live[64];
    int64_t refused;
};

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static void arm(struct job *j, enum point point, int64_t nth)
{
    if (point == AT_LEDGER)
        fault_set(&j->fault, FAULT_RESERVE, nth);
    else if (point == AT_HOST)
        calloc_left = nth;
    else
        j->device.refuse[point] = nth;
}

/* Has the armed call been made? */
static bool went_off(struct job *j, enum point point)
{
    if (point == AT_LEDGER) return atomic_load(&j->fault.left[FAULT_RESERVE]) == 0;
    if (point == AT_HOST) return calloc_left == 0;
    return j->device.refuse[point] == 0;
}

static void one_step(struct job *j, uint64_t *state)
{
    uint64_t r = next(state), *at = &j->live[(r >> 32) % 64], bytes = (r >> 8) % (r % 3 ? 12 * MIB : MIB);
    if (*at) {
        if (r % 3 == 0) cache_record_stream(j->cache, *at, r % 40, &err);
        assert_int_equal(cache_free(j->cache, *at, &err), PLIM_OK);
        *at = 0;
    } else {
        enum plim_status status = cache_malloc(j->cache, bytes + 1, r % 20 ? 0 : 1 + r % 7, at, &err);
        assert_true(status == PLIM_OK || status == PLIM_NO_MEMORY);
        j->refused += status != PLIM_OK;
    }
    if (r % 31 == 0) backing_simulated_finish(&j->device);
    if (r % 37 == 0) cache_clear(j->cache, false);
}

/* Runs the job with the nth call refused; false: there were fewer calls. */
static bool run_job(const char *conf, enum point point, int64_t nth)
{
    static const char *const classes[] = {"cache"};
    struct job j = {.fault = FAULT_INIT};
    struct cache_options options = {.ledger = &j.ledger};
    uint64_t state = 88172645463325252u;
    backing_simulated_init(&j.device, 300 * MIB);
    j.device.lazy = true;
    ledger_init(&j.ledger, "device", 280 * MIB, classes, 1);
    j.ledger.fault = &j.fault;
    options.backing = &j.device.base;
    assert_int_equal(cache_conf_parse(conf, &options.conf, &err), PLIM_OK);
    arm(&j, point, nth);
    enum plim_status status = cache_new(&j.cache, &options, &err);
    for (int i = 0; status == PLIM_OK && i < 260; i++) {
        one_step(&j, &state);
        if (cache_check(j.cache, &err) != PLIM_OK)
            fail_msg("'%s' point %d call %lld: %s", conf, point, (long long)nth, err.text);
        assert_int_equal(ledger_current(&j.ledger), j.device.used);
    }
    bool off = went_off(&j, point);
    arm(&j, point, 0);
    for (int i = 0; status == PLIM_OK && i < 64; i++)
        assert_int_equal(cache_free(j.cache, j.live[i], &err), PLIM_OK);
    if (status == PLIM_OK) {
        cache_clear(j.cache, true);
        assert_int_equal(j.device.used, 0);
        cache_destroy(j.cache);
    } else {
        assert_int_equal(status, PLIM_NO_MEMORY);
    }
    assert_int_equal(j.device.used + (uint64_t)j.device.ranges + (uint64_t)j.device.events, 0);
    assert_int_equal(ledger_current(&j.ledger), 0);
    assert_int_equal(ledger_check(&j.ledger, &err), PLIM_OK);
    ledger_destroy(&j.ledger);
    backing_simulated_destroy(&j.device);
    return off;
}

static void test_every_refusal(void **)
{
    static const char *const confs[] = {"", "expandable_segments:True",
                                        "max_split_size_mb:20,garbage_collection_threshold:0.5",
                                        "release_lock_on_cudamalloc:True"};
    for (int k = 0; k < 4; k++)
        for (int point = 0; point < POINTS; point++) {
            int64_t nth = 1;
            while (run_job(confs[k], (enum point)point, nth)) nth++;
            bool expandable = k == 1, expected = point == AT_ALLOC                        ? !expandable
                                                 : point == AT_RESERVE || point == AT_MAP ? expandable
                                                 : point == AT_HOST                       ? HOST_FAILS
                                                                                          : true;
            if ((nth > 1) != expected)
                fail_msg("'%s' point %d: %lld calls", confs[k], point, (long long)nth - 1);
        }
}

static void test_device_that_gives_nothing(void **)
{
    static const char *const confs[] = {"", "expandable_segments:True"};
    for (int k = 0; k < 2; k++) {
        struct backing_simulated device;
        struct cache *cache;
        struct cache_options options = {.backing = &device.base};
        uint64_t at;
        backing_simulated_init(&device, 100 * MIB);
        for (int i = 0; i < SIMULATED_CALLS; i++) device.refuse_all[i] = true;
        assert_int_equal(cache_conf_parse(confs[k], &options.conf, &err), PLIM_OK);
        assert_int_equal(cache_new(&cache, &options, &err), PLIM_OK);
        assert_int_equal(cache_malloc(cache, 1, 0, &at, &err), PLIM_NO_MEMORY);
        for (int i = 0; i < SIMULATED_CALLS; i++) device.refuse_all[i] = false;
        assert_int_equal(cache_malloc(cache, 1, 0, &at, &err), PLIM_OK);
        for (int i = 0; i < 20; i++) /* more than the device can have: no range is left behind */
            assert_int_equal(cache_malloc(cache, 200 * MIB, 0, &at, &err), PLIM_NO_MEMORY);
        assert_true(device.ranges <= 1);
        cache_destroy(cache);
        backing_simulated_destroy(&device);
    }
}

/* A failure that is no lack of memory is told as it is, at once. */
static void test_device_that_is_lost(void **)
{
    static const char *const confs[] = {"", "expandable_segments:True"};
    for (int k = 0; k < 2; k++) {
        struct backing_simulated device;
        struct cache *cache;
        struct cache_stats stats;
        struct cache_options options = {.backing = &device.base};
        uint64_t at, kept;
        backing_simulated_init(&device, 100 * MIB);
        assert_int_equal(cache_conf_parse(confs[k], &options.conf, &err), PLIM_OK);
        assert_int_equal(cache_new(&cache, &options, &err), PLIM_OK);
        assert_int_equal(cache_malloc(cache, MIB, 0, &kept, &err), PLIM_OK);
        device.lost = true;
        assert_int_equal(cache_malloc(cache, 30 * MIB, 0, &at, &err), PLIM_IO);
        assert_string_equal(err.text, "simulated device: the device is lost");
        assert_int_equal(cache_malloc(cache, MIB, 0, &at, &err), PLIM_OK); /* cached */
        cache_stats_read(cache, &stats);
        assert_int_equal(stats.num_ooms + stats.num_alloc_retries, 0);
        assert_int_equal(cache_check(cache, &err), PLIM_OK);
        cache_destroy(cache);
        backing_simulated_destroy(&device);
    }
}

/* ---- a training job ---- */

enum { LAYERS = 16, TENSORS = 9, STEPS = 24 };

struct training {
    struct cache *cache;
    uint64_t grads[LAYERS][TENSORS], kept[LAYERS][6];
};

static uint64_t get(struct training *t, uint64_t bytes)
{
    uint64_t at;
    if (cache_malloc(t->cache, bytes, 0, &at, &err) != PLIM_OK) fail_msg("%s", err.text);
    return at;
}

static void put(struct training *t, uint64_t at)
{
    assert_int_equal(cache_free(t->cache, at, &err), PLIM_OK);
}

/* LLaMA's matrices and norms at hidden size 2048, in elements. */
static const uint64_t shapes[TENSORS] = {2048 * 2048, 512 * 2048,  512 * 2048, 2048 * 2048, 8192 * 2048,
                                         8192 * 2048, 8192 * 2048, 2048,       2048};

/* One micro-batch of 4 x length tokens: forward keeps six activations a layer and drops its scratch; the loss has logits in fp32;
 * backward frees in the other order and makes the gradients. */
static void micro_batch(struct training *t, uint64_t length, bool first)
{
    uint64_t tokens = 4 * length;
    for (int l = 0; l < LAYERS; l++) {
        for (int i = 0; i < 6; i++) t->kept[l][i] = get(t, tokens * (i < 4 ? 2048 : 8192) * 2);
        uint64_t scores = get(t, tokens * 4 * 32), scratch = get(t, tokens * 8192 * 2);
        put(t, scores);
        put(t, scratch);
    }
    uint64_t logits = get(t, tokens * 32000 * 4), loss = get(t, 4), dlogits = get(t, tokens * 32000 * 2);
    put(t, logits);
    put(t, loss);
    for (int l = LAYERS - 1; l >= 0; l--) {
        uint64_t up = get(t, tokens * 2048 * 2), wide = get(t, tokens * 8192 * 2);
        for (int i = 5; i >= 0; i--) put(t, t->kept[l][i]);
        for (int i = 0; i < TENSORS; i++) {
            uint64_t grad = get(t, shapes[i] * 2);
            if (first)
                t->grads[l][i] = grad;
            else
                put(t, grad);
        }
        put(t, up);
        put(t, wide);
    }
    put(t, dlogits);
}

static void train(struct training *t)
{
    uint64_t state = 1234567;
    for (int l = 0; l < LAYERS; l++)
        for (int i = 0; i < TENSORS; i++) get(t, shapes[i] * 2);
    for (int s = 0; s < STEPS; s++) {
        for (int m = 0; m < 2; m++) micro_batch(t, 256 + next(&state) % 28 * 64, m == 0);
        for (int l = 0; l < LAYERS; l++)
            for (int i = 0; i < TENSORS; i++) {
                if (s == 0) get(t, shapes[i] * 4), get(t, shapes[i] * 4); /* Adam's moments */
                uint64_t scratch = get(t, shapes[i] * 4);
                put(t, scratch);
            }
        for (int l = 0; l < LAYERS; l++)
            for (int i = 0; i < TENSORS; i++) put(t, t->grads[l][i]);
        cache_batch_done(t->cache);
    }
}

static double fragmentation_with(const char *conf)
{
    struct backing_simulated device;
    struct training t = {0};
    struct cache_fragmentation f;
    struct cache_options options = {.backing = &device.base};
    backing_simulated_init(&device, 80000 * MIB);
    assert_int_equal(cache_conf_parse(conf, &options.conf, &err), PLIM_OK);
    assert_int_equal(cache_new(&t.cache, &options, &err), PLIM_OK);
    train(&t);
    assert_int_equal(cache_check(t.cache, &err), PLIM_OK);
    cache_fragmentation_read(t.cache, &f);
    struct cache_stats stats;
    cache_stats_read(t.cache, &stats);
    printf("fragmentation %5.2f %% of %lld MiB at the peak with '%s'\n", 100 * f.peak,
           (long long)stats.of[CACHE_RESERVED_BYTES][CACHE_ALL].peak >> 20, conf);
    cache_destroy(t.cache);
    backing_simulated_destroy(&device);
    return f.peak;
}

static void test_training_is_not_fragmented(void **)
{
    double expandable = fragmentation_with("expandable_segments:True"), segments = fragmentation_with("");
    assert_true(expandable < 0.05);
    assert_true(segments > expandable);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_refusal),
        cmocka_unit_test(test_device_that_gives_nothing),
        cmocka_unit_test(test_device_that_is_lost),
        cmocka_unit_test(test_training_is_not_fragmented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
