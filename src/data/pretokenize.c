/* pretokenize.c - see pretokenize.h. Slots come from the intake in order; after each the place behind it is one that
 * work can go on from, and now and then it is written to the journal, once everything before it is on disk. */
#include "data/pretokenize.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "store/token_writer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define COMMIT_SECONDS 2.0
#define HEAR_SECONDS   0.1

struct work {
    const struct pretokenize_options *options;
    struct pretokenize_result *result;
    struct dataset *data;
    struct intake_options intake;
    struct token_writer *writer;
    struct intake_place at;
    char journal[4096];
    double committed, heard;
};

static uint64_t identity(const struct work *w) { return dataset_identity(w->data); }

static enum plim_status write_journal(struct work *w, struct plim_error *err)
{
    struct token_writer_mark m;
    struct strbuf text = STRBUF_INIT;
    enum plim_status status = token_writer_sync(w->writer, &m, err);
    if (status != PLIM_OK) return status;
    strbuf_addf(&text,
                "{\"version\":1,\"identity\":\"%016" PRIx64 "\",\"visit\":%" PRIu64 ",\"offset\":%" PRIu64
                ",\"line\":%" PRIu64 ",\"tokens\":%" PRIu64 ",\"samples\":%" PRIu64 ",\"longest\":%" PRIu64
                ",\"sample_start\":%" PRIu64 ",\"bad\":%" PRIu64 "}\n",
                identity(w), w->at.visit, w->at.offset, w->at.line, m.tokens, m.samples, m.longest,
                m.sample_start, w->result->progress.bad);
    status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(w->journal, text.data, text.len, err);
    strbuf_release(&text);
    w->committed = clock_seconds();
    return status;
}

static uint64_t number(const struct doc *doc, const char *key)
{
    return (uint64_t)node_int(node_get(&doc->root, key), 0);
}

/* Where an earlier run stopped; *found is false when there is nothing to go on from. */
static enum plim_status read_journal(struct work *w, struct token_writer_mark *m, bool *found,
                                     struct plim_error *err)
{
    struct doc *doc = NULL;
    char mine[17];
    *found = false;
    /* Without its parts the journal is what a kill between a finished file's last two steps leaves. */
    if (!w->options->resume || !file_exists(w->journal) || !token_writer_has_parts(w->options->out))
        return PLIM_OK;
    enum plim_status status = json_load(w->journal, &doc, err);
    if (status != PLIM_OK) return status;
    snprintf(mine, sizeof mine, "%016" PRIx64, identity(w));
    if (strcmp(mine, node_string(node_get(&doc->root, "identity"), "")))
        status =
            plim_fail(err, PLIM_BAD_INPUT,
                      "%s: belongs to other data or options; use those again, or start over with --no-resume",
                      w->journal);
    *m = (struct token_writer_mark){number(doc, "tokens"), number(doc, "samples"), number(doc, "longest"),
                                    number(doc, "sample_start")};
    w->at = (struct intake_place){0, number(doc, "visit"), number(doc, "offset"), number(doc, "line")};
    w->result->progress.bad = number(doc, "bad");
    w->result->resumed_tokens = m->tokens;
    *found = status == PLIM_OK;
    doc_free(doc);
    return status;
}

static void hear(struct work *w, bool now)
{
    struct pretokenize_progress *p = &w->result->progress;
    double time = clock_seconds();
    if (!now && time - w->heard < HEAR_SECONDS) return;
    w->heard = time;
    const struct inputs *in = dataset_inputs(w->data);
    p->bytes = p->total_bytes = 0;
    for (int i = 0; i < in->count; i++) {
        uint64_t size = (uint64_t)in->file[i].bytes;
        p->total_bytes += size;
        if ((uint64_t)i < w->at.visit) p->bytes += size;
        if ((uint64_t)i == w->at.visit) p->bytes += w->at.offset < size ? w->at.offset : size;
    }
    if (w->options->hear) w->options->hear(w->options->arg, p);
}

static enum plim_status write_records(struct work *w, const struct intake_slot *slot, struct plim_error *err)
{
    struct pretokenize_progress *p = &w->result->progress;
    bool running = w->intake.rules.kind == RECORD_TEXT;
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < slot->count && status == PLIM_OK; i++) {
        const struct intake_record *r = &slot->records[i];
        bool goes_on = slot->more && i + 1 == slot->count;
        p->bad += r->bad;
        status = token_writer_put(w->writer, slot->tokens.id + r->first, r->count, err);
        p->tokens += r->count;
        if (running || goes_on || !(r->count + slot->before) || status != PLIM_OK) continue;
        status = token_writer_end_sample(w->writer, err);
        p->samples++;
    }
    return status;
}

