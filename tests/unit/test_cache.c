/* run-tests: not=tsan */
/* test_cache.c - the rules of PyTorch's allocator as rows: options, a script, and the segments that it must leave.
 *
 * Script: a=5M allocates 5 MiB as `a` (@1: on stream 1), -a frees it, a~1 records stream 1 for it, ! lets the device finish its
 * work, clear empties the cache, batch ends a batch. Layout: "20M(a5M .15M)" is a segment of 20 MiB with `a`, 5 MiB, and 15 MiB
 * free; ? is pending free.
 */
#include "base/strbuf.h"
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

struct setup {
    struct backing_simulated device;
    struct cache *cache;
    uint64_t at[128]; /* by letter */
};

static void begin(struct setup *s, const char *conf, uint64_t total, struct cache_options *options)
{
    struct cache_options none = {0};
    if (!options) options = &none;
    memset(s, 0, sizeof *s);
    backing_simulated_init(&s->device, total);
    s->device.lazy = true;
    options->backing = &s->device.base;
    if (cache_conf_parse(conf, &options->conf, &err) != PLIM_OK) fail_msg("%s", err.text);
    if (cache_new(&s->cache, options, &err) != PLIM_OK) fail_msg("%s", err.text);
}

static void end(struct setup *s)
{
    if (cache_check(s->cache, &err) != PLIM_OK) fail_msg("%s", err.text);
    cache_destroy(s->cache);
    assert_int_equal(s->device.used, 0);
    assert_int_equal(s->device.ranges, 0);
    assert_int_equal(s->device.events, 0);
    backing_simulated_destroy(&s->device);
}

/* "5M", "3K", "7B", "1M+512B" */
static uint64_t read_bytes(const char **text)
{
    uint64_t sum = 0;
    do {
        char *after;
        uint64_t n = strtoull(*text, &after, 10);
        sum += n * (*after == 'M' ? MIB : *after == 'K' ? 1024 : 1);
        *text = after + 1;
    } while (*(*text)++ == '+');
    --*text;
    return sum;
}

static void one_word(struct setup *s, const char *word)
{
    uint64_t *at = &s->at[(int)word[0] & 127];
    if (!strcmp(word, "clear")) {
        cache_clear(s->cache, false);
    } else if (!strcmp(word, "batch")) {
        cache_batch_done(s->cache);
    } else if (word[0] == '!') {
        backing_simulated_finish(&s->device);
    } else if (word[0] == '-') {
        assert_int_equal(cache_free(s->cache, s->at[(int)word[1] & 127], &err), PLIM_OK);
        s->at[(int)word[1] & 127] = 0;
    } else if (word[1] == '~') {
        assert_int_equal(cache_record_stream(s->cache, *at, strtoull(word + 2, NULL, 10), &err), PLIM_OK);
    } else {
        const char *rest = word + 2;
        uint64_t bytes = read_bytes(&rest);
        cache_malloc(s->cache, bytes, *rest == '@' ? strtoull(rest + 1, NULL, 10) : 0, at, &err);
    }
}

static void play(struct setup *s, const char *script)
{
    char word[64];
    int n;
    for (; sscanf(script, "%63s%n", word, &n) == 1; script += n) {
        one_word(s, word);
        if (cache_check(s->cache, &err) != PLIM_OK) fail_msg("after %s: %s", word, err.text);
    }
}

struct drawing {
    struct setup *setup;
    struct strbuf text;
};

static void draw_bytes(struct strbuf *out, uint64_t bytes)
{
    const char *unit = bytes % MIB == 0 ? "M" : bytes % 1024 == 0 ? "K" : "B";
    uint64_t n = *unit == 'M' ? bytes / MIB : *unit == 'K' ? bytes / 1024 : bytes;
    strbuf_addf(out, "%llu%s", (unsigned long long)n, unit);
}

static void draw_segment(void *arg, const struct cache_segment *segment)
{
    struct drawing *d = arg;
    if (d->text.len) strbuf_add(&d->text, ") ");
    draw_bytes(&d->text, segment->bytes);
    strbuf_add(&d->text, "(");
}

