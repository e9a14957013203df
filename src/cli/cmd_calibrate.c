/* cmd_calibrate.c - plimsoll calibrate: how fast this device is, measured anew, shown and kept for every plan from now
 * on. */
#include "cli/cli.h"
#include "base/json.h"
#include "base/table.h"
#include "device/calibration.h"
#include "device/registry.h"
#include "mem/cpu_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* So long the machine is watched, and so much of it others may take: a twentieth costs no more than it varies by. */
#define WATCH_SECONDS 0.5
#define BUSY          0.05

struct calibrate_flags {
    const char *device;
    int64_t threads;
    bool force, json;
};

#define AT(field) offsetof(struct calibrate_flags, field)
static const struct option_row rows[] = {
    {"device", 0, OPTION_STRING, AT(device), "NAME", "cpu, cuda, cuda:N, or auto (auto)"},
    {"threads", 0, OPTION_INT64, AT(threads), "N", "CPU threads; 0: one per core (0)"},
    {"force", 'f', OPTION_FLAG, AT(force), NULL, "measure although other programs are busy"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print the rates as JSON"},
};

static const struct option_example examples[] = {{"calibrate", "measure this machine and keep the rates"},
                                                 {"calibrate --device cuda --json", "a GPU's, for a program"},
                                                 {NULL, NULL}};

static const struct command command = {
    .name = "calibrate",
    .summary = "measure how fast this device is, and plan with that from now on",
    .usage = "[OPTION...]",
    .description =
        "The planner's clock runs on rates that are measured when a device is first used and kept in "
        "$XDG_CACHE_HOME/plimsoll. This measures them anew, several times, takes the medians, shows "
        "them beside those kept so far and keeps them. A machine on which other programs take more than "
        "5 % of the processors is not measured, exit 2, unless --force says so. Rates decide which plan "
        "is the fastest, and with it the micro-batch of new runs; a run that goes on keeps its own.",
    COMMAND_ROWS(rows),
    .examples = examples,
};

static const struct rate {
    const char *name, *what, *unit;
    size_t offset;
    double scale;
} rates[] = {
#define RATE(name, what, unit, member, scale)                                                                \
    {                                                                                                        \
        name, what, unit, offsetof(struct device_facts, member), scale                                       \
    }
    RATE("flops_f32", "matmul, fp32", "GFLOP/s", flops[DT_F32], 1e-9),
    RATE("flops_bf16", "matmul, bf16", "GFLOP/s", flops[DT_BF16], 1e-9),
    RATE("flops_f16", "matmul, fp16", "GFLOP/s", flops[DT_F16], 1e-9),
    RATE("attn_flops_f32", "attention, fp32", "GFLOP/s", attn_flops[DT_F32], 1e-9),
    RATE("attn_flops_bf16", "attention, bf16", "GFLOP/s", attn_flops[DT_BF16], 1e-9),
    RATE("attn_flops_f16", "attention, fp16", "GFLOP/s", attn_flops[DT_F16], 1e-9),
    RATE("bandwidth", "memory", "GB/s", bandwidth, 1e-9),
    RATE("cache_bandwidth", "cache", "GB/s", cache_bandwidth, 1e-9),
    RATE("lower_bandwidth", "to the tier below", "GB/s", lower_bandwidth, 1e-9),
    RATE("coded_rate", "8-bit AdamW", "M elements/s", coded_rate, 1e-6),
    RATE("op_seconds", "starting an op", "us", op_seconds, 1e6),
#undef RATE
};

enum { RATES = sizeof rates / sizeof *rates };

static double rate_of(const struct device_facts *facts, size_t i)
{
    return *(const double *)(const void *)((const char *)facts + rates[i].offset);
}

static int tell(const struct device_facts *before, const struct device_facts *now, double others)
{
    struct strbuf out = STRBUF_INIT;
    struct table t;
    table_init(&t, "lrrl");
    table_header(&t, "rate", "so far", "now", "");
    for (size_t i = 0; i < RATES; i++) {
        table_cell(&t, "%s", rates[i].what);
        table_cell(&t, "%.4g", rate_of(before, i) * rates[i].scale);
        table_cell(&t, "%.4g", rate_of(now, i) * rates[i].scale);
        table_cell(&t, "%s", rates[i].unit);
    }
    strbuf_addf(&out, "%s, %d threads; others took %.0f %% of the processors\n", now->name, now->threads,
                100 * others);
    table_render(&t, &out, &(struct table_style){.colour = cli_colour(STDOUT_FILENO)});
    table_release(&t);
    return cli_print(&out);
}

static int tell_json(const struct device_facts *before, const struct device_facts *now, double others)
{
    struct strbuf out = STRBUF_INIT;
    struct json_writer w;
    const struct device_facts *both[] = {before, now};
    static const char *const names[] = {"before", "now"};
    json_writer_init(&w, &out, 2);
    json_begin_object(&w, NULL);
    json_str(&w, "device", now->name);
    json_int(&w, "threads", now->threads);
    json_double(&w, "others", others);
    for (int k = 0; k < 2; k++) {
        json_begin_object(&w, names[k]);
        for (size_t i = 0; i < RATES; i++) json_double(&w, rates[i].name, rate_of(both[k], i));
        json_end_object(&w);
    }
    json_end_object(&w);
    strbuf_addc(&out, '\n');
    return cli_print(&out);
}

/* How busy others are while this program does nothing. */
static enum plim_status check_idle(bool force, double *others, struct plim_error *err)
{
    struct cpu_load before;
    struct timespec pause = {0, (long)(WATCH_SECONDS * 1e9)};
    cpu_load_read(&before);
    nanosleep(&pause, NULL);
    *others = cpu_load_others(&before);
    if (force || *others <= BUSY) return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "calibrate: other programs take %.0f %% of the processors, and rates measured now would be "
        "too low; wait for them, or add --force",
        100 * *others);
}

