/* run-tests: not=tsan */
/* test_cache_conf.c - option strings of PyTorch's allocator: what is accepted, with which words the rest is refused, and the sizes
 * that follow. */
#include "mem/cache_conf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define MIB ((uint64_t)1 << 20)

static struct plim_error err;

static void test_words(void **)
{
    static const struct {
        const char *text, *wrong; /* NULL: fine */
    } rows[] = {
        {"expandable_segments:True,max_split_size_mb:128,roundup_power2_divisions:16,garbage_collection_"
         "threshold:0.7",
         NULL},
        {"garbage_collection_threshold:0.8,max_split_size_mb:512", NULL},
        {" backend : native , roundup_power2_divisions:[64:8,256:4,>:1]", NULL},
        {"", NULL},
        {"backend:native,", NULL},
        {"roundup_power2_divisions:[]", NULL},
        {"roundup_power2_divisions:[1:0,>:2]", NULL},
        {"max_split_size_mb:20", NULL},
        {"pinned_num_register_threads:8,pinned_use_background_threads:True", NULL},
        {"max_split_size_mb:10", "CachingAllocator option max_split_size_mb too small, must be >= 20"},
        {"max_split_size_mb:x", "expecting max_split_size_mb value"},
        {"max_split_size_mb:", "found 'the end'"},
        {"max_split_size_mb", "expected ':' after 'max_split_size_mb'"},
        {"max_non_split_rounding_mb:19", "max_non_split_rounding_mb too small, must be >= 20"},
        {"expandable_segments:true", "Expected a single True/False argument for expandable_segments"},
        {"garbage_collection_threshold:1", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)"},
        {"garbage_collection_threshold:0", "(0.0, 1.0)"},
        {"per_process_memory_fraction:1.5", "[0.0, 1.0]"},
        {"max_split_size:128", "Unrecognized CachingAllocator option: max_split_size; did you mean"},
        {"roundup_power2_divisions:3", "power of 2"},
        {"roundup_power2_divisions:[3:8]", "power of 2"},
        {"roundup_power2_divisions:[64:3]", "power of 2"},
        {"roundup_power2_divisions:[64:8", "expected ','"},
        {"pinned_num_register_threads:3", "power of 2"},
        {"pinned_num_register_threads:256", "at most 128"},
        {"backend:other", "Unknown allocator backend, options are native and cudaMallocAsync"},
        {"backend:native expandable_segments:True", "nativeexpandable_segments"},
        {",", "Unrecognized CachingAllocator option: ,"},
    };
    struct cache_conf conf;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum plim_status status = cache_conf_parse(rows[i].text, &conf, &err);
        if ((status != PLIM_OK) != (rows[i].wrong != NULL)) fail_msg("'%s': %s", rows[i].text, err.text);
        if (rows[i].wrong && !strstr(err.text, rows[i].wrong)) fail_msg("'%s': %s", rows[i].text, err.text);
    }
}

static void test_values(void **)
{
    struct cache_conf conf;
    assert_int_equal(cache_conf_parse("", &conf, &err), PLIM_OK);
    assert_true(conf.max_split == CACHE_NO_LIMIT && conf.max_non_split_rounding == 20 * MIB);
    assert_true(conf.gc_threshold == 0 && conf.fraction == 0 && !conf.expandable && !conf.async_backend);
    assert_int_equal(
        cache_conf_parse("max_split_size_mb:128,max_non_split_rounding_mb:40,expandable_segments:True,"
                         "garbage_collection_threshold:0.75,per_process_memory_fraction:0.5,"
                         "release_lock_on_cudamalloc:True,backend:cudaMallocAsync",
                         &conf, &err),
        PLIM_OK);
    assert_true(conf.max_split == 128 * MIB && conf.max_non_split_rounding == 40 * MIB);
    assert_true(conf.gc_threshold == 0.75 && conf.fraction == 0.5);
    assert_true(conf.expandable && conf.release_lock && conf.async_backend);
    assert_int_equal(cache_conf_parse("expandable_segments:True,expandable_segments:False", &conf, &err),
                     PLIM_OK);
    assert_false(conf.expandable);
}