static void draw_block(void *arg, const struct cache_block *block)
{
    struct drawing *d = arg;
    char letter = block->state == CACHE_CACHED ? '.' : '?';
    for (int i = 'a'; block->state == CACHE_LIVE && i <= 'z'; i++)
        if (d->setup->at[i] == block->address) letter = (char)i;
    if (strbuf_text(&d->text)[d->text.len - 1] != '(') strbuf_add(&d->text, " ");
    strbuf_addc(&d->text, letter);
    draw_bytes(&d->text, block->bytes);
}

static void expect_layout(struct setup *s, const char *why, const char *want)
{
    struct drawing d = {.setup = s};
    cache_walk(s->cache, &(struct cache_visitor){draw_segment, draw_block, &d});
    if (d.text.len) strbuf_add(&d.text, ")");
    if (strcmp(strbuf_text(&d.text), want))
        fail_msg("%s:\n  %s\nexpected\n  %s", why, strbuf_text(&d.text), want);
    strbuf_release(&d.text);
}

struct row {
    const char *rule, *conf;
    uint64_t total; /* MiB */
    const char *script, *layout;
    int retries, ooms;
};

#define EXPAND  "expandable_segments:True"
#define SPLIT20 "max_split_size_mb:20"

static const struct row rows[] = {
    {"at least 512 bytes", "", 100, "a=1B", "2M(a512B .2096640B)", 0, 0},
    {"multiples of 512", "", 100, "a=513B", "2M(a1K .2047K)", 0, 0},
    {"0 bytes take nothing", "", 100, "a=0B", "", 0, 0},
    {"1 MiB is small", "", 100, "a=1M b=1M", "2M(a1M b1M)", 0, 0},
    {"more than 1 MiB is large", "", 100, "a=1M+1B", "20M(a1049088B .19922432B)", 0, 0},
    {"below 10 MiB segments of 20 are shared", "", 100, "a=9M b=9M c=2M", "20M(a9M b9M c2M)", 0, 0},
    {"from 10 MiB on segments are multiples of 2", "", 100, "a=10M b=13M", "10M(a10M) 14M(b14M)", 0, 0},
    {"small requests do not use the large pool", "", 100, "a=12M -a b=1K", "12M(.12M) 2M(b1K .2047K)", 0, 0},
    {"divisions of powers of two", "roundup_power2_divisions:4", 100, "a=17M", "20M(a20M)", 0, 0},

    {"best fit: the smallest that is large enough", "", 100, "a=16M b=12M c=14M -a -b -c d=12M",
     "16M(.16M) 12M(d12M) 14M(.14M)", 0, 0},
    {"best fit: of equals the lowest address", "", 100, "a=12M b=12M c=12M -c -a -b d=12M",
     "12M(d12M) 12M(.12M) 12M(.12M)", 0, 0},
    {"a stream has its own blocks", "", 100, "a=12M -a b=12M@1", "12M(.12M) 12M(b12M)", 0, 0},
    {"a stream finds its blocks again", "", 100, "a=12M@1 b=12M -a -b c=12M@1", "12M(c12M) 12M(.12M)", 0, 0},

    {"small: a rest of 512 is split off", "", 100, "a=1M b=1M -a c=1M d=1K -c a=1048064B",
     "2M(a1048064B .512B b1M) 2M(d1K .2047K)", 0, 0},
    {"large: a rest of 1 MiB stays", "", 100, "a=12M -a b=11M", "12M(b12M)", 0, 0},
    {"large: a larger rest is split off", "", 100, "a=12M -a b=10M+1000K", "12M(b11240K .1048K)", 0, 0},
    {"the front is handed out", "", 100, "a=9M b=9M -a c=3M", "20M(c3M .6M b9M .2M)", 0, 0},

    {"neighbours merge", "", 100, "a=5M b=5M c=5M -a -c -b", "20M(.20M)", 0, 0},
    {"blocks in use keep others apart", "", 100, "a=5M b=5M c=5M -a -c", "20M(.5M b5M .10M)", 0, 0},
    {"segments do not merge", "", 100, "a=10M b=10M -a -b c=20M", "10M(.10M) 10M(.10M) 20M(c20M)", 0, 0},

    {"max_split: larger blocks are not split", SPLIT20, 200, "a=30M -a b=5M", "30M(.30M) 20M(b5M .15M)", 0,
     0},
    {"max_split: larger requests take a whole block", SPLIT20, 200, "a=48M -a b=30M", "48M(b48M)", 0, 0},
    {"max_split: unless it is 20 MiB larger", SPLIT20, 200, "a=50M -a b=30M", "50M(.50M) 30M(b30M)", 0, 0},
    {"max_non_split_rounding", SPLIT20 ",max_non_split_rounding_mb:30", 200, "a=50M -a b=30M", "50M(b50M)", 0,
     0},
    {"without max_split everything is split", "", 200, "a=50M -a b=30M", "50M(b30M .20M)", 0, 0},

    {"a used block waits for its streams", "", 100, "a=5M a~1 -a b=5M", "20M(?5M b5M .10M)", 0, 0},
    {"and returns when they have passed", "", 100, "a=5M a~1 -a b=5M ! c=5M", "20M(c5M b5M .10M)", 0, 0},
    {"it waits for all of them", "", 100, "a=5M a~1 ! a~2 -a b=5M", "20M(?5M b5M .10M)", 0, 0},
    {"its own stream does not count", "", 100, "a=5M a~0 -a", "20M(.20M)", 0, 0},
    {"pending blocks do not merge", "", 100, "a=5M b=5M a~1 -a -b", "20M(?5M .15M)", 0, 0},
    {"emptying the cache waits for them", "", 100, "a=5M b=12M a~1 -a -b clear", "", 0, 0},

    {"only whole segments are released", "", 100, "a=12M b=5M c=5M -a -b clear", "20M(.5M c5M .10M)", 0, 0},
    {"a refusal releases the cache and retries", "", 40, "a=12M b=20M -a c=14M", "20M(b20M) 14M(c14M)", 1, 0},
    {"a request that does not fit is refused", "", 40, "a=12M b=20M c=14M", "12M(a12M) 20M(b20M)", 1, 1},
    {"a fraction is a limit", "per_process_memory_fraction:0.5", 100, "a=30M b=30M", "30M(a30M)", 1, 1},
    {"a block that returns during the retry is found", "", 20, "a=5M b=5M c=5M d=5M a~1 -a e=5M",
     "20M(e5M b5M c5M d5M)", 1, 0},

    {"garbage: the oldest segments go", "garbage_collection_threshold:0.5", 100,
     "a=20M b=22M -a c=24M -b d=30M", "22M(.22M) 24M(c24M) 30M(d30M)", 0, 0},
    {"garbage: nothing below the threshold", "garbage_collection_threshold:0.7", 100,
     "a=20M b=22M -a c=24M -b d=30M", "20M(.20M) 22M(.22M) 24M(c24M) 30M(d30M)", 0, 0},
    {"garbage: of one age all", "garbage_collection_threshold:0.3", 100, "a=20M b=22M -a -b d=30M",
     "30M(d30M)", 0, 0},
    {"garbage: the limit is the fraction's",
     "garbage_collection_threshold:0.5,per_process_memory_fraction:0.5", 200, "a=20M b=22M -a c=24M -b d=30M",
     "22M(.22M) 24M(c24M) 30M(d30M)", 0, 0},

    {"oversize: one block that is enough", SPLIT20, 100, "a=60M b=30M -a -b c=35M", "30M(.30M) 36M(c36M)", 0,
     0},
    {"oversize: or the largest first", SPLIT20, 100, "a=40M b=30M d=20M -a -b -d c=50M",
     "20M(.20M) 50M(c50M)", 0, 0},
    {"oversize: too little of them", SPLIT20, 100, "a=40M b=30M -a c=50M", "30M(b30M) 50M(c50M)", 1, 0},

    {"expandable: pages of 20 MiB", EXPAND, 400, "a=15M b=10M", "40M(a15M b10M .15M)", 0, 0},
    {"expandable: pages of 2 MiB for the small pool", EXPAND, 400, "a=1M b=1M c=1M", "4M(a1M b1M c1M .1M)", 0,
     0},
    {"expandable: a rest of 512 is split off", EXPAND, 400, "a=10M b=8M c=2M -a d=9M+1023K+512B",
     "20M(d10485248B .512B b8M c2M)", 0, 0},
    {"expandable: the end is used last", EXPAND, 400, "a=6M b=5M c=4M -a d=5M", "20M(d5M .1M b5M c4M .5M)", 0,
     0},
    {"expandable: free pages before the end serve", EXPAND, 400, "a=30M -a b=35M", "40M(b35M .5M)", 0, 0},
    {"expandable: the end grows in place", EXPAND, 400, "a=19M b=21M c=30M", "80M(a19M b21M c30M .10M)", 0,
     0},
    {"expandable: whole pages are unmapped", EXPAND, 400, "a=25M b=10M -a clear", "20M(.5M b10M .5M)", 0, 0},
    {"expandable: holes are filled again, lowest first", EXPAND, 400, "a=25M b=10M -a clear c=20M",
     "40M(c20M .5M b10M .5M)", 0, 0},
    {"expandable: everything free is given back", EXPAND, 400, "a=25M b=1K -a -b clear", "", 0, 0},
    {"expandable: one range per stream", EXPAND, 400, "a=5M b=5M@1", "20M(a5M .15M) 20M(b5M .15M)", 0, 0},
    {"expandable: a hole that is too small is passed over", EXPAND, 400, "a=20M b=10M -a clear c=30M",
     "40M(b10M c30M)", 0, 0},
    {"expandable: a refusal unmaps and retries", EXPAND, 60, "a=20M b=20M@1 c=20M -a d=20M@1",
     "20M(c20M) 40M(b20M d20M)", 1, 0},
};

