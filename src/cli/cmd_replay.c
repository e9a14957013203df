/* cmd_replay.c - plimsoll replay: a trace of allocations through the caching allocator, under any of PyTorch's option strings. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/json.h"
#include "base/table.h"
#include "report/replay.h"
#include "store/torch_trace_csv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct replay_flags {
    struct string_list conf;
    uint64_t memory;
    int64_t device;
    bool json;
};

#define AT(field) offsetof(struct replay_flags, field)
static const struct option_row rows[] = {
    {"conf", 'c', OPTION_STRING_LIST, AT(conf), "STRING",
     "options as in PYTORCH_CUDA_ALLOC_CONF; several give a table (default: those of the snapshot)"},
    {"memory", 'm', OPTION_BYTES, AT(memory), "BYTES", "memory of the device (no limit)"},
    {"device", 'd', OPTION_INT64, AT(device), "N", "replay cuda:N of a snapshot (the one with most events)"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print every figure as JSON"},
};

static const struct option_example examples[] = {
    {"replay snapshot.pickle --conf expandable_segments:True", "peaks of a PyTorch job with other options"},
    {"replay snapshot.pickle --conf '' --conf expandable_segments:True", "a table to choose from"},
    {"replay trace.csv --memory 24GiB", "would it fit? exit 3 when it runs out of memory"},
    {NULL, NULL}};

static const struct command command = {
    .name = "replay",
    .summary = "replay a trace of allocations under the options of PyTorch's caching allocator",
    .usage = "[OPTION...] TRACE",
    .description =
        "TRACE is a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot, with history) or a CSV "
        "file with the columns "
        "action,id,size,stream; - is standard input. Its allocations and frees go through an allocator with "
        "PyTorch's rules on a "
        "simulated device; no GPU is needed. Figures have the names of torch.cuda.memory_stats().\n\n"
        "Exits with 3 when the trace runs out of memory under every option string.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

struct replayed {
    const struct replay_flags *flags;
    const char *name;
    struct torch_snapshot snap;
    const struct torch_device *device;
    struct torch_lives lives;
    const char *const *confs;
    struct replay_result *results;
    size_t count;
};

/* --- reading -------------------------------------------------------------------------------------------------------- */

static enum plim_status read_trace(struct replayed *r, const char *path, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    enum plim_status status = cli_read_text(path, &text, err);
    if (status == PLIM_OK)
        status = torch_snapshot_looks_so(path, strbuf_text(&text), text.len)
                     ? torch_snapshot_read(&r->snap, &text, r->name, err)
                     : torch_trace_read_csv(&r->snap, strbuf_text(&text), text.len, r->name, err);
    strbuf_release(&text);
    return status;
}

static enum plim_status choose_device(struct replayed *r, struct plim_error *err)
{
    for (int i = 0; i < r->snap.device_count; i++) {
        const struct torch_device *d = &r->snap.devices[i];
        bool right = r->flags->device < 0 || r->flags->device == d->number;
        if (right && (!r->device || d->event_count > r->device->event_count)) r->device = d;
    }
    if (r->device && r->device->event_count) return PLIM_OK;
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "%s: no history to replay%s; call torch.cuda.memory._record_memory_history() before the work",
        r->name, r->flags->device >= 0 ? " of this device" : "");
}

/* --- telling -------------------------------------------------------------------------------------------------------- */

static int64_t peak_of(const struct replay_result *r, enum cache_figure figure)
{
    return r->stats.of[figure][CACHE_ALL].peak;
}

static const char *shown(const char *conf) { return *conf ? conf : "(defaults)"; }

static void put_bytes(struct table *t, int64_t n)
{
    char text[BYTES_TEXT];
    table_cell(t, "%s", bytes_format(text, (uint64_t)n));
}

