/* run-tests: serial, not=asan, not=tsan
 *
 * test_cache_gpu.c - the caching allocator on a real card: whole and expandable segments, stream events, a refusal, and everything
 * given back. Skips itself without a card. */
#include "device/backing.h"
#include "mem/cache.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { LIVE = 200, STEPS = 20000 };

#define MIB ((uint64_t)1 << 20)

static struct plim_error err;
static struct cache_backing *gpu;

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

static void run(const char *conf)
{
    struct cache *cache;
    struct cache_options options = {.backing = gpu, .budget = 2048 * MIB};
    uint64_t live[LIVE] = {0}, state = 7, before = gpu->ops->available(gpu);
    assert_int_equal(cache_conf_parse(conf, &options.conf, &err), PLIM_OK);
    assert_int_equal(cache_new(&cache, &options, &err), PLIM_OK);
    for (int i = 0; i < STEPS; i++) {
        uint64_t r = next(&state), *at = &live[(r >> 32) % LIVE];
        if (*at) {
            if (r % 5 == 0)
                assert_int_equal(cache_record_stream(cache, *at, 2, &err), PLIM_OK); /* cudaStreamPerThread */
            assert_int_equal(cache_free(cache, *at, &err), PLIM_OK);
            *at = 0;
        } else {
            enum plim_status status =
                cache_malloc(cache, 1 + (r >> 8) % (r % 3 ? MIB : 60 * MIB), 0, at, &err);
            assert_true(status == PLIM_OK || status == PLIM_NO_MEMORY);
        }
        if (i % 997 == 0) assert_int_equal(cache_check(cache, &err), PLIM_OK);
    }
    uint64_t at;
    assert_int_equal(cache_malloc(cache, 2049 * MIB, 0, &at, &err), PLIM_NO_MEMORY);
    cache_destroy(cache);
    uint64_t after = gpu->ops->available(gpu);
    if (after + 64 * MIB < before)
        fail_msg("'%s': %llu MiB were not given back", conf, (unsigned long long)(before - after) >> 20);
}

static void test_segments(void **)
{
    run("");
    run("max_split_size_mb:32,garbage_collection_threshold:0.6,release_lock_on_cudamalloc:True");
}

static void test_expandable(void **) { run("expandable_segments:True"); }

int main(void)
{
    if (cuda_backing_open(0, &gpu, &err) != PLIM_OK) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_segments), cmocka_unit_test(test_expandable)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cuda_backing_close(gpu);
    return failed;
}
