/* test_cache_random.c - random requests, frees and stream uses: every address is the one that cache_model.h says, under every kind
 * of option; and several threads at once, which leave nothing behind.
 *
 * PLIMSOLL_CACHE_OPS: operations in all (default 60000; a million by hand). */
#include "cache_model.h"
#include "mem/cache.h"
#include "support/pace.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { LIVE = 160 };

#define MIB ((uint64_t)1 << 20)

static struct plim_error err;

static int64_t operations(void)
{
    const char *text = getenv("PLIMSOLL_CACHE_OPS");
    return text ? atoll(text) : 60000 / EVERY;
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* Small, middling and large requests, some of them equal, so that ties are common. */
static uint64_t some_bytes(uint64_t *state)
{
    uint64_t r = next(state), kind = r % 8, n = r >> 8;
    if (kind < 3) return 1 + n % 4000;
    if (kind < 5) return 1 + n % (3 * MIB);
    if (kind < 6) return (1 + n % 8) * 1024 * 1024;
    if (kind < 7) return 1 + n % (30 * MIB);
    return (1 + n % 6) * 7 * MIB;
}

struct row {
    const char *conf;
    uint64_t total, budget;
};

static const struct row rows[] = {
    {"", 400 * MIB, 0},
    {"", 4000 * MIB, 0},
    {"", 400 * MIB, 300 * MIB},
    {"expandable_segments:True", 400 * MIB, 0},
    {"expandable_segments:True", 1000 * MIB, 330 * MIB},
    {"max_split_size_mb:20", 500 * MIB, 0},
    {"max_split_size_mb:32,max_non_split_rounding_mb:24", 400 * MIB, 0},
    {"garbage_collection_threshold:0.5", 600 * MIB, 0},
    {"garbage_collection_threshold:0.6,max_split_size_mb:24", 1000 * MIB, 500 * MIB},
    {"roundup_power2_divisions:4", 500 * MIB, 0},
    {"roundup_power2_divisions:[1:8,16:4,>:2],garbage_collection_threshold:0.8", 500 * MIB, 400 * MIB},
    {"expandable_segments:True,roundup_power2_divisions:8,max_split_size_mb:25", 500 * MIB, 0},
    {"release_lock_on_cudamalloc:True", 400 * MIB, 0},
};
enum { ROWS = sizeof rows / sizeof *rows };

struct pair {
    struct cache *cache;
    struct backing_simulated device;
    struct model model;
    uint64_t live[LIVE], state;
    int64_t refused, done;
    const char *conf;
};

static void compare(struct pair *p)
{
    struct cache_stats stats;
    cache_stats_read(p->cache, &stats);
    if ((uint64_t)stats.of[CACHE_RESERVED_BYTES][CACHE_ALL].current != p->model.used ||
        (uint64_t)stats.of[CACHE_ACTIVE_BYTES][CACHE_ALL].current != p->model.active ||
        p->device.used != p->model.used || stats.num_ooms != p->refused)
        fail_msg("'%s' operation %lld: reserved %lld, model %llu; active %lld, model %llu; refused %lld",
                 p->conf, (long long)p->done, (long long)stats.of[CACHE_RESERVED_BYTES][CACHE_ALL].current,
                 (unsigned long long)p->model.used,
                 (long long)stats.of[CACHE_ACTIVE_BYTES][CACHE_ALL].current,
                 (unsigned long long)p->model.active, (long long)stats.num_ooms);
    if (cache_check(p->cache, &err) != PLIM_OK)
        fail_msg("'%s' operation %lld: %s", p->conf, (long long)p->done, err.text);
}

static void one_operation(struct pair *p)
{
    uint64_t r = next(&p->state), stream = (r >> 20) % 3, *at = &p->live[(r >> 32) % LIVE];
    if (*at && r % 4) {
        assert_int_equal(cache_free(p->cache, *at, &err), PLIM_OK);
        model_free(&p->model, *at);
        *at = 0;
    } else if (*at) {
        assert_int_equal(cache_record_stream(p->cache, *at, stream, &err), PLIM_OK);
        model_record(&p->model, *at, stream);
    } else {
        uint64_t bytes = some_bytes(&p->state), want = model_malloc(&p->model, bytes, stream);
        enum plim_status status = cache_malloc(p->cache, bytes, stream, at, &err);
        if (*at != want || (status == PLIM_OK) != (want != 0))
            fail_msg("'%s' operation %lld: %llu bytes are at %llx, expected %llx", p->conf,
                     (long long)p->done, (unsigned long long)bytes, (unsigned long long)*at,
                     (unsigned long long)want);
        p->refused += !want;
    }
    if (r % 97 == 0) {
        backing_simulated_finish(&p->device);
        p->model.finished = p->model.recorded;
    }
    if (r % 1999 == 0) {
        cache_clear(p->cache, false);
        model_release_all(&p->model);
    }
}

static void run_row(const struct row *row, int64_t count, uint64_t seed)
{
    struct pair *p = calloc(1, sizeof *p);
    struct cache_options options = {.budget = row->budget};
    assert_non_null(p);
    p->conf = row->conf;
    p->state = seed;
    backing_simulated_init(&p->device, row->total);
    p->device.lazy = true;
    options.backing = &p->device.base;
    assert_int_equal(cache_conf_parse(row->conf, &options.conf, &err), PLIM_OK);
    assert_int_equal(cache_new(&p->cache, &options, &err), PLIM_OK);
    p->model.conf = options.conf;
    p->model.total = row->total;
    p->model.limit = row->budget ? row->budget : UINT64_MAX;
    p->model.next = p->device.next;
    for (p->done = 0; p->done < count; p->done++) {
        one_operation(p);
        if (p->done % 61 == 0) compare(p);
    }
    compare(p);
    cache_destroy(p->cache);
    assert_int_equal(p->device.used, 0);
    assert_int_equal(p->device.events, 0);
    assert_int_equal(p->device.ranges, 0);
    backing_simulated_destroy(&p->device);
    free(p);
}

static void test_equals_the_model(void **)
{
    for (int i = 0; i < ROWS; i++) run_row(&rows[i], operations() / ROWS, 0x9e3779b97f4a7c15u + (uint64_t)i);
}

/* ---- threads ---- */

struct worker {
    pthread_t thread;
    struct cache *cache;
    uint64_t seed;
    int64_t count, refused;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    uint64_t live[LIVE] = {0}, state = w->seed;
    for (int64_t i = 0; i < w->count; i++) {
        uint64_t r = next(&state), *at = &live[(r >> 32) % LIVE];
        if (*at) {
            if (r % 8 == 0) cache_record_stream(w->cache, *at, w->seed + 1, NULL);
            if (cache_free(w->cache, *at, NULL) != PLIM_OK) return w;
            *at = 0;
        } else {
            w->refused +=
                cache_malloc(w->cache, some_bytes(&state), r % 5 ? w->seed : 0, at, NULL) != PLIM_OK;
        }
        if (r % 4001 == 0) cache_clear(w->cache, false);
        if (r % 1009 == 0) cache_batch_done(w->cache);
        if (r % 5003 == 0) cache_set_budget(w->cache, (700 + r % 300) * MIB);
    }
    for (int i = 0; i < LIVE; i++)
        if (cache_free(w->cache, live[i], NULL) != PLIM_OK) return w;
    return NULL;
}

static void test_threads(void **)
{
    static const char *const confs[] = {"", "expandable_segments:True",
                                        "release_lock_on_cudamalloc:True,garbage_collection_threshold:0.7"};
    for (int k = 0; k < 3; k++) {
        struct backing_simulated device;
        struct worker workers[4] = {0};
        struct cache *cache;
        struct cache_options options = {0};
        backing_simulated_init(&device, 1000 * MIB);
        options.backing = &device.base;
        assert_int_equal(cache_conf_parse(confs[k], &options.conf, &err), PLIM_OK);
        assert_int_equal(cache_new(&cache, &options, &err), PLIM_OK);
        assert_int_equal(cache_history_start(cache, 1000, &err), PLIM_OK);
        for (int i = 0; i < 4; i++) {
            workers[i] =
                (struct worker){.cache = cache, .seed = 17 + (uint64_t)i, .count = operations() / 12};
            pthread_create(&workers[i].thread, NULL, work, &workers[i]);
        }
        for (int i = 0; i < 4; i++) {
            void *failed;
            pthread_join(workers[i].thread, &failed);
            assert_null(failed);
        }
        assert_int_equal(cache_check(cache, &err), PLIM_OK);
        cache_clear(cache, true);
        assert_int_equal(device.used, 0);
        cache_destroy(cache);
        backing_simulated_destroy(&device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_equals_the_model),
                                       cmocka_unit_test(test_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