static void put_table(const struct replayed *r, struct strbuf *out)
{
    struct table t;
    table_init(&t, "lrrrrrrr");
    table_header(&t, "options", "reserved peak", "active peak", "allocated peak", "fragmentation",
                 "device allocs", "retries", "OOMs");
    for (size_t i = 0; i < r->count; i++) {
        const struct replay_result *x = &r->results[i];
        table_cell(&t, "%s", shown(r->confs[i]));
        put_bytes(&t, peak_of(x, CACHE_RESERVED_BYTES));
        put_bytes(&t, peak_of(x, CACHE_ACTIVE_BYTES));
        put_bytes(&t, peak_of(x, CACHE_ALLOCATED_BYTES));
        table_cell(&t, "%.1f %%", 100 * x->fragmentation.peak);
        table_cell(&t, "%lld", (long long)x->stats.num_device_alloc);
        table_cell(&t, "%lld", (long long)x->stats.num_alloc_retries);
        table_cell(&t, "%d", x->ooms);
    }
    table_render(&t, out, &(struct table_style){0});
    table_release(&t);
}

static void put_one(const struct replayed *r, struct strbuf *out)
{
    static const enum cache_figure peaks[] = {CACHE_REQUESTED_BYTES, CACHE_ALLOCATED_BYTES,
                                              CACHE_ACTIVE_BYTES, CACHE_RESERVED_BYTES,
                                              CACHE_INACTIVE_SPLIT_BYTES};
    const struct replay_result *x = &r->results[0];
    const struct cache_fragmentation *f = &x->fragmentation;
    struct table t;
    table_init(&t, "lr");
    for (size_t i = 0; i < sizeof peaks / sizeof peaks[0]; i++) {
        table_cell(&t, "%s.all.peak", cache_figure_name(peaks[i]));
        put_bytes(&t, peak_of(x, peaks[i]));
    }
    const struct {
        const char *name;
        int64_t n;
    } counts[] = {{"segment.all.peak", peak_of(x, CACHE_SEGMENT)},
                  {"num_device_alloc", x->stats.num_device_alloc},
                  {"num_device_free", x->stats.num_device_free},
                  {"num_alloc_retries", x->stats.num_alloc_retries},
                  {"num_sync_all_streams", x->stats.num_sync_all_streams},
                  {"num_ooms", x->stats.num_ooms}};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        table_cell(&t, "%s", counts[i].name);
        table_cell(&t, "%lld", (long long)counts[i].n);
    }
    strbuf_addf(out, "options %s\n", shown(r->confs[0]));
    table_render(&t, out, &(struct table_style){.indent = 2});
    table_release(&t);
    strbuf_addf(out, "  fragmentation: peak %.1f %%; at the end external %.1f %%, internal %.1f %%\n",
                100 * f->peak, 100 * f->external, 100 * f->internal);
}

static void put_text(const struct replayed *r, struct strbuf *out)
{
    char bytes[BYTES_TEXT];
    strbuf_addf(out, "%s, cuda:%d: %d allocations in %zu events, %d older blocks", r->name, r->device->number,
                r->lives.allocations, r->device->event_count, r->lives.older);
    if (r->lives.reserved_peak)
        strbuf_addf(out, "; the job itself reserved %s at its peak",
                    bytes_format(bytes, (uint64_t)r->lives.reserved_peak));
    strbuf_add(out, "\n\n");
    if (r->count == 1)
        put_one(r, out);
    else
        put_table(r, out);
    for (size_t i = 0; i < r->count; i++)
        if (r->results[i].ooms)
            strbuf_addf(out, "%sout of memory with %s: first at event %lld, a request of %s\n", i ? "" : "\n",
                        shown(r->confs[i]), (long long)r->results[i].first_oom,
                        bytes_format(bytes, (uint64_t)r->results[i].first_oom_bytes));
}

static void put_stat(void *arg, const char *name, int64_t value) { json_int(arg, name, value); }

