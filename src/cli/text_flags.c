/* text_flags.c - see text_flags.h. */
#include "cli/text_flags.h"
#include "base/bytes.h"
#include "device/registry.h"
#include "mem/os.h"

#include <stdio.h>

const char *const text_weights[] = {WEIGHTS_KIND_NAMES, NULL};

enum plim_status text_flags_check(const char *command, const struct text_flags *f, struct plim_error *err)
{
    struct device_name unused;
    if (!device_name_read(f->device, &unused))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: option '--device': '%s' is no device; write " DEVICE_NAMES,
                         command, f->device);
    if (f->budget_given && !f->budget)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: option '--budget': 0 bytes hold nothing; write e.g. 256MiB", command);
    if (f->threads < 0 || f->threads > 1024)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: option '--threads': %d; write 0 for one per core, or up to 1024", command,
                         f->threads);
    if (f->batch < 0 || f->batch > 65536)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: option '--batch': %lld; write 1 to 65536", command,
                         (long long)f->batch);
    if (f->max_length < 0 || f->max_length > 1 << 24)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: option '--max-length': %lld makes no sense; write e.g. 256", command,
                         (long long)f->max_length);
    if (f->max_line < 64 || f->max_line > (uint64_t)1 << 40)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: option '--max-line': %llu makes no sense; write e.g. 16MiB", command,
                         (unsigned long long)f->max_line);
    return PLIM_OK;
}

struct text_model text_flags_model(const char *command, const struct text_flags *f, const struct log *log)
{
    return (struct text_model){.caller = {cli_context(), command, false},
                               .options = {.tokenizer = f->tokenizer,
                                           .device = f->device,
                                           .weights = weights_kind_parse(f->weights),
                                           .threads = f->threads,
                                           .exact = f->exact,
                                           .batch = f->batch,
                                           .max_length = f->max_length,
                                           .longest = f->max_line,
                                           .log = f->quiet ? NULL : log},
                               .line = {f->budget, f->budget_given, device_line_default()}};
}

enum plim_status text_line(const struct line *line, struct json_field *fields, int count,
                           struct plim_error *err)
{
    struct json_problem problem;
    for (int i = 0; i < count; i++) fields[i].undo = true;
    if (!count) fields->at = line->text, fields->len = line->len;
    if (count && !json_fields(line->text, line->len, fields, count, &problem))
        return plim_fail(err, PLIM_BAD_INPUT, "byte %zu: %s", problem.column, problem.what);
    for (int i = 0; i < count; i++) {
        bool absent = fields[i].kind == JSON_ABSENT || fields[i].kind == JSON_NULL;
        if (i > 0 && absent) fields[i].at = NULL;
        if (fields[i].kind != JSON_TEXT && (i == 0 || !absent))
            return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is %s, not text%s", fields[i].name,
                             json_kind_name(fields[i].kind), i ? "" : "; give --field");
    }
    return PLIM_OK;
}

void text_model_tell(const struct text_model *m, const char *first)
{
    const struct embed_count *c = embedder_count(m->embedder);
    const struct embed_plan *p = embedder_plan(m->embedder);
    struct os_process me = {0};
    char total[BYTES_TEXT], params[BYTES_TEXT], peak[BYTES_TEXT];
    os_process_memory(&me, NULL);
    fprintf(stderr, "%s%.1f %% of %lld computed positions were padding\n", first,
            c->positions ? 100 * (double)(c->positions - c->tokens) / (double)c->positions : 0,
            (long long)c->positions);
    fprintf(stderr,
            "planned %s: parameters %s in %s, batches of up to %lld x %lld tokens; process %s at its peak\n",
            bytes_format(total, (uint64_t)p->total), bytes_format(params, (uint64_t)p->params),
            precision_name(p->precision), (long long)p->rows, (long long)p->time,
            bytes_format(peak, me.peak));
}