static void test_rules(void **)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct setup s;
        struct cache_stats stats;
        begin(&s, rows[i].conf, rows[i].total * MIB, NULL);
        play(&s, rows[i].script);
        expect_layout(&s, rows[i].rule, rows[i].layout);
        cache_stats_read(s.cache, &stats);
        if (stats.num_alloc_retries != rows[i].retries || stats.num_ooms != rows[i].ooms)
            fail_msg("%s: %lld retries, %lld refusals", rows[i].rule, (long long)stats.num_alloc_retries,
                     (long long)stats.num_ooms);
        end(&s);
    }
}

/* ---- figures ---- */

struct wanted {
    const char *name;
    int64_t value;
    int seen;
};

static void compare_value(void *arg, const char *name, int64_t value)
{
    for (struct wanted *w = arg; w->name; w++) {
        if (strcmp(w->name, name)) continue;
        w->seen++;
        if (w->value != value)
            fail_msg("%s is %lld, expected %lld", name, (long long)value, (long long)w->value);
    }
}

static void expect_stats(struct setup *s, struct wanted *wanted)
{
    struct cache_stats stats;
    cache_stats_read(s->cache, &stats);
    cache_stats_each(&stats, compare_value, wanted);
    for (; wanted->name; wanted++)
        if (wanted->seen != 1) fail_msg("%s was told %d times", wanted->name, wanted->seen);
}

