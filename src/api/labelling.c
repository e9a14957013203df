/* labelling.c - see labelling.h. */
#include "api/labelling.h"
#include "base/minmax.h"

#include <stdlib.h>

/* Texts are read until they have so many tokens together, and then computed. */
enum { WINDOW = 512, WINDOW_TOKENS = 8192, TEXT_TOKENS = 16384 };

struct labelling {
    struct text_model *model;
    struct classifier classifier;
    struct labelling_how how;
    struct label_form form;
    struct encoder *encoder;
    struct label_text texts[WINDOW];
    int count;
    size_t tokens; /* of all rows of the window */
    int64_t cut;
};

/* Tokens that one text may have, where the model takes `length` at once. */
static int64_t text_tokens(const struct text_options *o, int64_t length)
{
    int64_t bytes = (int64_t)o->longest, usual = min64(bytes, TEXT_TOKENS);
    return max64(max64(usual, bytes / 4), 4 * length);
}

/* Windows of a long text double its tokens at most, and lists grow by a half. */
int64_t labelling_bytes(const struct text_model *m, const struct model_spec *spec, int64_t length)
{
    int64_t one = text_tokens(&m->options, length), all = WINDOW_TOKENS + one,
            longest = (int64_t)m->options.longest;
    int64_t each = 2 * (int64_t)(4 * sizeof(int32_t) + sizeof(struct token_span)) + 2 * spec->num_labels * 4;
    int64_t entities = 2 * (int64_t)sizeof(struct entity) + 32;
    return all * each + 2 * WINDOW * (int64_t)sizeof(struct label_text) + (one + 3 * length) * entities +
           4 * longest + (int64_t)encoder_bytes_most(m->codec.tokenizer, (size_t)longest) +
           ENCODER_LIMIT(longest) + (256 << 10);
}

enum plim_status labelling_open(struct text_model *model, struct labelling **out, struct plim_error *err)
{
    struct labelling *l = calloc(1, sizeof *l);
    if (!l) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the texts of a window");
    l->model = model;
    enum plim_status status = classifier_open(&l->classifier, model->how.path, embedder_spec(model->embedder),
                                              model->codec.tokenizer, err);
    if (status == PLIM_OK) status = encoder_open(model->codec.tokenizer, &l->encoder, err);
    if (status != PLIM_OK) return labelling_close(l), status;
    encoder_limit(l->encoder, (size_t)ENCODER_LIMIT(model->options.longest));
    *out = l;
    return PLIM_OK;
}

static void forget(struct labelling *l)
{
    for (int i = 0; i < l->count; i++) label_text_release(&l->texts[i]);
    l->count = 0, l->tokens = 0;
}

void labelling_close(struct labelling *l)
{
    if (!l) return;
    forget(l);
    encoder_close(l->encoder);
    classifier_close(&l->classifier);
    free(l);
}

const struct classifier *labelling_classifier(const struct labelling *l) { return &l->classifier; }
int64_t labelling_cut(const struct labelling *l) { return l->cut; }

void labelling_begin(struct labelling *l, const struct labelling_how *how)
{
    int64_t time = embedder_plan(l->model->embedder)->time;
    forget(l);
    l->how = *how;
    l->form = (struct label_form){.time = time,
                                  .most = text_tokens(&l->model->options, time),
                                  .stride = how->stride,
                                  .truncate = how->truncate,
                                  .spans = classifier_of_tokens(&l->classifier)};
}

static enum plim_status tell_entities(struct labelling *l, const struct label_text *t, float *logits,
                                      struct plim_error *err)
{
    struct entity_how how = classifier_how(&l->classifier, l->how.aggregation, l->how.ignored);
    struct entity_list list = {0};
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < t->row_count && status == PLIM_OK; i++) {
        status = entities_of_row(&list, &how, t, &t->rows[i], logits, err);
        logits += t->rows[i].count * how.nlabels;
    }
    if (t->row_count > 1) entities_overlapping(&list);
    if (status == PLIM_OK) status = l->how.entities(l->how.arg, &list, err);
    entity_list_release(&list);
    return status;
}

static enum plim_status tell_window(struct labelling *l, float *logits, struct plim_error *err)
{
    size_t width = (size_t)embedder_width(l->model->embedder);
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < l->count && status == PLIM_OK; i++) {
        const struct label_text *t = &l->texts[i];
        l->cut += t->cut;
        if (embedder_per_token(l->model->embedder)) {
            status = tell_entities(l, t, logits, err);
            logits += t->ids.count * width;
        } else {
            classifier_scores(&l->classifier, l->how.function, logits);
            status = l->how.scores(l->how.arg, logits, err);
            logits += width;
        }
    }
    return status;
}

enum plim_status labelling_end(struct labelling *l, struct plim_error *err)
{
    struct embedder *embedder = l->model->embedder;
    int64_t nrows = 0, at = 0, width = embedder_width(embedder);
    if (!l->count) return PLIM_OK;
    for (int i = 0; i < l->count; i++) nrows += (int64_t)l->texts[i].row_count;
    int64_t results = embedder_per_token(embedder) ? (int64_t)l->tokens : nrows;
    struct embed_row *list = malloc((size_t)(nrows + 1) * sizeof *list);
    float *logits = malloc((size_t)(results * width + 1) * sizeof *logits);
    enum plim_status status = PLIM_OK;
    if (!list || !logits) status = plim_fail(err, PLIM_NO_MEMORY, "out of memory for the texts of a batch");
    for (int i = 0; i < l->count && status == PLIM_OK; i++)
        for (size_t k = 0; k < l->texts[i].row_count; k++) {
            const struct label_row *r = &l->texts[i].rows[k];
            list[at++] = (struct embed_row){l->texts[i].ids.id + r->first_id, (int64_t)r->count, r->second};
        }
    if (status == PLIM_OK) status = embedder_run(embedder, list, nrows, logits, err);
    if (status == PLIM_OK) status = tell_window(l, logits, err);
    forget(l);
    free(list);
    free(logits);
    return status;
}

enum plim_status labelling_add(struct labelling *l, const struct label_input *in, struct plim_error *err)
{
    struct label_text *t = &l->texts[l->count];
    enum plim_status status = label_text_read(t, l->encoder, l->model->codec.tokenizer, &l->form, in, err);
    if (status != PLIM_OK) return label_text_release(t), status;
    l->count++, l->tokens += t->ids.count;
    return l->count == WINDOW || l->tokens >= WINDOW_TOKENS ? labelling_end(l, err) : PLIM_OK;
}
