/* text_model.c - see text_model.h. */
#include "cli/text_model.h"
#include "base/bytes.h"
#include "mem/os.h"
#include "model/hf.h"

#include <stdio.h>
#include <string.h>

enum plim_status text_model_find(struct text_model *m, const char *what, struct plim_error *err)
{
    const struct text_flags *f = m->flags;
    m->line = f->model.line, m->line.fallback = device_line_default();
    enum plim_status status = find_model(cli_context(), what, m->dir, sizeof m->dir, err);
    if (status == PLIM_OK) status = sentence_config_load(m->dir, &m->how, err);
    if (f->max_length) m->how.max_length = f->max_length;
    return status;
}

static enum plim_status open_codec(struct text_model *m, struct plim_error *err)
{
    char path[MODEL_PATH + 32];
    const char *which = find_tokenizer(m->flags->model.tokenizer, m->how.path, path, sizeof path);
    if (!which)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: there is no tokenizer.json or SentencePiece model; give --tokenizer",
                         m->how.path);
    enum plim_status status = codec_open_within(which, device_line_host(&m->line), &m->codec, err);
    if (status == PLIM_OK && !m->codec.tokenizer)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: option '--tokenizer': encoders have no byte tokenizer",
                           m->command);
    return status;
}

static enum plim_status open_embedder(void *arg, struct device *device, struct plim_error *err)
{
    struct text_model *m = arg;
    struct log log = {LOG_LEVEL_WARN, log_to_file, stderr};
    struct embed_room room = {.how = m->how,
                              .exact = m->flags->exact,
                              .labels = m->labels,
                              .weights = weights_kind_parse(m->flags->model.weights),
                              .rows = m->flags->batch,
                              .budget = device_line_on(&m->line, &device->facts),
                              .log = m->flags->quiet ? NULL : &log};
    struct model_spec spec;
    enum plim_status status = hf_config_load(m->how.path, &spec, err);
    if (status == PLIM_OK && m->flags->max_length > spec.max_positions)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "%s: option '--max-length': %lld is beyond the model's %lld positions", m->command,
                           (long long)m->flags->max_length, (long long)spec.max_positions);
    if (status == PLIM_OK && model_is_encoder(&spec) && spec.vocab_size < m->codec.vocab_size)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "%s: the tokenizer has %lld tokens, the model only %lld; give its own",
                           m->codec.path, (long long)m->codec.vocab_size, (long long)spec.vocab_size);
    if (status != PLIM_OK) return status;
    room.caller_bytes = m->caller_bytes(m, &spec, m->how.max_length ? m->how.max_length : spec.max_positions);
    return embedder_open(&room, device, &m->embedder, err);
}

enum plim_status text_model_open(struct text_model *m, struct plim_error *err)
{
    enum plim_status status = open_codec(m, err);
    return status == PLIM_OK ? cli_open_model(m->command, &m->flags->model, open_embedder, m, &m->device, err)
                             : status;
}

void text_model_close(struct text_model *m)
{
    embedder_close(m->embedder);
    if (m->device) m->device->ops->close(m->device);
    codec_close(&m->codec);
}

enum plim_status text_model_line(const struct line *line, struct json_field *fields, int count,
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