static void test_stats(void **)
{
    struct setup s;
    begin(&s, SPLIT20, 200 * MIB, NULL);
    play(&s, "a=1000B b=5M c=30M -a b~1 -b");
    expect_stats(&s, (struct wanted[]){{"allocation.all.current", 1, 0},
                                       {"allocation.all.peak", 3, 0},
                                       {"allocation.all.allocated", 3, 0},
                                       {"allocation.all.freed", 2, 0},
                                       {"allocation.small_pool.current", 0, 0},
                                       {"allocation.large_pool.current", 1, 0},
                                       {"segment.all.current", 3, 0},
                                       {"active.all.current", 2, 0}, /* b is pending */
                                       {"active.large_pool.peak", 2, 0},
                                       {"inactive_split.all.current", 1, 0}, /* behind b */
                                       {"inactive_split.all.peak", 2, 0},
                                       {"inactive_split.small_pool.freed", 1, 0},
                                       {"inactive_split_bytes.all.current", 15 * (int64_t)MIB, 0},
                                       {"inactive_split_bytes.all.allocated", 17 * (int64_t)MIB - 1024, 0},
                                       {"allocated_bytes.all.current", 30 * (int64_t)MIB, 0},
                                       {"allocated_bytes.all.peak", 35 * (int64_t)MIB + 1024, 0},
                                       {"active_bytes.all.current", 35 * (int64_t)MIB, 0},
                                       {"reserved_bytes.all.current", 52 * (int64_t)MIB, 0},
                                       {"reserved_bytes.small_pool.current", 2 * (int64_t)MIB, 0},
                                       {"requested_bytes.all.peak", 35 * (int64_t)MIB + 1000, 0},
                                       {"requested_bytes.small_pool.freed", 1000, 0},
                                       {"oversize_allocations.current", 1, 0},
                                       {"oversize_segments.current", 2, 0}, /* 30 MiB and the shared 20 */
                                       {"max_split_size", 20 * (int64_t)MIB, 0},
                                       {"num_device_alloc", 3, 0},
                                       {"num_device_free", 0, 0},
                                       {"num_sync_all_streams", 0, 0},
                                       {NULL, 0, 0}});
    play(&s, "-c clear");
    cache_reset_peaks(s.cache);
    expect_stats(&s, (struct wanted[]){{"allocation.all.peak", 0, 0},
                                       {"reserved_bytes.all.peak", 0, 0},
                                       {"reserved_bytes.all.freed", 52 * (int64_t)MIB, 0},
                                       {"num_device_free", 3, 0},
                                       {"num_sync_all_streams", 1, 0},
                                       {NULL, 0, 0}});
    cache_reset_accumulated(s.cache);
    expect_stats(
        &s, (struct wanted[]){{"allocation.all.allocated", 0, 0}, {"num_device_free", 0, 0}, {NULL, 0, 0}});
    end(&s);
}

