/* cmd_pack.c - plimsoll pack: the planner's packer alone, on intervals from a CSV file. */
#include "cli/cli.h"
#include "base/clock.h"
#include "base/file.h"
#include "plan/pack_csv.h"

#include <stdio.h>
#include <string.h>

struct pack_flags {
    const char *out;
    uint64_t capacity;
    bool capacity_given, quiet;
    double effort;
};

#define AT(field) offsetof(struct pack_flags, field)
static const struct option_row rows[] = {
    {"capacity", 'c', OPTION_BYTES, AT(capacity), "BYTES",
     "stop at the first packing this high; default: as low as possible",
     .given = OPTION_GIVEN(struct pack_flags, capacity_given), .expected = "1 or more, e.g. 1MiB", .least = 1,
     .most = INT64_MAX},
    {"effort", 'e', OPTION_DOUBLE, AT(effort), "SECONDS", "how long to search beyond the quick passes (10)",
     .expected = "seconds, e.g. 10", .most = 1e6},
    {"output", 'o', OPTION_STRING, AT(out), "FILE", "write the packing to FILE instead of standard output"},
    {"quiet", 'q', OPTION_FLAG, AT(quiet), NULL, "no summary"},
};

static const struct option_example examples[] = {
    {"pack problem.csv --capacity 1MiB > solution.csv", "offsets within 1 MiB, or exit 3"},
    {"pack problem.csv --effort 60", "as low as a minute allows"},
    {"pack - -q < problem.csv", "from standard input"},
    {NULL, NULL}};

static const struct command command = {
    .name = "pack",
    .summary = "pack intervals from a CSV file: the planner's packer alone",
    .usage = "[OPTION...] FILE.csv",
    .description =
        "Reads lines id,lower,upper,size (half-open times, bytes) after a header, finds offsets so that "
        "intervals alive at the same time do not overlap, and prints the rows with an offset column. "
        "FILE - is standard input. A summary goes to standard error. Exits with 3 when no packing within "
        "the capacity is found.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

#define LARGEST ((uint64_t)1 << 30) /* of a problem's text */

static enum plim_status read_text(const char *path, struct strbuf *out, struct plim_error *err)
{
    char piece[65536];
    if (strcmp(path, "-")) return file_read(path, LARGEST, out, err);
    for (size_t n; (n = fread(piece, 1, sizeof piece, stdin)) > 0 && out->len <= LARGEST;)
        strbuf_addn(out, piece, n);
    if (ferror(stdin)) return plim_fail(err, PLIM_IO, "standard input: read failed");
    if (out->len > LARGEST)
        return plim_fail(err, PLIM_BAD_INPUT, "standard input: more than 1 GiB is too much");
    return strbuf_status(out, err);
}

static enum plim_status write_packing(const struct pack_flags *f, const struct pack_csv *csv,
                                      struct plim_error *err)
{
    STRBUF_AUTO out = STRBUF_INIT;
    pack_csv_write(csv, &out);
    enum plim_status status = strbuf_status(&out, err);
    if (status == PLIM_OK && f->out) status = file_write_atomic(f->out, out.data, out.len, err);
    if (status == PLIM_OK && !f->out && (fwrite(out.data, 1, out.len, stdout) != out.len || fflush(stdout)))
        status = plim_fail(err, PLIM_IO, "standard output: write failed");
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

static enum plim_status pack(const struct pack_flags *f, const char *path, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct pack_csv csv;
    const char *name = strcmp(path, "-") ? path : "standard input";
    enum plim_status status = read_text(path, &text, err);
    if (status == PLIM_OK) status = pack_csv_read(&csv, name, strbuf_text(&text), text.len, err);
    strbuf_release(&text);
    if (status != PLIM_OK) return status;
    status = solve(f, name, &csv, err);
    pack_csv_release(&csv);
    return status;
}

static const struct pack_flags defaults = {.effort = 10};

static int run(void *flags, const struct string_list *args)
{
    struct plim_error err = {0};
    return cli_code(pack(flags, args->items[0], &err), &err);
}

const struct subcommand subcommand_pack = {&command, run, CLI_FLAGS(defaults),
                                           1,        1,   "give one CSV file, or - for standard input"};