static void put_result(const struct replay_result *x, const char *conf, struct json_writer *w)
{
    const struct cache_fragmentation *f = &x->fragmentation;
    json_begin_object(w, NULL);
    json_str(w, "conf", conf);
    json_begin_object(w, "stats");
    cache_stats_each(&x->stats, put_stat, w);
    json_end_object(w);
    json_begin_object(w, "fragmentation");
    json_double(w, "peak", f->peak);
    json_double(w, "external", f->external);
    json_double(w, "internal", f->internal);
    json_int(w, "free_bytes", (int64_t)f->free_bytes);
    json_int(w, "stuck_bytes", (int64_t)f->stuck_bytes);
    json_int(w, "largest_free_bytes", (int64_t)f->largest_bytes);
    json_int(w, "rounding_bytes", (int64_t)f->rounding_bytes);
    json_end_object(w);
    json_int(w, "ooms", x->ooms);
    if (x->ooms) json_int(w, "first_oom_event", x->first_oom);
    if (x->ooms) json_int(w, "first_oom_bytes", x->first_oom_bytes);
    json_int(w, "calls", x->calls);
    json_double(w, "seconds", x->seconds);
    json_end_object(w);
}

static void put_json(const struct replayed *r, struct strbuf *out)
{
    struct json_writer w;
    json_writer_init(&w, out, 2);
    json_begin_object(&w, NULL);
    json_int(&w, "device", r->device->number);
    json_int(&w, "events", (int64_t)r->device->event_count);
    json_int(&w, "allocations", r->lives.allocations);
    json_int(&w, "blocks_before_trace", r->lives.older);
    json_str(&w, "trace_conf", r->snap.conf);
    json_int(&w, "trace_reserved_peak_bytes", r->lives.reserved_peak);
    json_int(&w, "trace_live_peak_bytes", r->lives.live_peak);
    json_begin_array(&w, "results");
    for (size_t i = 0; i < r->count; i++) put_result(&r->results[i], r->confs[i], &w);
    json_end_array(&w);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}

static enum plim_status tell(const struct replayed *r, struct strbuf *out, struct plim_error *err)
{
    size_t refused = 0;
    (r->flags->json ? put_json : put_text)(r, out);
    for (size_t i = 0; i < r->count; i++) refused += r->results[i].ooms > 0;
    if (refused < r->count) return strbuf_status(out, err);
    return plim_fail(err, PLIM_NO_FIT,
                     "%s: out of memory under every option string; give more --memory, or free earlier",
                     r->name);
}

/* --- all of it ------------------------------------------------------------------------------------------------------ */

static enum plim_status replay_all(struct replayed *r, struct plim_error *err)
{
    r->results = calloc(r->count, sizeof *r->results);
    if (!r->results) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", r->name);
    for (size_t i = 0; i < r->count; i++) {
        struct replay_options o = {.conf = r->confs[i], .memory = r->flags->memory, .device = r->device};
        enum plim_status status = replay_run(&r->results[i], &r->lives, &o, err);
        if (status == PLIM_OK) continue;
        plim_error_prefix(err, "replay: options '%s'", r->confs[i]);
        return status;
    }
    return PLIM_OK;
}

static enum plim_status replay(const struct replay_flags *f, const char *path, struct strbuf *out,
                               struct plim_error *err)
{
    struct replayed r = {.flags = f, .name = strcmp(path, "-") ? path : "standard input"};
    if (f->memory > INT64_MAX / 2)
        return plim_fail(err, PLIM_BAD_INPUT, "replay: option '--memory': more than any device has");
    enum plim_status status = read_trace(&r, path, err);
    if (status != PLIM_OK) return status;
    r.confs = f->conf.count ? f->conf.items : &r.snap.conf;
    r.count = f->conf.count ? f->conf.count : 1;
    status = choose_device(&r, err);
    if (status == PLIM_OK && (status = torch_lives_find(&r.lives, r.device, err)) != PLIM_OK)
        plim_error_prefix(err, "%s", r.name);
    if (status == PLIM_OK) status = replay_all(&r, err);
    if (status == PLIM_OK) status = tell(&r, out, err);
    free(r.results);
    torch_lives_release(&r.lives);
    torch_snapshot_release(&r.snap);
    return status;
}

static const struct replay_flags defaults = {.device = -1};

static int run(void *flags, const struct string_list *args)
{
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    enum plim_status status = replay(flags, args->items[0], &out, &err);
    int code = cli_print(&out);
    return status == PLIM_OK ? code : cli_error(&err);
}

const struct subcommand subcommand_replay = {
    &command, run, CLI_FLAGS(defaults), 1, 1, "give one snapshot or CSV file, or - for standard input"};
