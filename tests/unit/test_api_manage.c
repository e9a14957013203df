/* test_api_manage.c - the public API around memory: devices and presets, summaries, batch sizes, monitors and allocators, on
 * machines made of files; and what wrong handles, sizes and values get. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "api/device.h"
#include "base/file.h"
#include "base/json.h"
#include "mem/os.h"
#include "support/own_threads.h"
#include <plimsoll/plimsoll.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)
#define GIB ((uint64_t)1 << 30)

static struct plim_error err;
static struct plim_context *context;
static struct plim_device *cpu;
static char root[64];

#define assert_ok(call)                                                                                      \
    do {                                                                                                     \
        if ((call) != PLIM_OK) fail_msg("%s", err.text);                                                     \
    } while (0)
#define assert_bad(call, words) assert_status(PLIM_BAD_INPUT, call, words)
#define assert_status(status, call, words)                                                                   \
    do {                                                                                                     \
        memset(&err, 0, sizeof err);                                                                         \
        assert_int_equal(call, status);                                                                      \
        if (!strstr(err.text, words)) fail_msg("'%s' is not in: %s", words, err.text);                       \
    } while (0)

/* --- a machine made of files ---------------------------------------------------------------------------------------- */

/* Renamed into place, so that a monitor's thread sees all of it; not synced as file_write_atomic does, which takes long. */
static void put(const char *path, const char *text)
{
    char full[256], temp[256];
    snprintf(full, sizeof full, "%s%s", root, path);
    *strrchr(full, '/') = '\0';
    assert_int_equal(file_make_dirs(full, NULL), PLIM_OK);
    snprintf(full, sizeof full, "%s%s", root, path);
    snprintf(temp, sizeof temp, "%s/next", root);
    FILE *f = fopen(temp, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0 && fclose(f) == 0 && rename(temp, full) == 0);
}

static void set_machine(uint64_t total, uint64_t available)
{
    char text[128];
    snprintf(text, sizeof text, "MemTotal: %llu kB\nMemAvailable: %llu kB\n",
             (unsigned long long)(total >> 10), (unsigned long long)(available >> 10));
    put("/proc/meminfo", text);
}

static int open_with(char *const *environment)
{
    struct plim_context_options options = {.size = sizeof options, .environment = environment};
    strcpy(root, "/tmp/plimsoll-api-XXXXXX");
    if (!mkdtemp(root)) return -1;
    set_machine(16 * GIB, 12 * GIB);
    os_set_machine_root(root);
    assert_ok(plim_context_open(&options, &context, &err));
    assert_ok(plim_device_open(context, "cpu", &cpu, &err));
    return 0;
}

static int open_all(void **state)
{
    static char *variables[] = {"PLIMSOLL_CALIBRATE=0", NULL};
    (void)state;
    return open_with(variables);
}

static int close_all(void **state)
{
    char command[128];
    (void)state;
    plim_device_close(cpu);
    plim_context_close(context);
    os_set_machine_root(NULL);
    snprintf(command, sizeof command, "rm -r '%s'", root);
    return system(command);
}

static struct doc *parse(char *text)
{
    struct doc *doc = NULL;
    assert_non_null(text);
    assert_ok(json_parse(text, strlen(text), "answer", &doc, &err));
    plim_free(text);
    return doc;
}

/* --- devices ---------------------------------------------------------------------------------------------------------- */

/* Threads and memory that are a sanitizer's own are not looked at. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static int count_threads(void) { return SANITIZED ? 0 : own_threads(); }

static void test_device_open(void **state)
{
    (void)state;
    struct plim_device *device = cpu;
    struct plim_device_facts facts = {.size = sizeof facts};
    struct plim_memory memory = {.size = sizeof memory};
    int threads = count_threads();
    assert_ok(plim_device_open(context, NULL, &device, &err));
    assert_ok(plim_memory_summary(device, &memory, &err));
    assert_int_equal(count_threads(), threads); /* memory is asked without threads */
    assert_ok(plim_device_facts(device, &facts, &err));
    assert_true(facts.memory_bytes == 16 * GIB && facts.threads > 0 && facts.flops_f32 > 0);
    assert_true(*facts.name && *facts.backend);
    plim_device_close(device);
    assert_int_equal(count_threads(), threads);
    assert_bad(plim_device_open(context, "cuda:x", &device, &err),
               "write auto, cpu, cuda, cuda:1, neuron, tpu or pjrt:PATH, or a preset");
    assert_null(device);
    assert_bad(plim_device_open(context, "rtx-4091", &device, &err), "is not known");
    assert_bad(plim_device_open(context, "rtx-40", &device, &err), "did you mean rtx-4090");
}

