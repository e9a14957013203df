/* cmd_ctl.c - plimsoll ctl: asks and orders a run, or a server, that is under way. */
#include "base/bytes.h"
#include "base/clock.h"
#include "cli/cli.h"
#include "net/control.h"
#include "report/snapshot.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct ctl_flags {
    bool json;
    int64_t wait;
    const char *format;
};

static const char *const formats[] = {"json", "trace", "memory_viz", NULL};

#define AT(field) offsetof(struct ctl_flags, field)
static const struct option_row rows[] = {
    {"json", 'j', OPTION_FLAG, AT(json), NULL, "print the reply as JSON"},
    {"wait", 'w', OPTION_INT64, AT(wait), "SECONDS",
     "time to wait for an order to complete; 0: do not wait (600)"},
    {"format", 'f', OPTION_STRING, AT(format), "FORMAT",
     "format of a snapshot; default: by the ending of FILE (.json, .trace.json for Perfetto, "
     ".pickle for PyTorch's memory_viz)",
     .choices = formats},
};

static const struct option_example examples[] = {
    {"ctl runs/small status", "step, loss and memory, by class and relative to the machine's thresholds"},
    {"ctl runs/small budget 3GiB", "change the budget; the run re-plans before its next step"},
    {"ctl runs/small checkpoint", "save now and continue"},
    {"ctl runs/small snapshot", "measure a step and write it, with the plan, to a file in the run's folder"},
    {"ctl runs/small snapshot step.trace.json", "the same for ui.perfetto.dev"},
    {"ctl runs/small stop", "save and exit"},
    {"ctl /run/user/1000/plimsoll.sock status", "a server's socket"},
    {"ctl /run/user/1000/plimsoll.sock snapshot step.trace.json", "its next step, measured"},
    {NULL, NULL}};