static void test_fragmentation(void **)
{
    struct setup s;
    struct cache_fragmentation f;
    begin(&s, "", 200 * MIB, NULL);
    play(&s, "a=5M b=5M c=5M d=5M e=12M -b -e f=1B");
    cache_fragmentation_read(s.cache, &f);
    assert_true(f.peak == 2.0 / 34);
    assert_int_equal(f.free_bytes, 5 * MIB + 12 * MIB + 2 * MIB - 512);
    assert_int_equal(f.stuck_bytes, 5 * MIB + 2 * MIB - 512);
    assert_int_equal(f.largest_bytes, 12 * MIB);
    assert_int_equal(f.rounding_bytes, 511);
    assert_true(f.external == (double)f.free_bytes / (double)(34 * MIB));
    end(&s);
    begin(&s, EXPAND, 200 * MIB, NULL);
    play(&s, "a=25M b=10M -a");
    cache_fragmentation_read(s.cache, &f);
    assert_int_equal(f.free_bytes, 30 * MIB);
    assert_int_equal(f.stuck_bytes, 10 * MIB); /* 5 before and 5 behind b in its page */
    end(&s);
}

/* ---- limits, clean-up ---- */

static void test_limits(void **)
{
    struct setup s;
    begin(&s, "", 100 * MIB, &(struct cache_options){.budget = 60 * MIB, .overhead = 20 * MIB});
    assert_int_equal(cache_limit(s.cache), 40 * MIB);
    play(&s, "a=30M b=12M");
    expect_layout(&s, "the overhead counts", "30M(a30M)");
    cache_set_budget(s.cache, 70 * MIB);
    play(&s, "b=12M -a");
    cache_set_budget(s.cache, 40 * MIB);
    expect_layout(&s, "a lower budget releases", "12M(b12M)");
    cache_set_budget(s.cache, 10 * MIB);
    play(&s, "c=1B");
    expect_layout(&s, "nothing new while above the budget", "12M(b12M)");
    cache_set_budget(s.cache, 0);
    assert_int_equal(cache_set_fraction(s.cache, 0.5, &err), PLIM_OK);
    assert_int_equal(cache_limit(s.cache), 30 * MIB);
    assert_int_equal(cache_set_fraction(s.cache, 1.5, &err), PLIM_BAD_INPUT);
    assert_int_equal(cache_set_fraction(s.cache, 0, &err), PLIM_OK);
    assert_int_equal(cache_limit(s.cache), 100 * MIB);
    end(&s);
}