/* The facts of a device that was opened so. */
static enum plim_status facts_of(const struct calibrate_flags *f, const char *mode, struct device_facts *out,
                                 struct plim_error *err)
{
    struct device_wish wish = {"calibrate", f->device, "--device cpu", (int)f->threads, 0};
    struct device *device = NULL;
    setenv(CALIBRATION_WISH, mode, 1);
    enum plim_status status = cli_open_device_as(&wish, &device, err);
    if (status == PLIM_OK) *out = device->facts;
    if (device) device->ops->close(device);
    return status;
}

static enum plim_status calibrate(const struct calibrate_flags *f, int *code, struct plim_error *err)
{
    struct device_facts before, now;
    double others = 0;
    struct device_name unused;
    if (!device_name_read(f->device, &unused))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "calibrate: option '--device': '%s' is no device; write auto, cpu, cuda or cuda:1",
                         f->device);
    if (f->threads < 0 || f->threads > 1024)
        return plim_fail(err, PLIM_BAD_INPUT, "calibrate: option '--threads': write 0 to 1024");
    enum plim_status status = check_idle(f->force, &others, err);
    if (status == PLIM_OK) status = facts_of(f, CALIBRATION_KEPT_WORD, &before, err);
    if (status == PLIM_OK) status = facts_of(f, CALIBRATION_ANEW_WORD, &now, err);
    if (status == PLIM_OK) *code = (f->json ? tell_json : tell)(&before, &now, others);
    return status;
}

static int run(int argc, char **argv)
{
    struct calibrate_flags f = {.device = "auto"};
    struct bump store = {0};
    struct options_rest rest;
    struct plim_error err = {0};
    int code = cli_options(&command, argc, argv, &f, &store, &rest);
    if (code < 0 && rest.args.count) {
        plim_fail(&err, PLIM_BAD_INPUT, "calibrate: takes no arguments; see plimsoll calibrate --help");
        code = cli_error(&err);
    }
    if (code < 0 && calibrate(&f, &code, &err) != PLIM_OK) code = cli_error(&err);
    bump_free(&store);
    return code;
}

const struct subcommand subcommand_calibrate = {&command, run, false};