static enum plim_status write_slot(struct work *w, struct intake *intake, struct intake_slot *slot,
                                   struct plim_error *err)
{
    struct pretokenize_progress *p = &w->result->progress;
    enum plim_status status = write_records(w, slot, err);
    while (status == PLIM_OK && slot->more) {
        status = intake_more(intake, slot, err);
        if (status == PLIM_OK) status = write_records(w, slot, err);
    }
    if (w->intake.rules.kind == RECORD_TEXT && slot->file_end && status == PLIM_OK) {
        status = token_writer_end_sample(w->writer, err);
        p->samples++;
    }
    if (slot->problem[0] && !w->result->problem[0])
        snprintf(w->result->problem, sizeof w->result->problem, "%s", slot->problem);
    return status;
}

static enum plim_status stop_here(struct work *w, struct plim_error *err)
{
    enum plim_status status = write_journal(w, err);
    if (status != PLIM_OK) return status;
    return plim_fail(err, PLIM_INTERRUPTED, "stopped by a signal; run the same command again to continue");
}

static enum plim_status run(struct work *w, struct plim_error *err)
{
    struct intake *intake = NULL;
    struct intake_slot *slot = NULL;
    enum plim_status status = intake_open(&w->intake, &intake, err);
    if (status == PLIM_OK) status = intake_start(intake, &w->at, err);
    while (status == PLIM_OK) {
        status = intake_next(intake, &slot, err);
        if (status == PLIM_INTERRUPTED) status = stop_here(w, err);
        if (status != PLIM_OK || !slot) break;
        status = write_slot(w, intake, slot, err);
        if (status == PLIM_OK && slot->failed != PLIM_OK)
            status = plim_fail(err, slot->failed, "%s", slot->failure.text);
        w->at = slot->next;
        w->result->input_bytes += slot->bytes;
        intake_give_back(intake, slot);
        if (status == PLIM_OK) hear(w, false);
        bool stop = w->options->stop && *w->options->stop;
        if (status == PLIM_OK && stop)
            status = stop_here(w, err);
        else if (status == PLIM_OK && clock_seconds() - w->committed > COMMIT_SECONDS)
            status = write_journal(w, err);
    }
    intake_close(intake);
    return status;
}

static enum plim_status open_writer(struct work *w, struct plim_error *err)
{
    enum record_kind kind = w->intake.rules.kind;
    struct token_writer_format format = {.mask = kind == RECORD_PAIR || kind == RECORD_CHAT,
                                         .lines = kind != RECORD_TEXT,
                                         .vocab_size = w->options->codec->vocab_size,
                                         .fingerprint = w->options->codec->fingerprint,
                                         .eos = w->options->codec->eos};
    struct token_writer_mark mark = {0};
    bool found;
    enum plim_status status = read_journal(w, &mark, &found, err);
    if (status != PLIM_OK) return status;
    w->result->progress.tokens = mark.tokens, w->result->progress.samples = mark.samples;
    status = token_writer_open(w->options->out, &format, found ? &mark : NULL, &w->writer, err);
    return status == PLIM_OK ? write_journal(w, err) : status;
}

/* Nothing that is read may be lost, and no work that cannot be kept is begun. */
static enum plim_status check_out(const struct work *w, struct plim_error *err)
{
    const struct inputs *in = dataset_inputs(w->data);
    const char *out = w->options->out;
    struct stat to, from;
    if (stat(out, &to)) return PLIM_OK;
    if (S_ISDIR(to.st_mode))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is a folder; give the token file a name in it", out);
    for (int i = 0; i < in->count; i++)
        if (!stat(in->file[i].path, &from) && from.st_dev == to.st_dev && from.st_ino == to.st_ino)
            return plim_fail(err, PLIM_BAD_INPUT, "%s: is input and output; write the result to another file",
                             out);
    return PLIM_OK;
}

enum plim_status pretokenize(const struct pretokenize_options *options, struct pretokenize_result *result,
                             struct plim_error *err)
{
    struct work w = {.options = options, .result = result};
    struct data_options data = options->data;
    *result = (struct pretokenize_result){0};
    data.rows = ROWS_SAMPLES, data.overlong = OVERLONG_SPLIT, data.time = 1;
    data.making = options->out;
    if ((size_t)snprintf(w.journal, sizeof w.journal, "%s.part.journal", options->out) >= sizeof w.journal)
        return plim_fail(err, PLIM_BAD_INPUT, "%.200s...: the path is too long", options->out);
    enum plim_status status = dataset_open(&data, options->codec, &w.data, err);
    if (status != PLIM_OK) return status;
    dataset_intake_options(w.data, &w.intake);
    w.intake.workers = options->workers, w.intake.prefetch = options->prefetch;
    w.intake.max_line = options->max_line, w.intake.stop = options->stop;
    status = check_out(&w, err);
    if (status == PLIM_OK) status = open_writer(&w, err);
    if (status == PLIM_OK) status = run(&w, err);
    if (status == PLIM_OK) {
        status = token_writer_finish(w.writer, err);
        w.writer = NULL;
        if (status == PLIM_OK) unlink(w.journal);
    }
    if (status == PLIM_OK) hear(&w, true);
    token_writer_close(w.writer);
    dataset_close(w.data);
    return status;
}