static void test_preset(void **state)
{
    (void)state;
    struct plim_device *preset;
    struct plim_device_facts facts = {.size = sizeof facts};
    struct plim_memory memory = {.size = sizeof memory};
    struct plim_inference_config config = {.size = sizeof config};
    int rows;
    assert_ok(plim_device_open(context, "rtx-4090", &preset, &err));
    assert_ok(plim_device_facts(preset, &facts, &err));
    assert_string_equal(facts.name, "rtx-4090");
    assert_string_equal(facts.backend, "");
    assert_int_equal(facts.capability, 89);
    assert_true(facts.memory_bytes > 23 * GIB);
    assert_ok(plim_batch_size(preset, 32, 1000 * MIB, &rows, &err));
    assert_int_equal(rows, 32);
    assert_ok(plim_batch_size(preset, 32, 8000 * MIB, &rows, &err));
    assert_int_equal(rows, 8);
    assert_ok(plim_inference_config(preset, 1000 * MIB, &config, &err));
    assert_string_equal(config.device, "rtx-4090");
    assert_string_equal(config.precision, "fp16");
    assert_status(PLIM_UNSUPPORTED, plim_memory_summary(preset, &memory, &err), "has no memory of its own");
    assert_status(PLIM_UNSUPPORTED, plim_memory_snapshot(preset, "x.json", &err), "has no memory of its own");
    struct doc *report = parse(plim_memory_report(preset));
    assert_non_null(node_path(&report->root, "environment.device.memory_bytes"));
    assert_null(node_get(&report->root, "total"));
    doc_free(report);
    plim_device_close(preset);
}

static void test_device_list(void **state)
{
    (void)state;
    struct doc *list = parse(plim_device_list(context));
    int devices = 0, presets = 0, machines = 0, known = 0;
    for (size_t i = 0; i < node_count(&list->root); i++) {
        const struct node *one = node_item(&list->root, i);
        const char *kind = node_string(node_get(one, "kind"), ""),
                   *name = node_string(node_get(one, "name"), "");
        devices += !strcmp(kind, "device"), presets += !strcmp(kind, "preset");
        machines += !strcmp(kind, "machine");
        known += !strcmp(name, "cpu") || !strcmp(name, "h200") || !strcmp(name, "g5.12xlarge");
    }
    assert_true(devices >= 1 && presets > 10 && machines > 5 && known == 3);
    doc_free(list);
}

/* --- summaries -------------------------------------------------------------------------------------------------------- */

