/* test_watch.c - the monitor over made-up readings: status, step line, strain, trend, advice, leaks; and readers over files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "mem/os_processes.h"
#include "watch/holders.h"
#include "watch/monitor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (1ll << 20)
#define GIB (1ll << 30)

static const struct profile balanced = {0.90, 0.92, 0.95, 0.97};

/* What the readers below say. */
static struct watch_reading world;
static void read_world(const struct watch_source *source, struct watch_reading *out)
{
    (void)source;
    double seconds = out->seconds;
    *out = world;
    if (!world.seconds) out->seconds = seconds;
}
static watch_reader *const readers[] = {read_world, NULL};

static struct monitor *open_monitor(void)
{
    struct monitor *m;
    struct plim_error err = {0};
    struct monitor_options options = {.readers = readers, .thresholds = balanced};
    assert_int_equal(monitor_open(&options, &m, &err), PLIM_OK);
    return m;
}

static struct monitor_state sample(struct monitor *m)
{
    struct monitor_state s;
    monitor_sample(m);
    monitor_look(m, &s);
    return s;
}

static void set_machine(int64_t total, int64_t used, int64_t ours)
{
    world.machine = (struct os_machine){.total = (uint64_t)total, .available = (uint64_t)(total - used)};
    world.process.rss = (uint64_t)ours;
}

static void the_step_line(void **state)
{
    (void)state;
    struct strbuf out = STRBUF_INIT;
    struct gauge g = gauge_of("device", 228 * GIB / 10, 24 * GIB, GIB, &balanced);
    assert_int_equal(gauge_status(&g), MEMORY_CRITICAL);
    status_line(&out, 300, &g, gauge_status(&g), "reducing batch size");
    assert_string_equal(strbuf_text(&out),
                        "[Step 300] Memory: 22.8/24.0 GB (95%), Status: critical - reducing batch size");
    strbuf_clear(&out);
    g = gauge_of("device", 201 * GIB / 10, 24 * GIB, GIB, &balanced);
    status_line(&out, 400, &g, gauge_status(&g), "batch size restored");
    assert_string_equal(strbuf_text(&out),
                        "[Step 400] Memory: 20.1/24.0 GB (84%), Status: normal - batch size restored");
    strbuf_clear(&out);
    g = gauge_of("container", 32 * MIB, 64 * MIB, MIB, &balanced);
    status_line(&out, 1, &g, gauge_status(&g), NULL);
    assert_string_equal(strbuf_text(&out), "[Step 1] Memory: 32.0/64.0 MB (50%), Status: normal");
    strbuf_release(&out);
}

static void statuses_by_profile(void **state)
{
    (void)state;
    static const struct {
        double share;
        enum memory_status aggressive, balanced, conservative;
    } cases[] = {{0.80, MEMORY_NORMAL, MEMORY_NORMAL, MEMORY_NORMAL},
                 {0.90, MEMORY_NORMAL, MEMORY_NORMAL, MEMORY_WARNING},
                 {0.93, MEMORY_NORMAL, MEMORY_WARNING, MEMORY_CRITICAL},
                 {0.955, MEMORY_WARNING, MEMORY_CRITICAL, MEMORY_EMERGENCY},
                 {0.975, MEMORY_CRITICAL, MEMORY_EMERGENCY, MEMORY_EMERGENCY},
                 {0.99, MEMORY_EMERGENCY, MEMORY_EMERGENCY, MEMORY_EMERGENCY}};
    static const char *const names[] = {"aggressive", "balanced", "conservative"};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const enum memory_status want[] = {cases[i].aggressive, cases[i].balanced, cases[i].conservative};
        for (int k = 0; k < 3; k++) {
            struct profile p;
            assert_int_equal(profile_find(names[k], &p, NULL), PLIM_OK);
            struct gauge g = gauge_of("device", (int64_t)(cases[i].share * 1e9), 1000000000, 0, &p);
            assert_int_equal(gauge_status(&g), want[k]);
        }
    }
    struct gauge own = gauge_of_budget(100, 100, &balanced); /* a plan that takes its budget is normal */
    assert_int_equal(gauge_status(&own), MEMORY_NORMAL);
}

