/* cmd_trace.c - plimsoll trace: measured beside predicted times of a step. */
#include "cli/cli.h"
#include "report/beside.h"

#include <unistd.h>

struct trace_flags {
    bool shapes, json;
};

#define AT(field) offsetof(struct trace_flags, field)
static const struct option_row rows[] = {
    {"shapes", 's', OPTION_FLAG, AT(shapes), NULL,
     "a row for each shape of operands, not only each kind of op"},
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print it as JSON"},
};

static const struct option_example examples[] = {
    {"train small.yaml --trace step.trace.json", "measure a step first"},
    {"trace step.trace.json", "which ops and lanes the clock predicts wrongly, the largest difference first"},
    {"trace step.trace.json --shapes", "the same by shapes of operands"},
    {NULL, NULL}};

static const struct command command = {
    .name = "trace",
    .summary = "show predicted beside measured times of a step, by op and lane",
    .usage = "[OPTION...] FILE",
    .description =
        "FILE is written by train --trace or by ctl RUN snapshot. Rows are kinds of ops on a lane, sorted by "
        "the absolute difference between the planner's clock and the run; ratio is predicted / "
        "measured. Times cover one micro-batch and the update, without the time that ops waited.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

static enum plim_status show(const struct trace_flags *f, const char *path, struct strbuf *out,
                             struct plim_error *err)
{
    struct doc *doc = NULL;
    struct beside b = {0};
    enum plim_status status = json_load(path, &doc, err);
    if (status != PLIM_OK) return status;
    status = beside_read(&b, &doc->root, f->shapes, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s", path);
    if (status == PLIM_OK && f->json) beside_json(&b, out);
    if (status == PLIM_OK && !f->json) beside_text(&b, cli_colour(STDOUT_FILENO), out);
    beside_release(&b);
    doc_free(doc);
    return status;
}

static const struct trace_flags defaults = {0};

static int run(void *flags, const struct string_list *args)
{
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    enum plim_status status = show(flags, args->items[0], &out, &err);
    int code = cli_print(&out);
    return status == PLIM_OK ? code : cli_error(&err);
}

const struct subcommand subcommand_trace = {&command, run, CLI_FLAGS(defaults),
                                            1,        1,   "give one file of train --trace"};