static const struct command command = {
    .name = "ctl",
    .summary = "query and control a running job or server",
    .usage = "[OPTION...] RUN|SOCKET status|budget BYTES|checkpoint|snapshot [FILE]|stop",
    .description = "RUN is the folder of a training run (output.dir), SOCKET the control socket of a "
                   "server. Only the user who runs the job is answered. status replies at once. A budget or "
                   "a checkpoint takes effect between two optimizer steps; a snapshot is written once the "
                   "next step has been measured (for an idle server it is only the plan; a server needs "
                   "FILE). The command waits for them. A budget that no plan fits is refused with the "
                   "missing bytes, and the run continues unchanged.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

#define REPLY_SECONDS 10.0

/* --- what is sent -------------------------------------------------------------------------------------------------- */

enum takes { TAKES_NOTHING, TAKES_BYTES, TAKES_FILE };

static const struct word {
    const char *word;
    enum takes takes;         /* a file need not be given */
    enum plim_status failure; /* what an order that could not be carried out is */
} words[] = {{"status", TAKES_NOTHING, PLIM_IO},
             {"budget", TAKES_BYTES, PLIM_NO_FIT},
             {"checkpoint", TAKES_NOTHING, PLIM_IO},
             {"snapshot", TAKES_FILE, PLIM_IO},
             {"stop", TAKES_NOTHING, PLIM_IO}};

static enum plim_status put_bytes(const char *text, struct strbuf *out, struct plim_error *err)
{
    uint64_t bytes = 0;
    enum plim_status status = bytes_parse(text, &bytes, err);
    if (status == PLIM_OK && (bytes == 0 || bytes > INT64_MAX))
        status = plim_fail(err, PLIM_BAD_INPUT, "'%s' is not a budget", text);
    if (status != PLIM_OK) return plim_error_prefix(err, "ctl budget"), status;
    strbuf_addf(out, ",\"bytes\":%llu", (unsigned long long)bytes);
    return PLIM_OK;
}

/* The run writes the file, wherever it was started: so the path is whole. */
static enum plim_status put_file(const char *file, const char *format, struct strbuf *out,
                                 struct plim_error *err)
{
    char path[MODEL_PATH] = "";
    enum snapshot_format wanted = file ? snapshot_format_of(file) : SNAPSHOT_JSON;
    enum plim_status status = format ? snapshot_format_parse(format, &wanted, err) : PLIM_OK;
    if (status == PLIM_OK && file && *file != '/' && !getcwd(path, sizeof path))
        status = plim_fail(err, PLIM_IO, "the current folder: %s", strerror(errno));
    if (status != PLIM_OK) return plim_error_prefix(err, "ctl snapshot"), status;
    strbuf_addf(out, ",\"format\":\"%s\"", snapshot_format_name(wanted));
    if (!file) return PLIM_OK;
    STRBUF_AUTO whole = STRBUF_INIT;
    strbuf_addf(&whole, "%s%s%s", path, *path ? "/" : "", file);
    strbuf_add(out, ",\"file\":");
    json_quote(out, strbuf_text(&whole), whole.len);
    return PLIM_OK;
}

static enum plim_status make_message(const struct string_list *args, const struct ctl_flags *f,
                                     const struct word **word, struct strbuf *out, struct plim_error *err)
{
    const char *given = args->count > 2 ? args->items[2] : NULL;
    for (size_t i = 0; args->count >= 2 && args->count <= 3 && i < sizeof words / sizeof *words; i++) {
        enum takes takes = words[i].takes;
        bool fits = given ? takes != TAKES_NOTHING : takes != TAKES_BYTES;
        if (strcmp(args->items[1], words[i].word) || !fits) continue;
        if (f->format && takes != TAKES_FILE)
            return plim_fail(err, PLIM_BAD_INPUT, "ctl: --format is for snapshot, not for %s", words[i].word);
        enum plim_status status = PLIM_OK;
        strbuf_addf(out, "{\"do\":\"%s\"", words[i].word);
        if (takes == TAKES_BYTES) status = put_bytes(given, out, err);
        if (takes == TAKES_FILE) status = put_file(given, f->format, out, err);
        strbuf_addf(out, "}");
        *word = &words[i];
        return status;
    }
    return plim_fail(err, PLIM_BAD_INPUT,
                     "ctl: write plimsoll ctl RUN status, budget BYTES, checkpoint, snapshot [FILE] or stop");
}

/* A folder stands for the socket in it. */
static void find_socket(const char *target, char *path, size_t size)
{
    struct stat at;
    bool folder = stat(target, &at) == 0 && S_ISDIR(at.st_mode);
    snprintf(path, size, folder ? "%s/control.sock" : "%s", target);
}

/* --- what comes back ----------------------------------------------------------------------------------------------- */

static const char *text_of(char buf[BYTES_TEXT], const struct node *bytes)
{
    int64_t n = node_int(bytes, 0);
    return bytes_format(buf, (uint64_t)(n > 0 ? n : 0));
}

static void tell_gauges(const struct node *monitor)
{
    const struct node *gauges = node_get(monitor, "gauges"), *advice = node_get(monitor, "recommendations");
    char used[BYTES_TEXT], total[BYTES_TEXT];
    for (size_t i = 0; i < node_count(gauges); i++) {
        const struct node *g = node_item(gauges, i);
        printf("  %-14s %10s of %s, %s\n", node_string(node_get(g, "name"), "?"),
               text_of(used, node_get(g, "used")), text_of(total, node_get(g, "total")),
               node_string(node_get(g, "status"), "?"));
    }
    if (strcmp(node_string(node_get(monitor, "strain"), "none"), "none") != 0)
        printf("strain: %s\n", node_string(node_get(monitor, "strain"), "none"));
    for (size_t i = 0; i < node_count(advice); i++) printf("  %s\n", node_string(node_item(advice, i), ""));
}

static void tell_memory(const struct node *memory)
{
    static const char *const rows_of[] = {"budget", "allocated", "reserved", "free", "peak"};
    const struct node *classes = node_get(memory, "by_class");
    char bytes[BYTES_TEXT];
    for (size_t i = 0; i < sizeof rows_of / sizeof *rows_of; i++)
        printf("  %-14s %10s\n", rows_of[i], text_of(bytes, node_get(memory, rows_of[i])));
    printf("  %-14s %9.1f%%\n  %-14s %9.1f%%\n", "utilisation",
           100 * node_float(node_get(memory, "utilisation"), 0), "fragmentation",
           100 * node_float(node_get(memory, "fragmentation"), 0));
    for (size_t i = 0; i < node_count(classes); i++)
        printf("  %-14s %10s\n", node_item(classes, i)->key, text_of(bytes, node_item(classes, i)));
}

/* Prints a run's status; a server's reply is printed unchanged. */
static void tell_status(const struct node *reply, const char *text)
{
    if (strcmp(node_string(node_get(reply, "what"), ""), "train") != 0) {
        printf("%s\n", text);
        return;
    }
    printf("step %lld of %lld, loss %.4f, %.0f tok/s, micro-batch %lld x %lld (%s)\n",
           (long long)node_int(node_get(reply, "step"), 0), (long long)node_int(node_get(reply, "steps"), 0),
           node_float(node_get(reply, "loss"), 0), node_float(node_get(reply, "tokens_per_s"), 0),
           (long long)node_int(node_get(reply, "micro_batch"), 0),
           (long long)node_int(node_get(reply, "accumulation"), 0),
           node_string(node_get(reply, "level"), "?"));
    printf("memory:\n");
    tell_memory(node_get(reply, "memory"));
    tell_gauges(node_get(reply, "monitor"));
}

/* --- orders -------------------------------------------------------------------------------------------------------- */

/* Asks for the status until an order is done. PLIM_OK: it was carried out, and `text` says what came of it. */
static enum plim_status wait_for(const char *path, const struct word *word, int64_t number, double seconds,
                                 struct strbuf *text, struct plim_error *err)
{
    double until = clock_seconds() + seconds;
    while (clock_seconds() < until) {
        struct strbuf reply = STRBUF_INIT;
        struct doc *doc = NULL;
        enum plim_status status = control_ask(path, "{\"do\":\"status\"}", REPLY_SECONDS, &reply, err);
        if (status == PLIM_OK) status = json_parse(strbuf_text(&reply), reply.len, path, &doc, err);
        strbuf_release(&reply);
        if (status != PLIM_OK) return status;
        const struct node *last = node_get(&doc->root, "last_order");
        bool done = node_int(node_get(last, "number"), 0) >= number;
        const char *what = node_string(node_get(last, "text"), "");
        if (done && !node_bool(node_get(last, "ok"), false))
            status = plim_fail(err, word->failure, "%s", what);
        if (done) strbuf_add(text, what);
        doc_free(doc);
        if (done) return status;
        nanosleep(&(struct timespec){.tv_nsec = 20 * 1000 * 1000}, NULL);
    }
    return plim_fail(
        err, PLIM_BUSY,
        "%s: order %lld did not complete within %.0f s; it is still pending, plimsoll ctl status "
        "shows when it is done",
        path, (long long)number, seconds);
}

static enum plim_status tell_reply(const char *path, const struct ctl_flags *f, const struct word *word,
                                   const struct strbuf *reply, struct plim_error *err)
{
    struct doc *doc;
    STRBUF_AUTO text = STRBUF_INIT;
    enum plim_status status = json_parse(strbuf_text(reply), reply->len, path, &doc, err);
    if (status != PLIM_OK) return status;
    int64_t order = node_int(node_get(&doc->root, "order"), 0);
    if (order && f->wait > 0) status = wait_for(path, word, order, (double)f->wait, &text, err);
    if (status == PLIM_OK && text.len && !f->json)
        printf("%s\n", strbuf_text(&text));
    else if (status == PLIM_OK && (f->json || !node_get(&doc->root, "step")))
        printf("%s\n", strbuf_text(reply));
    else if (status == PLIM_OK)
        tell_status(&doc->root, strbuf_text(reply));
    doc_free(doc);
    return status;
}

static const struct ctl_flags defaults = {.wait = 600};

static int run(void *flags, const struct string_list *args)
{
    struct plim_error err = {0};
    STRBUF_AUTO message = STRBUF_INIT, reply = STRBUF_INIT;
    const struct word *word = NULL;
    char path[MODEL_PATH];
    enum plim_status status = make_message(args, flags, &word, &message, &err);
    if (status == PLIM_OK) {
        find_socket(args->items[0], path, sizeof path);
        status = control_ask(path, strbuf_text(&message), REPLY_SECONDS, &reply, &err);
    }
    if (status == PLIM_OK) status = tell_reply(path, flags, word, &reply, &err);
    return cli_code(status, &err);
}

const struct subcommand subcommand_ctl = {&command, run, CLI_FLAGS(defaults), 0, CLI_ANY, NULL};