static void strains_are_told_apart(void **state)
{
    (void)state;
    const char *advice[ADVICE_MAX];
    world = (struct watch_reading){0};
    set_machine(1000 * MIB, 500 * MIB, 100 * MIB);
    struct monitor *m = open_monitor();
    monitor_tell(m, &(struct monitor_own){.budget = 900 * MIB});
    assert_int_equal(sample(m).strain, STRAIN_NONE);
    assert_int_equal(monitor_recommend(&(struct monitor_state){0}, advice, ADVICE_MAX), 0);
    set_machine(1000 * MIB, 960 * MIB, 100 * MIB);
    struct monitor_state s = sample(m);
    assert_int_equal(s.status, MEMORY_CRITICAL);
    assert_int_equal(s.strain, STRAIN_OTHERS);
    assert_int_equal(monitor_recommend(&s, advice, ADVICE_MAX), 2);
    assert_non_null(strstr(advice[0], "other processes"));
    assert_non_null(strstr(advice[1], "dynamic_batching"));
    monitor_tell(m, &(struct monitor_own){.budget = 900 * MIB, .gives_way = true}); /* it does already */
    for (int i = 0; i < 2; i++) {
        if (i)
            s = sample(m);
        else
            monitor_look(m, &s);
        assert_int_equal(monitor_recommend(&s, advice, ADVICE_MAX), 1);
    }
    monitor_tell(m, &(struct monitor_own){.budget = 900 * MIB, .serves = true}); /* nothing about training */
    monitor_look(m, &s);
    assert_int_equal(monitor_recommend(&s, advice, ADVICE_MAX), 1);
    assert_null(strstr(advice[0], "training."));
    set_machine(520 * MIB, 500 * MIB, 100 * MIB);
    assert_int_equal(sample(m).strain, STRAIN_LIMIT);
    set_machine(1000 * MIB, 960 * MIB, 560 * MIB);
    assert_int_equal(sample(m).strain, STRAIN_OURS);
    set_machine(4000 * MIB, 1500 * MIB, 1000 * MIB);
    s = sample(m);
    assert_int_equal(s.strain, STRAIN_BUDGET);
    assert_string_equal(s.gauge[s.worst].name, "budget");
    set_machine(4000 * MIB, 500 * MIB, 100 * MIB);
    world.pressure.full = 40;
    s = sample(m);
    assert_int_equal(s.status, MEMORY_WARNING);
    assert_int_equal(s.strain, STRAIN_STALL);
    monitor_close(m);
}

static void a_card_comes_first(void **state)
{
    (void)state;
    world = (struct watch_reading){0};
    set_machine(1000 * MIB, 990 * MIB, 10 * MIB);
    world.device = (struct device_memory){.total = 24ull << 30, .used = 23ull << 30, .ours = 4ull << 30};
    struct monitor *m = open_monitor();
    struct monitor_state s = sample(m);
    assert_string_equal(s.gauge[0].name, "device");
    assert_string_equal(s.gauge[s.worst].name, "machine"); /* the host is worse */
    assert_string_equal(s.gauge[s.leading].name, "machine");
    monitor_tell(m, &(struct monitor_own){.budget = 8 * GIB});
    s = sample(m);
    assert_string_equal(s.gauge[s.leading].name, "device"); /* but only this one the plan can ease */
    monitor_close(m);
}

static void the_trend(void **state)
{
    (void)state;
    world = (struct watch_reading){.seconds = 1};
    set_machine(1000 * MIB, 100 * MIB, 10 * MIB);
    struct monitor *m = open_monitor();
    struct monitor_state s = {0};
    for (int i = 1; i < 30; i++) {
        world.seconds = 1 + i;
        set_machine(1000 * MIB, (100 + 5 * i) * MIB, 10 * MIB);
        s = sample(m);
    }
    assert_true(s.trend > 4.99 * MIB && s.trend < 5.01 * MIB);
    monitor_close(m);
}

/* --- leaks --------------------------------------------------------------------------------------------------------- */

/* `samples` of a process that grows by `each` bytes in the part; true: a leak was found. */
static bool leaks(enum leak_part part, int64_t each, int samples, struct leak *leak)
{
    struct leak_parts parts = {.bytes = {10 * MIB, 20 * MIB, 0, 30 * MIB}};
    *leak = (struct leak){0};
    for (int i = 0; i < samples; i++) {
        int64_t outside = 0;
        parts.bytes[part] += each;
        for (int k = 0; k < LEAK_PARTS; k++) outside += parts.bytes[k];
        leak_look(leak, i, outside, 4 * MIB, &parts);
    }
    return leak->found;
}

static void leaks_are_named(void **state)
{
    (void)state;
    struct leak leak;
    struct strbuf text = STRBUF_INIT;
    for (int part = 0; part < LEAK_PARTS; part++) {
        assert_true(leaks((enum leak_part)part, MIB, 40, &leak));
        assert_int_equal(leak.who, part);
        strbuf_clear(&text);
        leak_text(&leak, &text);
        assert_non_null(strstr(strbuf_text(&text), leak_part_name((enum leak_part)part)));
    }
    assert_false(leaks(LEAK_UNKNOWN, 0, 1000, &leak));
    assert_false(leaks(LEAK_UNKNOWN, 64, 1000, &leak)); /* less than is allowed */
    strbuf_release(&text);
}

/* What comes and goes is none: a checkpoint's buffers, an evaluation. */
/* The threshold is what the caller allows, not a multiple of it: found in the first window that is beyond. */
static void leaks_are_found_at_the_threshold(void **state)
{
    (void)state;
    const int64_t allowed[] = {MIB, 4 * MIB, 16 * MIB};
    for (size_t a = 0; a < sizeof allowed / sizeof *allowed; a++)
        for (int64_t each = MIB / 16; each <= MIB; each *= 4) {
            struct leak leak = {0};
            struct leak_parts parts = {0};
            int64_t window = LEAK_WINDOW * each, beyond = allowed[a] / window + 1;
            int64_t windows = 1 + (beyond > LEAK_WINDOWS ? beyond : LEAK_WINDOWS);
            for (int64_t i = 1; i <= windows * LEAK_WINDOW; i++) {
                assert_false(leak.found);
                leak_look(&leak, i, i * each, allowed[a], &parts);
            }
            assert_true(leak.found && leak.growth > allowed[a]);
        }
}

