/* cmd_pack.c - plimsoll pack: the planner's packer alone, on intervals from a CSV file or on a PyTorch memory snapshot. */
#include "cli/cli.h"
#include "base/clock.h"
#include "base/file.h"
#include "cli/pack_snapshot.h"
#include "plan/pack_csv.h"
#include "store/torch_snapshot.h"

#include <stdio.h>
#include <string.h>

struct pack_flags {
    const char *out, *step;
    uint64_t capacity;
    bool capacity_given, quiet, json;
    double effort;
    int64_t device, top;
};

#define AT(field) offsetof(struct pack_flags, field)
static const struct option_row rows[] = {
    {"capacity", 'c', OPTION_BYTES, AT(capacity), "BYTES",
     "accept the first packing of at most this size; default: minimise",
     .given = OPTION_GIVEN(struct pack_flags, capacity_given)},
    {"effort", 'e', OPTION_DOUBLE, AT(effort), "SECONDS",
     "time limit of the search after the quick passes (10)"},
    {"output", 'o', OPTION_STRING, AT(out), "FILE",
     "write the packing to FILE instead of standard output; of a snapshot, the picture: FILE.html or "
     "FILE.svg"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no summary"},
    {"device", 'd', OPTION_INT64, AT(device), "N", "of a snapshot: only cuda:N (all)"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "of a snapshot: print the figures as JSON"},
    {"step", 0, OPTION_STRING, AT(step), "FILE",
     "of a snapshot: write the packed offsets of the step that repeats to FILE"},
    {"top", 't', OPTION_INT64, AT(top), "N", "of a snapshot: show N places that hold the peak (10)"},
};

static const struct option_example examples[] = {
    {"pack problem.csv --capacity 1MiB > solution.csv", "offsets within 1 MiB, or exit 3"},
    {"pack problem.csv --effort 60", "as low as a minute allows"},
    {"pack - -q < problem.csv", "from standard input"},
    {"pack snapshot.pickle -o arena.html", "what a PyTorch job would take in one perfect arena"},
    {"pack snapshot.pickle --step step.json", "addresses for every allocation of a steady training step"},
    {NULL, NULL}};

static const struct command command = {
    .name = "pack",
    .summary = "pack intervals from a CSV file, or the memory snapshot of a PyTorch job",
    .usage = "[OPTION...] FILE",
    .description =
        "Reads lines id,lower,upper,size (half-open times, bytes) after a header, finds offsets so that "
        "intervals alive at the same time do not overlap, and prints the rows with an offset column. "
        "FILE - is standard input. A summary goes to standard error. Exits with 3 when no packing within "
        "the capacity is found.\n\n"
        "FILE may also be a memory snapshot of PyTorch (torch.cuda.memory._dump_snapshot), as the pickle it "
        "is or as "
        "JSON. Then pack prints the peak of live bytes, the peak that PyTorch's caching allocator reserved, "
        "what one perfect "
        "arena would take, and the places in the program that hold the peak. The pickle is read as data: one "
        "that would "
        "run code is refused.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

static enum plim_status write_packing(const struct pack_flags *f, const struct pack_csv *csv,
                                      struct plim_error *err)
{
    struct strbuf out = STRBUF_INIT;
    pack_csv_write(csv, &out);
    enum plim_status status = strbuf_status(&out, err);
    if (status == PLIM_OK && f->out) status = file_write_atomic(f->out, out.data, out.len, err);
    if (status == PLIM_OK && !f->out && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout)))
        status = plim_fail(err, PLIM_IO, "standard output: write failed");
    strbuf_release(&out);
    return status;
}

static void tell(const struct pack_result *r, int n, double seconds)
{
    fprintf(stderr, "%d intervals, height %lld, lower bound %lld, ratio %.4f, by %s, %.1f ms\n", n,
            (long long)r->height, (long long)r->lower_bound,
            r->lower_bound ? (double)r->height / (double)r->lower_bound : 1.0, r->method, seconds * 1e3);
}