/* [64:8,256:4,>:1]: the first key fills the entries below it, `>` those above the last; 64 MiB is entry 6. */
static void test_divisions(void **)
{
    static const struct {
        const char *text;
        uint32_t want[CACHE_DIVISIONS];
    } rows[] = {
        {"roundup_power2_divisions:4", {4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4}},
        {"roundup_power2_divisions:[64:8,256:4,>:1]", {8, 8, 8, 8, 8, 8, 8, 0, 4, 1, 1, 1, 1, 1, 1, 1}},
        {"roundup_power2_divisions:[1:2,2:4]", {2, 4}},
        {"roundup_power2_divisions:[>:2]", {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
        {"roundup_power2_divisions:[1048576:2]", {2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cache_conf conf;
        assert_int_equal(cache_conf_parse(rows[i].text, &conf, &err), PLIM_OK);
        if (memcmp(conf.divisions, rows[i].want, sizeof conf.divisions)) fail_msg("%s", rows[i].text);
    }
}

static void test_sizes(void **)
{
    static const struct {
        const char *text;
        uint64_t bytes, block, segment;
    } rows[] = {
        {"", 1, 512, 2 * MIB},
        {"", 512, 512, 2 * MIB},
        {"", 513, 1024, 2 * MIB},
        {"", MIB, MIB, 2 * MIB},
        {"", MIB + 1, MIB + 512, 20 * MIB},
        {"", 10 * MIB - 512, 10 * MIB - 512, 20 * MIB},
        {"", 10 * MIB, 10 * MIB, 10 * MIB},
        {"", 10 * MIB + 1, 10 * MIB + 512, 12 * MIB},
        {"", 33 * MIB, 33 * MIB, 34 * MIB},
        {"roundup_power2_divisions:4", 1200, 1536, 2 * MIB}, /* not above 512 x 4: multiples of 512 */
        {"roundup_power2_divisions:4", 2049, 2560, 2 * MIB}, /* 2048 / 4 is the step                */
        {"roundup_power2_divisions:4", 1200000, 1280 * 1024, 20 * MIB},
        {"roundup_power2_divisions:4", 4 * MIB, 4 * MIB, 20 * MIB},
        {"roundup_power2_divisions:8", 65 * MIB, 72 * MIB, 72 * MIB},
        {"roundup_power2_divisions:1", 65 * MIB + 1, 65 * MIB + 512, 66 * MIB},
        {"roundup_power2_divisions:[64:8,>:2]", 65 * MIB, 72 * MIB, 72 * MIB},
        {"roundup_power2_divisions:[64:8,>:2]", 129 * MIB, 192 * MIB, 192 * MIB},
        {"roundup_power2_divisions:[64:8,>:2]", 3 * MIB + 1, 3 * MIB + 256 * 1024, 20 * MIB},
        {"roundup_power2_divisions:[64:2]", 600000, 768 * 1024, 2 * MIB}, /* below 1 MiB: entry 0 */
        {"roundup_power2_divisions:2", 80000 * MIB, 98304 * MIB,
         98304 * MIB}, /* above 32 GiB: the last entry */
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct cache_conf conf;
        assert_int_equal(cache_conf_parse(rows[i].text, &conf, &err), PLIM_OK);
        uint64_t block = cache_conf_round(&conf, rows[i].bytes), segment = cache_segment_bytes(block);
        if (block != rows[i].block || segment != rows[i].segment)
            fail_msg("'%s' %llu: block %llu, segment %llu", rows[i].text, (unsigned long long)rows[i].bytes,
                     (unsigned long long)block, (unsigned long long)segment);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_words), cmocka_unit_test(test_values),
                                       cmocka_unit_test(test_divisions), cmocka_unit_test(test_sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
