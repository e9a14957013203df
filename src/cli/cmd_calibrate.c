/* cmd_calibrate.c - plimsoll calibrate: how fast this device is, measured anew, shown and kept for every plan from now
 * on. */
#include "cli/cli.h"
#include "base/cpu_load.h"
#include "base/json.h"
#include "base/table.h"
#include "cli/train_ranks.h"
#include "comm/comm.h"
#include "comm/link.h"
#include "device/calibration.h"
#include "device/registry.h"
#include "exec/disk_speed.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* So long the machine is watched, and so much of it others may take: a twentieth costs no more than it varies by. */
#define WATCH_SECONDS 0.5
#define BUSY          0.05

struct calibrate_flags {
    const char *device, *disk;
    int64_t threads;
    bool force, json;
};

#define AT(field) offsetof(struct calibrate_flags, field)
static const struct option_row rows[] = {
    {"device", 0, OPTION_STRING, AT(device), "NAME", CLI_DEVICES ", or auto (auto)", .expected = DEVICE_NAMES,
     .valid = cli_is_device, CLI_DEVICE},
    {"threads", 0, OPTION_INT64, AT(threads), "N", "CPU threads; 0: one per core (0)", CLI_THREADS},
    {"disk", 0, OPTION_STRING, AT(disk), "FOLDER", "measure the disk that holds this folder (.)"},
    {"force", 'f', OPTION_FLAG, AT(force), NULL, "measure even if other programs are busy"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print the rates as JSON"},
};

static const struct option_example examples[] = {
    {"calibrate", "measure this machine and store the rates"},
    {"calibrate --device cuda --json", "a GPU, with output for a program"},
    {"calibrate --disk /mnt/nvme", "including the disk that holds the runs"},
    {"calibrate --threads 8", "for jobs with training.threads: 8"},
    {NULL, NULL}};

static const struct command command = {
    .name = "calibrate",
    .summary = "measure the speed of this device for future plans",
    .usage = "[OPTION...]",
    .description = "The planner predicts time from rates stored in $XDG_CACHE_HOME/plimsoll. A device is "
                   "measured when it is first used; the disk and the link between ranks have modest assumed "
                   "rates until this command measures them. It measures the device several times, stores "
                   "the medians and shows them next to the previous ones. It also measures the disk that "
                   "holds a folder, once per file system. Started by mpirun -n N, it measures only the "
                   "exchange between N ranks. If other programs use more than 5 % of the CPUs, it exits "
                   "with 2 without measuring, unless --force is given. Rates determine the fastest plan and "
                   "so the micro-batch of new runs; a resumed run keeps its own.",
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
    RATE("attn_bwd_share", "attention's backward", "% of that", attn_bwd_share, 1e2),
    RATE("attn_general_share", "attention, other masks, biases", "% of that", attn_general_share, 1e2),
    RATE("attn_wide_share", "attention, heads of 128", "% of that", attn_wide_share, 1e2),
    RATE("attn_long_share", "the same, very long rows", "% of that", attn_long_share, 1e2),
    RATE("bandwidth", "memory", "GB/s", bandwidth, 1e-9),
    RATE("cache_bandwidth", "cache", "GB/s", cache_bandwidth, 1e-9),
    RATE("coded_rate", "8-bit AdamW", "M elements/s", coded_rate, 1e-6),
    RATE("curve_rate", "activations", "M elements/s", curve_rate, 1e-6),
    RATE("score_rate", "scores of attention", "M/s", score_rate, 1e-6),
    RATE("score_row_rate", "rows of scores", "M/s", score_row_rate, 1e-6),
    RATE("pack_bandwidth", "packing rows", "GB/s", pack_bandwidth, 1e-9),
    RATE("plain_rate", "norms", "M elements/s", plain_rate, 1e-6),
    RATE("update_rate", "AdamW", "M elements/s", update_rate, 1e-6),
    RATE("op_seconds", "starting an op", "us", op_seconds, 1e6),
    RATE("matmul_seconds", "starting a matmul", "us", matmul_seconds, 1e6),
};

enum { RATES = sizeof rates / sizeof *rates };

/* Link between a device's own memory and the host's. For a CPU, the tier below is the disk. */
static const struct rate host_link =
    RATE("lower_bandwidth", "to the host's memory", "GB/s", lower_bandwidth, 1e-9);
#undef RATE

/* Rates of the disk under a folder. */
static const struct disk_rate {
    const char *name, *what;
    size_t offset;
} disk_rates[] = {{"bandwidth", "disk, both ways by turns", offsetof(struct disk_speed, bandwidth)},
                  {"read", "disk, reading", offsetof(struct disk_speed, read)},
                  {"write", "disk, writing", offsetof(struct disk_speed, write)}};
enum { DISK_RATES = sizeof disk_rates / sizeof *disk_rates };

/* Measurements before and now. */
struct outcome {
    struct device_facts facts[2];
    struct disk_speed disk[2];
    double others; /* share of the processors that other programs took */
};

static double rate_of(const struct device_facts *facts, const struct rate *rate)
{
    return *(const double *)(const void *)((const char *)facts + rate->offset);
}

static double disk_rate_of(const struct disk_speed *disk, const struct disk_rate *rate)
{
    return *(const double *)(const void *)((const char *)disk + rate->offset);
}

static void put_row(struct table *t, const char *what, double before, double now, const char *unit)
{
    table_cell(t, "%s", what);
    table_cell(t, "%.4g", before);
    table_cell(t, "%.4g", now);
    table_cell(t, "%s", unit);
}

static void put_rate(struct table *t, const struct outcome *o, const struct rate *r)
{
    if (rate_of(&o->facts[1], r) >= CALIBRATION_UNLIMITED) return;
    put_row(t, r->what, rate_of(&o->facts[0], r) * r->scale, rate_of(&o->facts[1], r) * r->scale, r->unit);
}

static int tell(const struct outcome *o)
{
    struct strbuf out = STRBUF_INIT;
    struct table t;
    const struct device_facts *now = &o->facts[1];
    table_init(&t, "lrrl");
    table_header(&t, "rate", "so far", "now", "");
    for (size_t i = 0; i < RATES; i++) put_rate(&t, o, &rates[i]);
    if (!now->unified_memory) put_rate(&t, o, &host_link);
    for (size_t i = 0; i < DISK_RATES; i++)
        put_row(&t, disk_rates[i].what, disk_rate_of(&o->disk[0], &disk_rates[i]) * 1e-9,
                disk_rate_of(&o->disk[1], &disk_rates[i]) * 1e-9, "GB/s");
    strbuf_addf(&out, "%s, %d threads; others took %.0f %% of the processors\n", now->name, now->threads,
                100 * o->others);
    table_render(&t, &out, &(struct table_style){.colour = cli_colour(STDOUT_FILENO)});
    strbuf_addf(&out, "disk: %d pieces of %zu KiB at once\n", o->disk[1].depth, o->disk[1].piece >> 10);
    table_release(&t);
    return cli_print(&out);
}

static int tell_json(const struct outcome *o)
{
    struct strbuf out = STRBUF_INIT;
    static const char *const names[] = {"before", "now"};
    struct json_writer w = json_object(&out, 2);
    json_str(&w, "device", o->facts[1].name);
    json_int(&w, "threads", o->facts[1].threads);
    json_double(&w, "others", o->others);
    for (int k = 0; k < 2; k++) {
        const struct disk_speed *disk = &o->disk[k];
        json_begin_object(&w, names[k]);
        for (size_t i = 0; i < RATES; i++) json_double(&w, rates[i].name, rate_of(&o->facts[k], &rates[i]));
        json_double(&w, host_link.name,
                    o->facts[k].unified_memory ? disk->bandwidth : rate_of(&o->facts[k], &host_link));
        json_begin_object(&w, "disk");
        for (size_t i = 0; i < DISK_RATES; i++)
            json_double(&w, disk_rates[i].name, disk_rate_of(disk, &disk_rates[i]));
        json_int(&w, "depth", disk->depth);
        json_int(&w, "piece", (int64_t)disk->piece);
        json_end_object(&w);
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
    return plim_fail(err, PLIM_BAD_INPUT,
                     "calibrate: other programs use %.0f %% of the CPUs, so the measured rates would be too "
                     "low; wait for them, or add --force",
                     100 * *others);
}

/* The facts of a device that was opened so. */
static enum plim_status facts_of(const struct calibrate_flags *f, const char *mode, struct device_facts *out,
                                 struct plim_error *err)
{
    struct device_wish wish = {"calibrate", f->device, "--device cpu", (int)f->threads, 0};
    struct device *device = NULL;
    setenv(CALIBRATION_WISH, mode, 1);
    enum plim_status status = open_device(cli_context(), &wish, &device, err);
    if (status == PLIM_OK) *out = device->facts;
    if (device) device->ops->close(device);
    return status;
}

static enum plim_status calibrate(const struct calibrate_flags *f, int *code, struct plim_error *err)
{
    struct outcome o = {0};
    enum plim_status status = check_idle(f->force, &o.others, err);
    if (status == PLIM_OK) status = facts_of(f, CALIBRATION_KEPT_WORD, &o.facts[0], err);
    disk_speed_recall(cli_context(), f->disk, &o.disk[0]);
    if (status == PLIM_OK) status = facts_of(f, CALIBRATION_ANEW_WORD, &o.facts[1], err);
    if (status == PLIM_OK) status = disk_speed_measure(cli_context(), f->disk, &o.disk[1], err);
    if (status == PLIM_OK) *code = (f->json ? tell_json : tell)(&o);
    return status;
}

/* Started by mpirun: the link between the ranks, each with its share of the cores. Rank 0 tells. */
static enum plim_status calibrate_link(const struct calibrate_flags *f, struct comm *comm, int *code,
                                       struct plim_error *err)
{
    struct job job = {.training.threads = f->threads};
    struct threads *team = NULL;
    struct link_rates all = {0}, node = {0};
    ranks_share_cores(&job, comm->local_ranks);
    enum plim_status status = threads_start((int)job.training.threads, &team, err);
    status = comm_agree(comm, status, err);
    if (status == PLIM_OK) status = link_measure(comm, comm->lane ? team : NULL, &all, err);
    if (status == PLIM_OK && comm->node)
        status = link_measure(comm->node, comm->lane ? team : NULL, &node, err);
    STRBUF_AUTO out = STRBUF_INIT;
    strbuf_addf(&out,
                "%d ranks exchange %.3g GB/s, after %.0f us; beside computing %.3g GB/s, of which they "
                "take %.0f %%\n",
                comm->ranks, all.bandwidth * 1e-9, all.seconds * 1e6, all.bandwidth * all.beside * 1e-9,
                100 * all.load);
    *code = 0;
    if (status == PLIM_OK && comm->rank == 0)
        *code = cli_print(&out);
    else
        threads_free(team);
    return status;
}

static enum plim_status calibrate_all(const struct calibrate_flags *f, int *code, struct plim_error *err)
{
    struct comm *comm = NULL;
    bool tells = true;
    enum plim_status status = comm_open(cli_context(), &comm, &tells, ranks_end_stuck, err);
    if (status == PLIM_OK) status = comm ? calibrate_link(f, comm, code, err) : calibrate(f, code, err);
    if (status != PLIM_OK && (!tells || comm_rank(comm) > 0))
        *code = plim_exit_code(status), status = PLIM_OK;
    comm_close(comm);
    return status;
}

static const struct calibrate_flags defaults = {.device = "auto", .disk = "."};

static int run(void *flags, const struct string_list *)
{
    struct plim_error err = {0};
    int code = 0;
    return calibrate_all(flags, &code, &err) == PLIM_OK ? code : cli_error(&err);
}

const struct subcommand subcommand_calibrate = {&command, run, CLI_FLAGS(defaults),
                                                0,        0,   "takes no arguments"};