static enum plim_status refuse(const char *name, const struct pack_flags *f, const struct pack_result *r,
                               struct plim_error *err)
{
    long long capacity = (long long)f->capacity, height = (long long)r->height,
              bound = (long long)r->lower_bound;
    if (bound > capacity)
        return plim_fail(err, PLIM_NO_FIT,
                         "%s: no packing can be within %lld: %lld bytes are alive at once, %lld missing",
                         name, capacity, bound, bound - capacity);
    return plim_fail(
        err, PLIM_NO_FIT,
        "%s: no packing within %lld was found: the lowest takes %lld, %lld missing; raise --effort or "
        "--capacity",
        name, capacity, height, height - capacity);
}

static enum plim_status solve(const struct pack_flags *f, const char *name, struct pack_csv *csv,
                              struct plim_error *err)
{
    struct pack_limits limits = {.capacity = f->capacity_given ? (int64_t)f->capacity : 0,
                                 .effort_ms = (int64_t)(f->effort * 1e3)};
    struct pack_result result = {0};
    int a, b;
    double start = clock_seconds();
    enum plim_status status = pack_items(csv->items, csv->n, &limits, &result, err);
    double seconds = clock_seconds() - start;
    if (status == PLIM_NO_FIT) status = refuse(name, f, &result, err);
    if (status == PLIM_OK && pack_conflict(csv->items, csv->n, &a, &b))
        status = plim_fail(err, PLIM_BUG, "%s: the packing of '%s' and '%s' overlaps", name, csv->ids[a],
                           csv->ids[b]);
    if (status == PLIM_OK) status = write_packing(f, csv, err);
    if (status == PLIM_OK && !f->quiet) tell(&result, csv->n, seconds);
    return status;
}

static enum plim_status pack_csv(const struct pack_flags *f, const char *name, struct strbuf *text,
                                 struct plim_error *err)
{
    struct pack_csv csv;
    if (f->step || f->json || f->device >= 0)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: not a memory snapshot; --step, --json and --device are for those", name);
    enum plim_status status = pack_csv_read(&csv, name, strbuf_text(text), text->len, err);
    strbuf_release(text);
    if (status != PLIM_OK) return status;
    status = solve(f, name, &csv, err);
    pack_csv_release(&csv);
    return status;
}

static enum plim_status pack_any(const struct pack_flags *f, const char *name, struct strbuf *text,
                                 struct strbuf *out, struct plim_error *err)
{
    if (!torch_snapshot_looks_so(name, strbuf_text(text), text->len)) return pack_csv(f, name, text, err);
    if (f->capacity_given)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: a memory snapshot is packed as low as possible; leave --capacity away", name);
    struct pack_snapshot_options o = {.picture = f->out,
                                      .step = f->step,
                                      .device = f->device,
                                      .effort_ms = (int64_t)(f->effort * 1e3),
                                      .top = (int)f->top,
                                      .json = f->json};
    return cli_pack_snapshot(text, name, &o, out, err);
}

static enum plim_status pack(const struct pack_flags *f, const char *path, struct strbuf *out,
                             struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    const char *name = strcmp(path, "-") ? path : "standard input";
    if (f->top < 0 || f->top > 1000000)
        return plim_fail(err, PLIM_BAD_INPUT, "pack: option '--top': %lld; write a number of places, e.g. 10",
                         (long long)f->top);
    if (!(f->effort >= 0 && f->effort <= 1e6))
        return plim_fail(err, PLIM_BAD_INPUT, "pack: option '--effort': %g; write seconds, e.g. 10",
                         f->effort);
    if (f->capacity_given && (f->capacity == 0 || f->capacity > INT64_MAX))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "pack: option '--capacity': %llu makes no sense; write e.g. 1MiB",
                         (unsigned long long)f->capacity);
    enum plim_status status = cli_read_text(path, &text, err);
    if (status == PLIM_OK) status = pack_any(f, name, &text, out, err);
    strbuf_release(&text);
    return status;
}

static const struct pack_flags defaults = {.effort = 10, .device = -1, .top = 10};

static int run(void *flags, const struct string_list *args)
{
    struct strbuf out = STRBUF_INIT; /* figures of a snapshot */
    struct plim_error err = {0};
    enum plim_status status = pack(flags, args->items[0], &out, &err);
    int code = cli_print(&out);
    return status == PLIM_OK ? code : cli_error(&err);
}

const struct subcommand subcommand_pack = {
    &command, run, CLI_FLAGS(defaults), 1, 1, "give one CSV file or snapshot, or - for standard input"};