static void test_summary(void **state)
{
    (void)state;
    struct plim_memory m = {.size = sizeof m}, more = m;
    struct os_process me;
    assert_ok(plim_memory_summary(cpu, &m, &err));
    assert_true(m.total == 16 * GIB && m.free == 12 * GIB && m.utilization == 0.25);
    assert_int_equal(m.reserved, m.tensors + m.cached + m.overhead);
    assert_int_equal(m.allocated, m.reserved - m.cached);
    assert_true(m.peak >= m.reserved && m.fragmentation == 0 && m.cached == 0);
    assert_int_equal(m.others, 4 * GIB - m.reserved);
    os_process_memory(&me, NULL);
    assert_in_range(m.reserved, me.rss / 2, me.rss * 2);

    char *large = mmap(NULL, 64 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(large, 1, 64 * MIB);
    assert_ok(plim_memory_summary(cpu, &more, &err));
    assert_true(more.reserved > m.reserved + 60 * MIB);
    munmap(large, 64 * MIB);
    assert_ok(plim_memory_summary(cpu, &more, &err));
    assert_true(more.peak > m.reserved + 60 * MIB);
    plim_reset_peaks(cpu);
    assert_ok(plim_memory_summary(cpu, &more, &err));
    assert_true(more.peak < m.reserved + 32 * MIB);

    put("/proc/self/cgroup", "0::/a\n"); /* a container */
    put("/sys/fs/cgroup/a/memory.max", "2147483648\n");
    put("/sys/fs/cgroup/a/memory.current", "1073741824\n");
    assert_ok(plim_memory_summary(cpu, &m, &err));
    assert_true(m.total == 2 * GIB && m.free == GIB && m.utilization == 0.5);
}

static void test_report_and_snapshot(void **state)
{
    (void)state;
    char path[128];
    struct doc *doc = parse(plim_memory_report(cpu));
    assert_int_equal(node_int(node_path(&doc->root, "total.free"), 0), 12 * GIB);
    assert_non_null(node_path(&doc->root, "fragmentation.ratio"));
    assert_non_null(node_path(&doc->root, "classes.overhead"));
    assert_non_null(node_path(&doc->root, "environment.system.kernel"));
    assert_string_equal(node_string(node_path(&doc->root, "environment.variables.PLIMSOLL_CALIBRATE"), ""),
                        "0");
    doc_free(doc);

    snprintf(path, sizeof path, "%s/memory.json", root);
    for (int i = 0; i < 1500; i++) { /* more than are kept */
        struct plim_memory m = {.size = sizeof m};
        assert_ok(plim_memory_summary(cpu, &m, &err));
    }
    assert_ok(plim_memory_snapshot(cpu, path, &err));
    assert_ok(json_load(path, &doc, &err));
    const struct node *events = node_get(&doc->root, "traceEvents");
    assert_int_equal(node_count(events), 1 + 1024);
    double last = -1;
    for (size_t i = 1; i < node_count(events); i++) {
        const struct node *e = node_item(events, i);
        double at = node_float(node_get(e, "ts"), -2);
        assert_true(at >= last && at >= 0);
        assert_int_equal(node_int(node_path(e, "args.free"), 0), 12 * GIB);
        last = at;
    }
    doc_free(doc);
    assert_bad(plim_memory_snapshot(cpu, "", &err), "path is empty");
    assert_bad(plim_memory_snapshot(cpu, "/tmp/x.pickle", &err), "none is attached");
    assert_status(PLIM_IO, plim_memory_snapshot(cpu, "/nowhere/at/all.json", &err), "/nowhere/at/all");
}

static void test_clear_cache(void **state)
{
    (void)state;
    enum { PIECES = 20000 };
    static char *pieces[PIECES];
    uint64_t freed = 1;
    assert_ok(plim_clear_cache(cpu, 0, &freed, &err));
    assert_int_equal(freed, 0);
    for (int i = 0; i < PIECES; i++) pieces[i] = memset(malloc(2048), 1, 2048);
    for (int i = 0; i < PIECES - 1; i++) free(pieces[i]); /* the last keeps the heap up */
    assert_ok(plim_clear_cache(cpu, 1, &freed, &err));
    free(pieces[PIECES - 1]);
    assert_true(SANITIZED || freed > 16 * MIB);
    assert_ok(plim_clear_cache(cpu, 1, NULL, &err));
}

/* --- a card ----------------------------------------------------------------------------------------------------------- */

static bool card_memory(struct device *device, struct device_memory *out)
{
    (void)device;
    *out = (struct device_memory){.total = 24 * GIB, .used = 10 * GIB, .ours = 6 * GIB};
    return true;
}

static void card_close(struct device *device) { device_ledgers_destroy(device); }

/* The driver's view counts; the host's memory beside it is watched, too. */
static void test_card(void **state)
{
    (void)state;
    static const struct device_ops ops = {.name = "cuda", .memory = card_memory, .close = card_close};
    struct ledger ledgers[TIER_COUNT];
    struct device card = {.ops = &ops};
    struct plim_device *d;
    struct plim_memory m = {.size = sizeof m};
    struct plim_monitor *monitor;
    struct plim_health h = {.size = sizeof h};
    struct plim_inference_config config = {.size = sizeof config};
    int rows;
    assert_ok(plim_device_open(context, "rtx-4090", &d, &err));
    card.facts = d->preset.facts;
    d->backend = backend_find("cuda"), d->opened = &card, d->index = 1;
    device_ledgers_init(&card, ledgers, false);
    assert_ok(ledger_reserve(card.ledger[TIER_DEVICE], DEVICE_LEDGER_ARENA, 3 * GIB, &err));
    assert_ok(plim_memory_summary(d, &m, &err));
    assert_true(m.total == 24 * GIB && m.free == 14 * GIB && m.reserved == 6 * GIB && m.others == 4 * GIB);
    assert_true(m.tensors == 3 * GIB && m.overhead == 3 * GIB && m.peak == 6 * GIB);
    assert_ok(plim_batch_size(d, 32, GIB, &rows, &err)); /* half of the card is ours, and 6 GiB are taken */
    assert_int_equal(rows, 32);
    assert_ok(plim_batch_size(d, 32, 2 * GIB, &rows, &err));
    assert_int_equal(rows, 8);
    assert_ok(plim_inference_config(d, GIB, &config, &err));
    assert_string_equal(config.device, "cuda:1");
    assert_string_equal(config.precision, "bf16");

    struct plim_monitor_options options = {.size = sizeof options, .device = d, .budget = 5 * GIB};
    set_machine(16 * GIB, 15 * GIB);
    assert_ok(plim_monitor_open(context, &options, &monitor, &err));
    assert_ok(plim_monitor_check(monitor, 0, &h, &err));
    assert_true(h.status == PLIM_MEMORY_EMERGENCY && h.used == 6 * GIB && h.total == 5 * GIB);
    plim_monitor_close(monitor);
    plim_device_close(d);
}

static int open_fraction(void **state)
{
    static char *variables[] = {"CUDA_MEMORY_FRACTION=0.5", NULL};
    (void)state;
    return open_with(variables);
}

/* --- batch sizes ------------------------------------------------------------------------------------------------------ */

static int rows_with(uint64_t available, int base, uint64_t model)
{
    int rows = 0;
    set_machine(64 * GIB, available);
    assert_ok(plim_batch_size(cpu, base, model, &rows, &err));
    return rows;
}

static void test_batch_size(void **state)
{
    (void)state;
    int rows;
    static const struct {
        uint64_t available;
        int rows;
    } tiers[] = {{GIB / 2, 1}, {GIB, 1}, {2 * GIB, 4}, {4 * GIB, 16}, {16 * GIB, 32}, {64 * GIB, 32}};
    for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
        assert_int_equal(rows_with(tiers[i].available, 32, 1000 * MIB), tiers[i].rows);
    assert_int_equal(rows_with(4 * GIB, 1, 1000 * MIB), 1);
    assert_int_equal(rows_with(4 * GIB, 24, 0), 24);
    assert_int_equal(rows_with(4 * GIB, INT32_MAX, 1), INT32_MAX);
    assert_int_equal(rows_with(4 * GIB, 32, UINT64_MAX), 1);
    for (uint64_t mib = 1, before = 0; mib < 40000; mib += 97) { /* more memory is never fewer rows */
        int now = rows_with(mib * MIB, 32, 700 * MIB);
        assert_true((uint64_t)now >= before);
        before = (uint64_t)now;
    }
    assert_bad(plim_batch_size(cpu, 0, 1, &rows, &err), "base is 0");
    assert_bad(plim_batch_size(cpu, 32, 1, NULL, &err), "out is NULL");
}

static int open_limited(void **state)
{
    static char *variables[] = {"MAX_BATCH_SIZE=128", "ENABLE_MIXED_PRECISION=true", "PLIMSOLL_CALIBRATE=0",
                                NULL};
    (void)state;
    return open_with(variables);
}

static void test_batch_limits(void **state)
{
    (void)state;
    struct plim_inference_config config = {.size = sizeof config};
    assert_int_equal(rows_with(60 * GIB, 32, 1000 * MIB), 128); /* the variable allows more than base */
    assert_int_equal(rows_with(60 * GIB, 200, 1000 * MIB), 128);
    assert_int_equal(rows_with(16 * GIB, 32, 1000 * MIB), 64);
    assert_ok(plim_inference_config(cpu, 1000 * MIB, &config, &err));
    assert_string_equal(config.device, "cpu");
    assert_string_equal(config.precision, "fp32"); /* the fixed rates have no faster bf16 */
    assert_int_equal(config.batch_size, 64);
}

static int open_wrong(void **state)
{
    static char *variables[] = {"MAX_BATCH_SIZE=many", "PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:1", NULL};
    (void)state;
    return open_with(variables);
}

static void test_wrong_variables(void **state)
{
    (void)state;
    int rows;
    struct plim_allocator *allocator;
    assert_bad(plim_batch_size(cpu, 32, 1, &rows, &err), "MAX_BATCH_SIZE");
    assert_bad(plim_allocator_open(context, NULL, &allocator, &err), "PYTORCH_CUDA_ALLOC_CONF");
    assert_null(allocator);
}

/* --- monitors --------------------------------------------------------------------------------------------------------- */

struct heard {
    int calls;
    enum plim_memory_status last;
    char line[160];
};

static void hear(void *arg, const struct plim_health *health)
{
    struct heard *heard = arg;
    heard->calls++, heard->last = health->status;
    snprintf(heard->line, sizeof heard->line, "%s", health->line);
}

static struct plim_health check(struct plim_monitor *monitor, uint64_t used, int64_t batch)
{
    struct plim_health health = {.size = sizeof health};
    set_machine(100 * GIB, 100 * GIB - used);
    assert_ok(plim_monitor_check(monitor, batch, &health, &err));
    return health;
}

static void test_monitor(void **state)
{
    (void)state;
    struct heard heard = {0};
    struct plim_monitor *monitor;
    struct plim_monitor_options options = {
        .size = sizeof options, .device = cpu, .changed = hear, .arg = &heard};
    set_machine(100 * GIB, 90 * GIB);
    assert_ok(plim_monitor_open(context, &options, &monitor, &err));
    struct plim_health h = check(monitor, 50 * GIB, 12);
    assert_true(h.status == PLIM_MEMORY_NORMAL && h.utilization == 0.5 && h.count == 0 && h.batch_size == 12);
    assert_string_equal(h.line, "[Step 1] Memory: 50.0/100.0 GB (50%), Status: normal");
    assert_int_equal(heard.calls, 0);

    h = check(monitor, 93 * GIB, 12);
    assert_true(h.status == PLIM_MEMORY_WARNING && h.batch_size == 12 && h.count == 1);
    assert_string_equal(h.recommendations[0], "other processes take the memory: end or move one");
    assert_true(heard.calls == 1 && heard.last == PLIM_MEMORY_WARNING);

    h = check(monitor, 955 * GIB / 10, 12);
    assert_true(h.status == PLIM_MEMORY_CRITICAL && h.batch_size == 6);
    assert_string_equal(h.recommendations[0], "reduce the batch size from 12 to 6");
    assert_string_equal(h.line,
                        "[Step 3] Memory: 95.5/100.0 GB (96%), Status: critical - reducing batch size");
    assert_string_equal(heard.line, h.line);

    h = check(monitor, 98 * GIB, 1);
    assert_true(h.status == PLIM_MEMORY_EMERGENCY && h.batch_size == 1 && heard.calls == 3);
    assert_non_null(strstr(h.recommendations[0], "is 1 already"));
    assert_non_null(strstr(h.recommendations[1], "clear the cache deeply"));

    for (int i = 0; i < 4; i++) assert_int_equal(check(monitor, 50 * GIB, 6).batch_size, 6);
    h = check(monitor, 50 * GIB, 6); /* five in a row */
    assert_int_equal(h.batch_size, 12);
    assert_string_equal(h.line, "[Step 9] Memory: 50.0/100.0 GB (50%), Status: normal - batch size restored");
    assert_int_equal(heard.calls, 4);
    h = (struct plim_health){.size = sizeof h, .step = 300};
    assert_ok(plim_monitor_check(monitor, 0, &h, &err));
    assert_true(h.step == 300 && strstr(h.line, "[Step 300]"));
    assert_null(plim_monitor_leaks(monitor));

    struct doc *doc = parse(plim_monitor_breakdown(monitor));
    assert_string_equal(node_string(node_get(&doc->root, "status"), ""), "normal");
    assert_int_equal(node_int(node_path(&doc->root, "total.total"), 0), 100 * GIB);
    doc_free(doc);
    plim_monitor_close(monitor);
}

static void test_monitor_thresholds(void **state)
{
    (void)state;
    struct plim_monitor *monitor = NULL;
    struct plim_monitor_options o = {.size = sizeof o, .device = cpu, .target = 0.5, .warning = 0.6};
    struct plim_health h = {.size = sizeof h};
    assert_ok(plim_monitor_open(context, &o, &monitor, &err));
    assert_int_equal(check(monitor, 61 * GIB, 0).status, PLIM_MEMORY_WARNING);
    assert_int_equal(check(monitor, 96 * GIB, 0).status, PLIM_MEMORY_CRITICAL);
    assert_bad(plim_monitor_check(monitor, -1, &h, &err), "0 or more");
    plim_monitor_close(monitor);
    o.warning = 0.4;
    assert_bad(plim_monitor_open(context, &o, &monitor, &err), "in ascending order");
    o.warning = 1.5;
    assert_bad(plim_monitor_open(context, &o, &monitor, &err), "shares from 0 to 1");
    o.warning = (double)NAN;
    assert_bad(plim_monitor_open(context, &o, &monitor, &err), "shares from 0 to 1");
    o = (struct plim_monitor_options){.size = sizeof o, .device = cpu, .interval = -1};
    assert_bad(plim_monitor_open(context, &o, &monitor, &err), "interval is in seconds");
    o = (struct plim_monitor_options){.size = sizeof o};
    assert_bad(plim_monitor_open(context, &o, &monitor, &err), "expected a plim_device, got NULL");

    struct os_process me;
    os_process_memory(&me, NULL);
    o = (struct plim_monitor_options){.size = sizeof o, .device = cpu, .budget = me.rss / 2};
    assert_ok(plim_monitor_open(context, &o, &monitor, &err)); /* the process is above its budget */
    h = check(monitor, 10 * GIB, 8);
    assert_int_equal(h.status, PLIM_MEMORY_EMERGENCY);
    assert_string_equal(h.recommendations[2], "give cached memory back: clear the cache");
    plim_monitor_close(monitor);
    assert_string_equal(plim_memory_status_name(PLIM_MEMORY_CRITICAL), "critical");
    assert_string_equal(plim_memory_status_name((enum plim_memory_status)77), "unknown");
}

static void test_monitor_thread(void **state)
{
    (void)state;
    struct heard heard = {0};
    struct plim_monitor *monitor;
    struct plim_monitor_options o = {
        .size = sizeof o, .device = cpu, .interval = 0.0005, .changed = hear, .arg = &heard};
    int threads = count_threads();
    set_machine(100 * GIB, 50 * GIB);
    assert_ok(plim_monitor_open(context, &o, &monitor, &err));
    assert_true(!threads || count_threads() == threads + 1);
    for (int i = 0; i < 100; i++) { /* an allocator may end while its blocks are being counted */
        struct plim_allocator *allocator;
        assert_ok(plim_allocator_open(context, NULL, &allocator, &err));
        assert_ok(plim_device_attach(cpu, allocator, &err));
        usleep(100);
        plim_allocator_close(allocator);
    }
    set_machine(100 * GIB, GIB);
    for (int i = 0; i < 5000; i++) {
        struct plim_health h = {.size = sizeof h};
        assert_ok(plim_monitor_check(monitor, 4, &h, &err));
        if (h.status == PLIM_MEMORY_EMERGENCY) break;
        usleep(2000);
    }
    plim_monitor_close(monitor); /* after it, `heard` belongs to this thread alone */
    assert_true(heard.calls == 1 && heard.last == PLIM_MEMORY_EMERGENCY);
    assert_int_equal(count_threads(), threads);
}

/* Memory that grows with each check is found, and blamed on who holds it. */
static void test_leaks(void **state)
{
    (void)state;
    enum { CHECKS = 32 };
    void *kept[CHECKS];
    struct plim_allocator *allocator;
    struct plim_monitor *monitor;
    struct plim_allocator_options ao = {.size = sizeof ao};
    struct plim_monitor_options mo = {.size = sizeof mo, .device = cpu};
    struct plim_health h = {.size = sizeof h};
    assert_ok(plim_allocator_open(context, &ao, &allocator, &err));
    assert_ok(plim_device_attach(cpu, allocator, &err));
    assert_ok(plim_monitor_open(context, &mo, &monitor, &err));
    for (int i = 0; i < CHECKS; i++) {
        assert_ok(plim_alloc_for(allocator, MIB, NULL, "activations", &kept[i], &err));
        memset(kept[i], 1, MIB);
        assert_ok(plim_monitor_check(monitor, 0, &h, &err));
    }
    char *text = plim_monitor_leaks(monitor);
    assert_true(h.leaking);
    assert_non_null(text);
    assert_non_null(strstr(text, "memory in use of the allocator has grown by"));
    assert_non_null(strstr(text, "activations 32.0 MiB"));
    assert_true(SANITIZED || !strstr(text, "outside plans")); /* the allocator's memory is accounted for */
    plim_free(text);
    plim_monitor_close(monitor);

    char *pages = mmap(NULL, CHECKS * 2 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ok(plim_device_attach(cpu, NULL, &err));
    assert_ok(plim_monitor_open(context, &mo, &monitor, &err));
    for (int i = 0; i < CHECKS; i++) {
        memset(pages + i * 2 * MIB, 1, 2 * MIB);
        assert_ok(plim_monitor_check(monitor, 0, &h, &err));
    }
    text = plim_monitor_leaks(monitor);
    assert_non_null(text);
    assert_non_null(strstr(text, "memory of this process outside plans and allocators has grown by"));
    plim_free(text);
    plim_monitor_close(monitor);
    munmap(pages, CHECKS * 2 * MIB);
    plim_allocator_close(allocator);
}

/* --- allocators ------------------------------------------------------------------------------------------------------- */

static void test_allocator(void **state)
{
    (void)state;
    struct plim_allocator *a;
    struct plim_allocator_options o = {.size = sizeof o, .record = 1000};
    struct plim_memory m = {.size = sizeof m};
    void *small, *large;
    int64_t value;
    uint64_t freed;
    assert_ok(plim_allocator_open(context, &o, &a, &err));
    assert_ok(plim_alloc_for(a, 1000, NULL, "bias", &small, &err));
    assert_ok(plim_alloc(a, 30 * MIB, (void *)1, &large, &err));
    memset(small, 1, 1000), memset(large, 1, 30 * MIB);
    assert_ok(plim_allocator_stat(a, "allocated_bytes.all.current", &value, &err));
    assert_int_equal(value, 1024 + 30 * MIB);
    assert_ok(plim_allocator_stat(a, "requested_bytes.all.peak", &value, &err));
    assert_int_equal(value, 1000 + 30 * MIB);
    assert_status(PLIM_NOT_FOUND, plim_allocator_stat(a, "allocated", &value, &err), "'allocated'");
    assert_ok(plim_device_attach(cpu, a, &err));
    assert_ok(plim_memory_summary(cpu, &m, &err));
    assert_true(m.tensors == 30 * MIB + 1024 && m.cached == 2 * MIB - 1024);
    assert_ok(plim_alloc_record_stream(a, large, (void *)2, &err));
    assert_ok(plim_dealloc(a, large, &err));
    assert_bad(plim_dealloc(a, large, &err), "");
    assert_ok(plim_dealloc(a, NULL, &err));
    assert_ok(plim_memory_summary(cpu, &m, &err));
    assert_true(m.tensors == 1024 && m.fragmentation > 0.9 && m.reserved >= m.tensors + m.cached);

    struct doc *doc = parse(plim_allocator_stats(a));
    assert_int_equal(node_int(node_get(&doc->root, "reserved_bytes.all.current"), 0), 32 * MIB);
    assert_true(node_float(node_get(&doc->root, "fragmentation.external"), 0) > 0.9);
    doc_free(doc);
    assert_ok(plim_clear_cache(cpu, 0, &freed, &err));
    assert_int_equal(freed, 30 * MIB);
    plim_reset_peaks(cpu);
    assert_ok(plim_allocator_stat(a, "reserved_bytes.all.peak", &value, &err));
    assert_int_equal(value, 2 * MIB);
    plim_allocator_batch(a);
    doc = parse(plim_memory_report(cpu));
    assert_int_equal(node_int(node_get(node_get(&doc->root, "allocator"), "allocation.all.current"), 0), 1);
    doc_free(doc);
    plim_allocator_close(a); /* and the device forgets it */
    assert_ok(plim_memory_summary(cpu, &m, &err));
    assert_true(m.tensors == 0 && m.cached == 0);
}

static void test_allocator_refuses(void **state)
{
    (void)state;
    struct plim_allocator *a;
    struct plim_allocator_options o = {.size = sizeof o,
                                       .device = "simulated:1GiB",
                                       .budget = 256 * MIB,
                                       .conf = "expandable_segments:True"};
    void *block;
    uint64_t freed = 0;
    assert_ok(plim_allocator_open(context, &o, &a, &err));
    assert_null(plim_allocator_explain(a));
    for (int i = 0; i < 4; i++)
        assert_ok(plim_alloc_for(a, 60 * MIB, NULL, i ? "weights" : "cache", &block, &err));
    assert_status(PLIM_NO_MEMORY, plim_alloc(a, 40 * MIB, NULL, &block, &err), "40.0 MiB");
    assert_null(block);
    assert_non_null(strstr(err.text, "the largest holders: weights 180 MiB, cache 60.0 MiB"));
    assert_non_null(strstr(err.text, "fragmentation"));
    struct doc *holders = parse(plim_allocator_holders(a));
    assert_int_equal(node_count(&holders->root), 2);
    assert_string_equal(node_string(node_get(node_item(&holders->root, 0), "owner"), ""), "weights");
    assert_int_equal(node_int(node_get(node_item(&holders->root, 0), "blocks"), 0), 3);
    doc_free(holders);
    char *text = plim_allocator_explain(a);
    assert_non_null(text);
    assert_non_null(strstr(text, "weights"));
    plim_free(text);
    assert_ok(plim_allocator_set_budget(a, GIB, &err));
    assert_ok(plim_alloc(a, 40 * MIB, NULL, &block, &err));
    assert_ok(plim_allocator_set_fraction(a, 0.25, &err));
    assert_status(PLIM_NO_MEMORY, plim_alloc(a, 40 * MIB, NULL, &block, &err), "40.0 MiB");
    assert_bad(plim_allocator_set_fraction(a, 1.5, &err), "");
    assert_ok(plim_allocator_clear(a, 1, &freed, &err));
    assert_bad(plim_device_attach(cpu, a, &err), "is not that of");
    plim_allocator_close(a);

    o.conf = "expandable_segments:maybe";
    assert_bad(plim_allocator_open(context, &o, &a, &err), "conf");
    o.conf = NULL, o.device = "simulated:lots";
    assert_bad(plim_allocator_open(context, &o, &a, &err), "simulated:lots");
    o.device = "tpu";
    assert_bad(plim_allocator_open(context, &o, &a, &err), "write host, cuda:N or simulated:24GiB");
    o.device = "cuda:0";
    enum plim_status status = plim_allocator_open(context, &o, &a, &err);
    assert_true(status == PLIM_OK ||
                (status == PLIM_UNSUPPORTED && strstr(err.text, "plim_allocator_open: ")));
    plim_allocator_close(a);
    o.device = NULL, o.record = -1;
    assert_bad(plim_allocator_open(context, &o, &a, &err), "record and cleanup_every");
}

static void test_allocator_snapshot(void **state)
{
    (void)state;
    struct plim_allocator *a;
    struct plim_allocator_options o = {.size = sizeof o, .record = 100};
    struct doc *doc;
    char path[128];
    void *block[3];
    assert_ok(plim_allocator_open(context, &o, &a, &err));
    assert_ok(plim_device_attach(cpu, a, &err));
    for (int i = 0; i < 3; i++) assert_ok(plim_alloc_for(a, 3 * MIB, NULL, "block", &block[i], &err));
    assert_ok(plim_dealloc(a, block[1], &err));
    snprintf(path, sizeof path, "%s/blocks.json", root);
    assert_ok(plim_allocator_snapshot(a, path, &err));
    assert_ok(json_load(path, &doc, &err));
    const struct node *segment = node_item(node_get(&doc->root, "segments"), 0);
    const struct node *blocks = node_get(segment, "blocks");
    assert_int_equal(node_int(node_get(segment, "total_size"), 0), 20 * MIB);
    assert_int_equal(node_count(blocks), 4);
    assert_string_equal(node_string(node_get(node_item(blocks, 0), "state"), ""), "active_allocated");
    assert_string_equal(node_string(node_get(node_item(blocks, 1), "state"), ""), "inactive");
    const struct node *trace = node_item(node_get(&doc->root, "device_traces"), 0);
    assert_true(node_count(trace) >= 5);
    assert_string_equal(node_string(node_get(node_item(trace, 0), "action"), ""), "segment_alloc");
    doc_free(doc);
    snprintf(path, sizeof path, "%s/memory.trace.json", root);
    assert_ok(plim_memory_snapshot(cpu, path, &err));
    assert_ok(json_load(path, &doc, &err));
    assert_true(node_count(node_get(&doc->root, "traceEvents")) >= 2 + 1 + 1 + 4);
    doc_free(doc);
    snprintf(path, sizeof path, "%s/blocks.pickle", root);
    assert_ok(plim_memory_snapshot(cpu, path, &err));
    assert_true(file_bytes(path) > 400);
    assert_bad(plim_allocator_snapshot(a, "blocks.txt", &err), ".pickle or .json");
    assert_bad(plim_allocator_snapshot(a, NULL, &err), ".pickle or .json");
    plim_allocator_close(a);
}

/* --- handles and sizes ------------------------------------------------------------------------------------------------ */

static void test_wrong_handles(void **state)
{
    (void)state;
    struct plim_device *device;
    struct plim_memory memory = {.size = sizeof memory};
    struct plim_health health = {.size = sizeof health};
    void *wrong = context, *block;
    uint64_t other[8] = {0};
    assert_bad(plim_device_open(NULL, "cpu", &device, &err), "expected a plim_context, got NULL");
    assert_bad(plim_device_open(context, "cpu", NULL, &err), "out is NULL");
    assert_bad(plim_memory_summary(wrong, &memory, &err), "expected a plim_device, got plim_context");
    assert_bad(plim_memory_summary((void *)other, &memory, &err), "memory that is not a handle");
    struct handle closed = {.mark = 0xdead0000u + HANDLE_DEVICE}; /* as plim_device_close leaves it */
    assert_bad(plim_memory_summary((void *)&closed, &memory, &err), "this plim_device has been closed");
    plim_device_close((void *)&closed);
    assert_bad(plim_monitor_check((void *)cpu, 0, &health, &err), "expected a plim_monitor, got plim_device");
    assert_bad(plim_alloc(wrong, 1, NULL, &block, &err), "expected a plim_allocator");
    assert_bad(plim_device_attach(cpu, wrong, &err), "expected a plim_allocator, got plim_context");
    assert_bad(plim_accumulator_restore(wrong, "{}", &err), "expected a plim_accumulator");
    assert_null(plim_memory_report(wrong));
    assert_null(plim_device_list((void *)cpu));
    assert_null(plim_monitor_leaks(wrong));
    assert_null(plim_allocator_stats(NULL));
    assert_int_equal(plim_accumulator_steps(wrong), 0);
    plim_reset_peaks(wrong), plim_device_close(wrong), plim_monitor_close((void *)cpu),
        plim_allocator_batch(wrong);
    plim_device_close(NULL), plim_monitor_close(NULL), plim_accumulator_close(NULL),
        plim_allocator_close(NULL);
    assert_ok(plim_memory_summary(cpu, &memory, &err)); /* nothing was closed by a wrong name */
    assert_int_equal(plim_memory_summary(NULL, &memory, NULL), PLIM_BAD_INPUT); /* an error is optional */
}

static void test_wrong_sizes(void **state)
{
    (void)state;
    struct plim_memory memory = {0};
    struct plim_monitor *monitor;
    struct plim_monitor_options options = {.size = 3, .device = cpu};
    assert_bad(plim_memory_summary(cpu, &memory, &err), "size is 0");
    assert_bad(plim_memory_summary(cpu, NULL, &err), "NULL");
    memory.size = sizeof memory + 8;
    assert_bad(plim_memory_summary(cpu, &memory, &err), "at most in this version");
    assert_bad(plim_monitor_open(context, &options, &monitor, &err), "options.size is 3");
    assert_null(monitor);

    struct plim_memory part; /* a program with an older, shorter header */
    memset(&part, 0x55, sizeof part);
    part.size = offsetof(struct plim_memory, free);
    assert_ok(plim_memory_summary(cpu, &part, &err));
    assert_true(part.reserved > 0 && part.free == 0x5555555555555555);
}

#define WITH(test, setup) cmocka_unit_test_setup_teardown(test, setup, close_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH(test_device_open, open_all),
        WITH(test_preset, open_all),
        WITH(test_device_list, open_all),
        WITH(test_summary, open_all),
        WITH(test_report_and_snapshot, open_all),
        WITH(test_clear_cache, open_all),
        WITH(test_card, open_fraction),
        WITH(test_batch_size, open_all),
        WITH(test_batch_limits, open_limited),
        WITH(test_wrong_variables, open_wrong),
        WITH(test_monitor, open_all),
        WITH(test_monitor_thresholds, open_all),
        WITH(test_monitor_thread, open_all),
        WITH(test_leaks, open_all),
        WITH(test_allocator, open_all),
        WITH(test_allocator_refuses, open_all),
        WITH(test_allocator_snapshot, open_all),
        WITH(test_wrong_handles, open_all),
        WITH(test_wrong_sizes, open_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
