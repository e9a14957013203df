/* embedder.c - sentence vectors of plimsoll/text.h. */
#include "api/embedder_part.h"
#include "job/job.h"

#include <string.h>

static enum plim_status check_options(const struct caller *c, const struct plim_embed_options *o,
                                      struct plim_error *err)
{
    if (!o->model) return caller_refuse(c, "model", err, "name a model folder");
    if (o->pooling && strcmp(o->pooling, "mean") && strcmp(o->pooling, "cls"))
        return caller_refuse(c, "pooling", err, "'%s'; write mean or cls", o->pooling);
    if (o->max_length < 0 || o->max_length > 1 << 24)
        return caller_refuse(c, "max_length", err, "%lld; write e.g. 256", (long long)o->max_length);
    if (o->budget > INT64_MAX) return caller_refuse(c, "budget", err, "more than there is");
    return caller_check(c, o->device, false, o->weights, o->threads, err);
}

static enum plim_status open_model_and_rows(struct plim_embedder *e, const struct plim_embed_options *o,
                                            struct plim_error *err)
{
    struct text_model *m = &e->model;
    enum plim_status status = text_model_find(m, o->model, err);
    if (o->pooling) m->how.pooling = strcmp(o->pooling, "cls") ? POOLING_MEAN : POOLING_FIRST;
    if (o->normalize) m->how.normalize = o->normalize > 0;
    if (status == PLIM_OK) status = text_model_open(m, err);
    if (status != PLIM_OK) return status;
    return m->labels
               ? labelling_open(m, &e->labelling, err)
               : text_rows_open(&m->codec, embedder_plan(m->embedder)->time, EMBED_WINDOW, &e->rows, err);
}

enum plim_status plim_embedder_open(struct plim_context *context, const struct plim_embed_options *options,
                                    struct plim_embedder **out, struct plim_error *err)
{
    static const char me[] = "plim_embedder_open";
    struct plim_error unheard;
    struct plim_embed_options o;
    if (!err) err = &unheard;
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "%s: out is NULL", me);
    *out = NULL;
    if (!handle_is(context, HANDLE_CONTEXT, me, err)) return PLIM_BAD_INPUT;
    struct caller caller = {&context->context, me, true};
    enum plim_status status = options_take(&o, sizeof o, options, me, err);
    if (status == PLIM_OK) status = check_options(&caller, &o, err);
    if (status != PLIM_OK) return status;
    struct plim_embedder *e = handle_new(sizeof *e, HANDLE_EMBEDDER, context, err);
    if (!e) return PLIM_NO_MEMORY;
    e->model = (struct text_model){.caller = caller,
                                   .options = {.device = o.device ? o.device : "auto",
                                               .weights = weights_kind_parse(o.weights ? o.weights : "as-is"),
                                               .threads = o.threads,
                                               .max_length = o.max_length,
                                               .longest = CLASSIFY_LONGEST,
                                               .log = context_log(&context->context)},
                                   .line = {o.budget, o.budget > 0, device_line_default(), "options.budget"},
                                   .labels = o.labels,
                                   .caller_bytes = o.labels ? labelling_bytes : embed_bytes};
    status = open_model_and_rows(e, &o, err);
    e->model.options.device = "auto"; /* the caller's text is not ours to keep */
    if (status != PLIM_OK) return plim_embedder_close(e), status;
    *out = e;
    return PLIM_OK;
}

void plim_embedder_close(struct plim_embedder *e)
{
    if (!handle_is(e, HANDLE_EMBEDDER, "plim_embedder_close", NULL)) return;
    labelling_close(e->labelling);
    text_rows_close(e->rows);
    text_model_close(&e->model);
    handle_free(e);
}

int64_t plim_embedder_width(const struct plim_embedder *e)
{
    if (!handle_is(e, HANDLE_EMBEDDER, "plim_embedder_width", NULL)) return 0;
    return embedder_width(e->model.embedder);
}

uint64_t plim_embedder_bytes(const struct plim_embedder *e)
{
    if (!handle_is(e, HANDLE_EMBEDDER, "plim_embedder_bytes", NULL)) return 0;
    return (uint64_t)embedder_plan(e->model.embedder)->total;
}

/* The window's vectors. */
static enum plim_status run_window(struct plim_embedder *e, float **vectors, struct plim_error *err)
{
    int64_t count = text_rows_count(e->rows);
    enum plim_status status = embedder_run(e->model.embedder, text_rows(e->rows), count, *vectors, err);
    *vectors += count * embedder_width(e->model.embedder);
    text_rows_clear(e->rows);
    return status;
}

enum plim_status plim_embed(struct plim_embedder *e, const char *const *texts, size_t count, float *vectors,
                            struct plim_error *err)
{
    static const char me[] = "plim_embed";
    struct plim_error unheard;
    enum plim_status status = PLIM_OK;
    if (!err) err = &unheard;
    if (!handle_is(e, HANDLE_EMBEDDER, me, err)) return PLIM_BAD_INPUT;
    if (!e->rows)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: opened with options.labels; call plim_classify", me);
    if (count && (!texts || !vectors)) return plim_fail(err, PLIM_BAD_INPUT, "%s: an argument is NULL", me);
    text_rows_clear(e->rows); /* of a call that failed */
    for (size_t i = 0; i < count && status == PLIM_OK; i++) {
        if (!texts[i]) return plim_fail(err, PLIM_BAD_INPUT, "%s: text %zu is NULL", me, i + 1);
        status = text_rows_add(e->rows, texts[i], strlen(texts[i]), err);
        if (status != PLIM_OK) plim_error_prefix(err, "%s: text %zu", me, i + 1);
        if (status == PLIM_OK && text_rows_full(e->rows)) status = run_window(e, &vectors, err);
    }
    return status == PLIM_OK && text_rows_count(e->rows) ? run_window(e, &vectors, err) : status;
}

enum plim_status plim_embedder_set_budget(struct plim_embedder *e, uint64_t budget, struct plim_error *err)
{
    static const char me[] = "plim_embedder_set_budget";
    struct plim_error unheard;
    if (!err) err = &unheard;
    if (!handle_is(e, HANDLE_EMBEDDER, me, err)) return PLIM_BAD_INPUT;
    struct device_line line = {budget, budget > 0, e->model.line.fallback, "budget"};
    const struct device_facts *facts = &e->model.device->facts;
    if (budget > INT64_MAX) return plim_fail(err, PLIM_BAD_INPUT, "%s: more than there is", me);
    enum plim_status status = device_line_check(handle_context(&e->handle), me, &line, facts, err);
    return status == PLIM_OK ? embedder_move(e->model.embedder, device_line_on(&line, facts), err) : status;
}