static void test_ledger(void **)
{
    static const char *const classes[] = {"other", "cache"};
    static const char *const confs[] = {"", EXPAND};
    for (int i = 0; i < 2; i++) {
        struct setup s;
        struct ledger ledger;
        ledger_init(&ledger, "device", 60 * MIB, classes, 2);
        begin(&s, confs[i], 100 * MIB, &(struct cache_options){.ledger = &ledger, .ledger_class = 1});
        play(&s, "a=20M b=20M");
        assert_int_equal(ledger_current(&ledger), 40 * MIB);
        assert_int_equal(ledger_reserve(&ledger, 0, 15 * MIB, &err), PLIM_OK);
        play(&s, "c=10M");
        assert_int_equal(s.at['c'], 0);
        struct cache_refusal refusal;
        assert_true(cache_last_refusal(s.cache, &refusal));
        assert_int_equal(refusal.cause, CACHE_LIVE_FULL);
        assert_int_equal(refusal.limit, 45 * MIB); /* 60 less the 15 of others on the ledger */
        play(&s, "-a clear");
        assert_int_equal(ledger_current(&ledger), 35 * MIB);
        end(&s);
        assert_int_equal(ledger_current(&ledger), 15 * MIB);
        assert_int_equal(ledger_check(&ledger, &err), PLIM_OK);
        ledger_destroy(&ledger);
    }
}

static void test_batches(void **)
{
    struct setup s;
    begin(&s, "", 400 * MIB, NULL);
    play(&s, "a=30M b=70M -b batch b=70M -b batch");
    expect_layout(&s, "memory that each batch uses stays", "30M(a30M) 70M(.70M)");
    play(&s, "b=30M -b batch");
    expect_layout(&s, "30 % unused is cleaned up", "30M(a30M)");
    end(&s);
    begin(&s, "", 400 * MIB, &(struct cache_options){.clean_every = 3, .clean_above = 1});
    play(&s, "a=30M b=70M -b batch batch");
    expect_layout(&s, "not yet", "30M(a30M) 70M(.70M)");
    play(&s, "batch");
    expect_layout(&s, "every third batch", "30M(a30M)");
    end(&s);
}

static bool free_one(void *arg, uint64_t)
{
    struct setup *s = arg;
    bool any = s->at['a'] != 0;
    if (any) one_word(s, "-a");
    return any;
}

static void test_reclaim(void **)
{
    struct setup s;
    begin(&s, "", 40 * MIB, &(struct cache_options){.reclaim = free_one, .arg = &s});
    play(&s, "a=20M b=20M");
    expect_layout(&s, "the callback makes room", "20M(b20M)");
    play(&s, "-b a=10M");
    assert_int_equal(cache_clear(s.cache, true), 20 * MIB);
    assert_int_equal(s.at['a'], 0);
    end(&s);
}

/* A job is played again with the addresses that the driver gave: of equal blocks the lowest is used. */
static void test_places(void **)
{
    struct simulated_place places[] = {{900 * MIB, 12 * MIB, 0},
                                       {800 * MIB, 12 * MIB, 0},
                                       {700 * MIB, 30 * MIB, 0},
                                       {710 * MIB, 14 * MIB, 0},
                                       {600 * MIB, 16 * MIB, 0}};
    struct setup s;
    begin(&s, "", 400 * MIB, NULL);
    backing_simulated_places(&s.device, places, 5);
    play(&s, "a=12M b=12M c=30M -a -b d=12M");
    assert_true(s.at['c'] == 700 * MIB && s.at['d'] == 800 * MIB);
    play(&s, "-c clear e=14M");
    assert_int_equal(s.at['e'], 710 * MIB); /* c is gone */
    play(&s, "f=18M g=16M");
    assert_true(s.at['f'] > 912 * MIB && s.at['g'] > s.at['f']); /* another size ends the list */
    end(&s);
    places[3].address = 729 * MIB;
    begin(&s, "", 400 * MIB, NULL);
    backing_simulated_places(&s.device, places, 5);
    play(&s, "a=12M b=12M c=30M e=14M");
    assert_true(s.at['e'] > 912 * MIB); /* the place overlaps c */
    end(&s);
    places[0].address = UINT64_MAX - 511;
    begin(&s, "", 400 * MIB, NULL);
    backing_simulated_places(&s.device, places, 5);
    play(&s, "a=12M");
    assert_true(s.at['a'] < (uint64_t)1 << 50);
    end(&s);
}