static void noise_is_no_leak(void **state)
{
    (void)state;
    struct leak leak = {0};
    struct leak_parts parts = {0};
    for (int i = 0; i < 2000; i++) {
        int64_t now = 20 * MIB + (i % 10 == 9 ? 64 * MIB : 0) + rand() % 4096;
        leak_look(&leak, i, now, 4 * MIB, &parts);
    }
    assert_false(leak.found);
}

/* Nor is what the plan has counted, when it is used for the first time. */
static void what_was_planned_is_no_leak(void **state)
{
    (void)state;
    world = (struct watch_reading){0};
    struct monitor *m = open_monitor();
    struct monitor_state s = {0};
    monitor_tell(m, &(struct monitor_own){.planned = 50 * MIB, .allowed = 4 * MIB});
    for (int i = 0; i < 100; i++) {
        world.process.rss = (uint64_t)((100 + (i < 50 ? i : 50)) * MIB);
        world.arena = 100 * MIB;
        s = sample(m);
    }
    assert_false(s.leak.found);
    for (int i = 0; i < 100; i++) {
        world.process.rss += MIB;
        s = sample(m);
    }
    assert_true(s.leak.found && s.leak.who == LEAK_UNKNOWN);
    monitor_close(m);
}

/* --- readers over files -------------------------------------------------------------------------------------------- */

static char root[64];

static void put(const char *name, const char *text)
{
    char path[200];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void files_are_read(void **state)
{
    (void)state;
    struct os_pressure pressure;
    struct holder holders[HOLDERS_MAX];
    struct strbuf text = STRBUF_INIT;
    char command[100];
    strcpy(root, "/tmp/plimsoll-watch-XXXXXX");
    assert_non_null(mkdtemp(root));
    os_memory_pressure_at(root, NULL, &pressure);
    assert_true(pressure.some == 0 && pressure.full == 0);
    put("proc/pressure/memory",
        "some avg10=1.50 avg60=0.00 avg300=0.00 total=1\nfull avg10=0.25 avg60=0.00\n");
    os_memory_pressure_at(root, NULL, &pressure);
    assert_true(pressure.some == 1.5 && pressure.full == 0.25);
    put("proc/self/cgroup", "0::/job\n");
    put("sys/fs/cgroup/job/memory.pressure", "some avg10=30.00 avg60=0\nfull avg10=20.00 avg60=0.00\n");
    os_memory_pressure_at(root, NULL, &pressure);
    assert_true(pressure.full == 20);
    put("proc/self/mountinfo", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n"
                               "41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
    put("sys/fs/cgroup/unified/job/memory.pressure", "some avg10=9.00 avg60=0\nfull avg10=8.00 avg60=0\n");
    os_memory_pressure_at(root, NULL, &pressure);
    assert_true(pressure.full == 8);
    put("proc/10/statm", "100 7 1 1 1 1 1\n");
    put("proc/10/comm", "small\n");
    put("proc/11/statm", "9999999 5000 1 1 1 1 1\n");
    put("proc/11/comm", "python3\n");
    assert_int_equal(holders_of(NULL, root, holders), 2);
    assert_string_equal(holders[0].name, "python3");
    assert_int_equal(holders[0].bytes, 5000 * (int64_t)os_page_size());
    holders_text(holders, 2, &text);
    assert_non_null(strstr(strbuf_text(&text), "python3 (11) "));
    struct watch_reading reading = {
        .device = {.holders = 2, .holder = {{.pid = 10, .bytes = 5}, {.pid = getpid(), .bytes = 9}}}};
    assert_int_equal(holders_of(&reading, root, holders), 2);
    assert_true(holders[0].ours && holders[0].bytes == 9);
    assert_string_equal(holders[1].name, "small");
    strbuf_release(&text);
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

/* The real thing: a thread that samples. */
static void the_thread_samples(void **state)
{
    (void)state;
    struct monitor *m;
    struct monitor_state s = {0};
    struct monitor_options options = {.thresholds = balanced, .interval = 0.001};
    assert_int_equal(monitor_open(&options, &m, NULL), PLIM_OK);
    while (s.sample < 5) {
        usleep(1000);
        monitor_look(m, &s);
    }
    assert_true(s.now.process.rss > 0 && s.gauges == 1);
    monitor_close(m);
    monitor_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_step_line),
        cmocka_unit_test(statuses_by_profile),
        cmocka_unit_test(a_card_comes_first),
        cmocka_unit_test(strains_are_told_apart),
        cmocka_unit_test(the_trend),
        cmocka_unit_test(leaks_are_named),
        cmocka_unit_test(leaks_are_found_at_the_threshold),
        cmocka_unit_test(noise_is_no_leak),
        cmocka_unit_test(files_are_read),
        cmocka_unit_test(what_was_planned_is_no_leak),
        cmocka_unit_test(the_thread_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
