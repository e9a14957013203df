/* text_model.c - see text_model.h. */
#include "api/text_model.h"
#include "api/model_text.h"
#include "api/open_device.h"
#include "model/hf.h"
#include "serve/embed_text.h"

enum plim_status text_model_find(struct text_model *m, const char *what, struct plim_error *err)
{
    enum plim_status status = find_model(m->caller.context, what, m->dir, sizeof m->dir, err);
    if (status == PLIM_OK) status = sentence_config_load(m->dir, &m->how, err);
    if (m->options.max_length) m->how.max_length = m->options.max_length;
    return status;
}

static enum plim_status open_tokenizer(struct text_model *m, struct plim_error *err)
{
    char path[MODEL_PATH + 32];
    if (!find_tokenizer(m->options.tokenizer, m->how.path, path, sizeof path))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: there is no tokenizer.json or SentencePiece model%s",
                         m->how.path, m->caller.library ? "" : "; give --tokenizer");
    enum plim_status status = open_codec(m->caller.context, m->options.tokenizer, m->how.path,
                                         device_line_host(&m->line), &m->codec, err);
    if (status == PLIM_OK && !m->codec.tokenizer)
        status = caller_refuse(&m->caller, "tokenizer", err, "encoders have no byte tokenizer");
    return status;
}

/* Memory of the process counts the tokenizer, unless the process is not ours. */
static int64_t codec_bytes(const struct text_model *m)
{
    return m->caller.context->process ? 0 : (int64_t)m->codec.bytes;
}

static enum plim_status open_embedder(void *arg, struct device *device, struct plim_error *err)
{
    struct text_model *m = arg;
    struct embed_room room = {.how = m->how,
                              .exact = m->options.exact,
                              .labels = m->labels,
                              .weights = m->options.weights,
                              .rows = m->options.batch,
                              .budget = device_line_on(&m->line, &device->facts),
                              .log = m->options.log};
    struct model_spec spec;
    enum plim_status status = hf_config_load(m->how.path, &spec, err);
    if (status == PLIM_OK && m->options.max_length > spec.max_positions)
        status = caller_refuse(&m->caller, "max-length", err, "%lld is beyond the model's %lld positions",
                               (long long)m->options.max_length, (long long)spec.max_positions);
    if (status == PLIM_OK && model_is_encoder(&spec))
        status = check_vocabulary(&m->codec, m->how.path, spec.vocab_size, err);
    if (status != PLIM_OK) return status;
    int64_t length = m->how.max_length ? m->how.max_length : spec.max_positions;
    room.caller_bytes = m->caller_bytes(m, &spec, length) + codec_bytes(m);
    return embedder_open(&room, device, &m->embedder, err);
}

enum plim_status text_model_open(struct text_model *m, struct plim_error *err)
{
    const struct text_options *o = &m->options;
    struct device_wish wish = {m->caller.name, o->device, m->caller.library ? "device cpu" : "--device cpu",
                               o->threads, m->line.budget};
    enum plim_status status = open_tokenizer(m, err);
    if (status != PLIM_OK) return status;
    return open_model(m->caller.context, &wish, &m->line, open_embedder, m, &m->device, err);
}

void text_model_close(struct text_model *m)
{
    embedder_close(m->embedder);
    if (m->device) m->device->ops->close(m->device);
    codec_close(&m->codec);
}

int64_t embed_bytes(const struct text_model *m, const struct model_spec *spec, int64_t length)
{
    return text_rows_bytes(&m->codec, length, EMBED_WINDOW) +
           EMBED_WINDOW * spec->hidden_size * (int64_t)sizeof(float) + (128 << 10);
}