/* ---- refusals ---- */

static void tell_frames(void *, const void *frames, char *text, size_t size)
{
    snprintf(text, size, "model.py:%s", (const char *)frames);
}

static uint64_t take(struct setup *s, uint64_t bytes, int cls, const char *frames)
{
    uint64_t at;
    struct cache_request request = {.bytes = bytes, .cls = cls, .frames = frames};
    assert_int_equal(cache_malloc_request(s->cache, &request, &at, &err), PLIM_OK);
    return at;
}

static void expect_refusal(struct setup *s, uint64_t bytes, enum cache_cause cause, const char *const *words)
{
    struct cache_refusal refusal;
    struct strbuf text = STRBUF_INIT;
    uint64_t at = 1;
    struct cache_request request = {.bytes = bytes, .cls = 1};
    assert_int_equal(cache_malloc_request(s->cache, &request, &at, &err), PLIM_NO_MEMORY);
    assert_int_equal(at, 0);
    assert_true(cache_last_refusal(s->cache, &refusal));
    if (refusal.cause != cause) fail_msg("cause %d, expected %d: %s", refusal.cause, cause, err.text);
    assert_int_equal(refusal.bytes, bytes);
    cache_explain(s->cache, &refusal, &text);
    if (strncmp(err.text, strbuf_text(&text), strlen(err.text))) fail_msg("%s", strbuf_text(&text));
    for (; *words; words++)
        if (!strstr(strbuf_text(&text), *words)) fail_msg("no '%s' in: %s", *words, strbuf_text(&text));
    strbuf_release(&text);
}

static void test_refusals(void **)
{
    static const char *const classes[] = {"parameters", "activations"};
    struct setup s;
    struct cache_refusal none;
    uint64_t at[4];
    begin(&s, "", 100 * MIB,
          &(struct cache_options){.budget = 90 * MIB,
                                  .overhead = 10 * MIB,
                                  .classes = classes,
                                  .class_count = 2,
                                  .describe = tell_frames});
    assert_false(cache_last_refusal(s.cache, &none));
    expect_refusal(&s, 81 * MIB, CACHE_TOO_LARGE,
                   (const char *const[]){"81.0 MiB for 'activations'", "80.0 MiB", NULL});
    take(&s, 40 * MIB, 0, "12");
    for (int i = 0; i < 4; i++) at[i] = take(&s, 5 * MIB, 1, i % 2 ? "40" : "41");
    expect_refusal(&s, 30 * MIB, CACHE_LIVE_FULL,
                   (const char *const[]){"parameters 40.0 MiB, activations 20.0 MiB",
                                         "raise the budget by 10.0 MiB",
                                         "40.0 MiB in 1 blocks: parameters, model.py:12",
                                         "10.0 MiB in 2 blocks: activations, model.py:40", NULL});
    cache_free(s.cache, at[0], &err);
    cache_free(s.cache, at[2], &err);
    expect_refusal(&s, 28 * MIB, CACHE_SCATTERED,
                   (const char *const[]){"fragmentation 17 %", "at most 5.00 MiB",
                                         "set expandable_segments:True", NULL});
    s.device.others = 35 * MIB;
    expect_refusal(&s, 18 * MIB, CACHE_OTHERS, (const char *const[]){"25.0 MiB are held outside", NULL});
    expect_refusal(&s, UINT64_MAX, CACHE_TOO_LARGE, (const char *const[]){"above the limit", NULL});
    s.device.others = 0;
    end(&s);
}

static void test_wrong_use(void **)
{
    struct setup s;
    struct cache_block block;
    uint64_t segment, bytes;
    begin(&s, "", 100 * MIB, NULL);
    play(&s, "a=5M b=6M c=3M");
    assert_int_equal(cache_find(s.cache, s.at['b'], &block, &segment, &bytes, &err), PLIM_OK);
    assert_true(block.bytes == 6 * MIB && segment == s.at['a'] && bytes == 20 * MIB);
    assert_int_equal(cache_find(s.cache, s.at['b'] + 512, &block, NULL, NULL, &err), PLIM_NOT_FOUND);
    assert_int_equal(cache_free(s.cache, s.at['b'], &err), PLIM_OK);
    assert_int_equal(cache_free(s.cache, s.at['b'], &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "freed before"));
    assert_int_equal(cache_free(s.cache, s.at['a'] + 512, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "not an allocation"));
    assert_int_equal(cache_free(s.cache, 0, &err), PLIM_OK);
    assert_int_equal(cache_record_stream(s.cache, s.at['b'], 1, &err), PLIM_BAD_INPUT);
    struct cache_request request = {.bytes = 1, .cls = 3};
    assert_int_equal(cache_malloc_request(s.cache, &request, &bytes, &err), PLIM_BAD_INPUT);
    struct cache *other;
    struct cache_options options = {.backing = &s.device.base};
    assert_int_equal(cache_conf_parse("backend:cudaMallocAsync", &options.conf, &err), PLIM_OK);
    assert_int_equal(cache_new(&other, &options, &err), PLIM_UNSUPPORTED);
    end(&s);
}

/* ---- history ---- */

static void add_event(void *arg, const struct cache_event *event)
{
    strbuf_addf(arg, "%s %llu, ", cache_action_name(event->action), (unsigned long long)event->bytes);
}

static void test_history(void **)
{
    struct setup s;
    struct strbuf text = STRBUF_INIT;
    begin(&s, "", 40 * MIB, NULL);
    play(&s, "a=12M");
    assert_int_equal(cache_history_start(s.cache, 9, &err), PLIM_OK);
    play(&s, "b=1000B -b a~1 -a c=41M");
    cache_history_mark(s.cache);
    assert_int_equal(cache_history_each(s.cache, add_event, &text), 1);
    assert_string_equal(strbuf_text(&text),
                        "alloc 1000, free_requested 1000, free_completed 1000, free_requested 12582912, "
                        "free_completed 12582912, segment_free 12582912, segment_free 2097152, oom 42991616, "
                        "snapshot 0, ");
    strbuf_clear(&text);
    assert_int_equal(cache_history_start(s.cache, 0, &err), PLIM_OK);
    assert_int_equal(cache_history_each(s.cache, add_event, &text), 0);
    assert_int_equal(text.len, 0);
    strbuf_release(&text);
    end(&s);
}

/* ---- host memory, many blocks ---- */

static void test_host(void **)
{
    static const char *const confs[] = {"", EXPAND};
    for (int k = 0; k < 2; k++) {
        struct backing_host host;
        struct cache *cache;
        struct cache_options options = {.backing = &host.base};
        static uint64_t at[6000];
        backing_host_init(&host, 1024 * MIB);
        assert_int_equal(cache_conf_parse(confs[k], &options.conf, &err), PLIM_OK);
        assert_int_equal(cache_new(&cache, &options, &err), PLIM_OK);
        for (int i = 0; i < 6000; i++) {
            assert_int_equal(cache_malloc(cache, 1 + (uint64_t)i % 3000, 0, &at[i], &err), PLIM_OK);
            memset((void *)(uintptr_t)at[i], i & 255, 1 + (size_t)i % 3000);
        }
        assert_int_equal(cache_check(cache, &err), PLIM_OK);
        for (int i = 0; i < 6000; i++) {
            const unsigned char *bytes = (const void *)(uintptr_t)at[i];
            assert_true(bytes[0] == (i & 255) && bytes[i % 3000] == (i & 255));
            assert_int_equal(cache_free(cache, at[i], &err), PLIM_OK);
        }
        assert_int_equal(cache_record_stream(cache, at[0], 1, &err), PLIM_BAD_INPUT);
        assert_true(cache_clear(cache, false) > 0);
        assert_int_equal(cache_check(cache, &err), PLIM_OK);
        cache_destroy(cache);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rules),         cmocka_unit_test(test_stats),
        cmocka_unit_test(test_fragmentation), cmocka_unit_test(test_limits),
        cmocka_unit_test(test_ledger),        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_reclaim),       cmocka_unit_test(test_places),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_wrong_use),
        cmocka_unit_test(test_history),       cmocka_unit_test(test_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
