/* api_classify.c - /v1/classify: labels of texts, in the form that vLLM gives them, or the entities of texts.
 *
 * A text keeps its spans until its logits come. What that takes is counted before a text is read, what its answer takes
 * before it is queued (call_take_bytes).
 */
#include "serve/call.h"
#include "serve/label_text.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TEXTS = 2048 };

struct label_job {
    struct label_text *texts; /* one for each prompt */
    size_t count;
    struct bump store;
    struct string_list ignored;
    bool ignored_given;
};

void label_job_free(struct label_job *job)
{
    if (!job) return;
    for (size_t i = 0; i < job->count; i++) label_text_release(&job->texts[i]);
    bump_free(&job->store);
    free(job->texts);
    free(job);
}

/* --- what is asked --------------------------------------------------------------------------------------------- */

static bool keep_ignored(struct label_job *job, const struct node *list, struct refusal *why)
{
    job->ignored_given = list != NULL;
    for (size_t i = 0; i < node_count(list); i++) {
        const struct node *name = node_item(list, i);
        const char *kept = bump_copy(&job->store, name->as.string.text, name->as.string.len);
        if (!kept || !string_list_add(&job->store, &job->ignored, kept))
            return refuse(why, 503, "ignore_labels", "out_of_memory", "out of memory for labels");
    }
    return true;
}

/* Parameters for the other kind of labels would change nothing. */
static bool check_kind(const struct call *c, struct refusal *why)
{
    const struct ask *ask = &c->ask;
    bool tokens = classifier_of_tokens(&c->server->classifier);
    const char *wrong = tokens ? (ask->given_top_k ? "top_k"
                                  : ask->function  ? "function_to_apply"
                                                   : NULL)
                               : (ask->aggregation      ? "aggregation_strategy"
                                  : ask->ignored_labels ? "ignore_labels"
                                                        : NULL);
    return !wrong ||
           refuse(why, 422, wrong, "unsupported_parameter", "%s is for labels of %s; '%s' labels %s", wrong,
                  tokens ? "whole texts" : "tokens", c->server->model.name,
                  tokens ? "tokens" : "whole texts");
}

static bool is_text(const struct node *n) { return n && n->kind == NODE_STRING; }

/* A text, or {"text": ..., "text_pair": ...}. */
static bool read_input(const struct node *item, struct label_input *in, struct refusal *why)
{
    const struct node *text = item, *pair = NULL;
    if (item->kind == NODE_MAP) {
        text = node_get(item, "text"), pair = node_get(item, "text_pair");
        if (pair && pair->kind == NODE_NULL) pair = NULL;
    }
    if (!is_text(text) || (pair && !is_text(pair)))
        return refuse(why, 422, "input", "invalid_value",
                      "input: write a text, {\"text\": ..., \"text_pair\": ...}, or a list of either");
    *in = (struct label_input){text->as.string.text, pair ? pair->as.string.text : NULL, text->as.string.len,
                               pair ? pair->as.string.len : 0};
    return true;
}

/* --- texts ------------------------------------------------------------------------------------------------------ */

/* A token is no less than a byte; lists grow to twice what they hold. */
static int64_t text_bytes(const struct label_input *in, int64_t most)
{
    int64_t bytes = (int64_t)(in->len + in->pair_len), tokens = bytes + 8 < most ? bytes + 8 : most;
    return 2 * bytes + 2 * tokens * (int64_t)(2 * sizeof(int32_t) + sizeof(struct token_span)) + 1024;
}

static bool add_text(struct call *c, const struct node *item, struct refusal *why)
{
    struct server *s = c->server;
    struct plim_error err = {0};
    struct label_input in;
    struct label_text *t = &c->labels->texts[c->labels->count];
    struct label_form form = {.time = engine_plan_now(s->model.engine).context,
                              .most = server_tokens_most(s),
                              .stride = -1,
                              .spans = classifier_of_tokens(&s->classifier)};
    if (!read_input(item, &in, why) || !call_take_bytes(c, text_bytes(&in, form.most + 64), why))
        return false;
    c->labels->count++;
    struct encoder *encoder = server_borrow(s, in.len > in.pair_len ? in.len : in.pair_len);
    enum plim_status status = label_text_read(t, encoder, s->model.codec->tokenizer, &form, &in, &err);
    server_give_back(s, encoder);
    if (t->too_long)
        return refuse(why, 400, "input", "context_length_exceeded",
                      "this server's context is %lld tokens; a text of the input has %s%zu with its marks",
                      (long long)form.time, t->too_long > (size_t)form.most ? "at least " : "", t->too_long);
    if (status != PLIM_OK) return refuse_error(why, "input", &err);
    struct token_list ids = t->ids;
    t->ids = (struct token_list){0};
    if (!call_add_prompt(c, &ids, why)) return token_list_release(&ids), false;
    c->prompts[c->prompt_count - 1].second = t->rows[0].second;
    return true;
}

/* Bytes per token or label: its JSON around names and words, and the text around all of them. */
enum { JSON_BYTES = 96, AROUND = 512 };

static int64_t longest_name(const struct classifier *c)
{
    size_t most = 0;
    for (size_t i = 0; i < c->names.list.count; i++)
        if (strlen(c->names.list.items[i]) > most) most = strlen(c->names.list.items[i]);
    return 2 * (int64_t)most;
}

/* Bytes of all words: those of the tokens, or of the text where a token is unknown. */
static int64_t word_bytes(const struct call *c, const struct label_text *t)
{
    size_t bytes = t->text.len;
    for (size_t i = 0, len; i < t->body.count; i++)
        if (tokenizer_text(c->server->model.codec->tokenizer, t->body.id[i], &len)) bytes += len;
    return (int64_t)bytes;
}

static int64_t answer_bytes(const struct call *c, const struct call_prompt *p)
{
    const struct classifier *labels = &c->server->classifier;
    int64_t width = labels->spec->num_labels, each = JSON_BYTES + longest_name(labels);
    if (!classifier_of_tokens(labels)) return width * each + AROUND;
    const struct label_text *t = &c->labels->texts[p - c->prompts];
    return p->count * (width * (int64_t)sizeof(float) + each) + 2 * word_bytes(c, t) + AROUND;
}

/* Entities of one text at a time, in three lists that grow to twice what they hold. */
static bool take_entities(struct call *c, struct refusal *why)
{
    int64_t most = 0;
    for (size_t i = 0; i < c->labels->count; i++) {
        const struct label_text *t = &c->labels->texts[i];
        int64_t bytes = 6 * ((int64_t)t->body.count * (int64_t)sizeof(struct entity) + word_bytes(c, t));
        if (bytes > most) most = bytes;
    }
    return call_take_bytes(c, most, why);
}

static bool read_texts(struct call *c, struct refusal *why)
{
    const struct node *input = c->ask.input;
    bool many = input && input->kind == NODE_LIST;
    size_t count = many ? node_count(input) : 1;
    if (!input) return refuse(why, 422, "input", "missing_parameter", "input is missing: a text");
    if (!count || count > MOST_TEXTS)
        return refuse(why, 422, "input", "invalid_value", "input: write 1 to %d of them", MOST_TEXTS);
    if (!call_take_prompts(c, (int64_t)count, why)) return false;
    c->labels = calloc(1, sizeof *c->labels);
    if (c->labels) c->labels->texts = calloc(count, sizeof *c->labels->texts);
    if (!c->labels || !c->labels->texts)
        return refuse(why, 503, NULL, "out_of_memory", "out of memory for %zu texts", count);
    if (!check_kind(c, why) || !keep_ignored(c->labels, c->ask.ignored_labels, why)) return false;
    for (size_t i = 0; i < count; i++)
        if (!add_text(c, many ? node_item(input, i) : input, why)) return false;
    return take_entities(c, why);
}

/* --- answers ---------------------------------------------------------------------------------------------------- */

static void put_entities(struct call *c, int i, struct json_writer *w)
{
    const struct label_text *t = &c->labels->texts[i];
    struct entity_list list = {0};
    struct entity_how how = classifier_how(&c->server->classifier, c->ask.aggregation,
                                           c->labels->ignored_given ? &c->labels->ignored : NULL);
    if (entities_of_row(&list, &how, t, &t->rows[0], c->choices[i].vector, NULL) != PLIM_OK)
        w->out->failed = true;
    json_begin_array(w, "entities");
    for (size_t k = 0; k < list.count; k++) classifier_write_entity(&list, k, c->ask.aggregation, w);
    json_end_array(w);
    entity_list_release(&list);
}

static void put_labels(struct call *c, int i, struct json_writer *w)
{
    const struct classifier *labels = &c->server->classifier;
    float *scores = c->choices[i].vector;
    classifier_scores(labels, c->ask.function, scores);
    json_str(w, "label", labels->names.list.items[classifier_best(labels, scores)]);
    json_begin_array(w, "probs");
    for (int64_t k = 0; k < labels->spec->num_labels; k++) json_float(w, NULL, scores[k]);
    json_end_array(w);
    json_int(w, "num_classes", labels->spec->num_labels);
    if (c->ask.given_top_k) classifier_write_labels(labels, scores, c->ask.top_k, "labels", w);
}

static void put_whole(struct call *c, struct strbuf *out)
{
    bool tokens = classifier_of_tokens(&c->server->classifier);
    struct json_writer w = json_object(out, 0);
    json_str(&w, "id", c->id);
    json_str(&w, "object", "list");
    json_int(&w, "created", c->created);
    json_str(&w, "model", c->server->model.name);
    json_begin_array(&w, "data");
    for (int i = 0; i < c->count; i++) {
        json_begin_object(&w, NULL);
        json_int(&w, "index", i);
        (tokens ? put_entities : put_labels)(c, i, &w);
        json_end_object(&w);
    }
    json_end_array(&w);
    json_begin_object(&w, "usage");
    json_int(&w, "prompt_tokens", c->prompt_tokens);
    json_int(&w, "total_tokens", c->prompt_tokens);
    json_int(&w, "completion_tokens", 0);
    json_end_object(&w);
    json_end_object(&w);
}

static const struct call_form form = {.whole = put_whole,
                                      .bytes = answer_bytes,
                                      .most = MOST_TEXTS,
                                      .prefix = "classify",
                                      .ask = ASK_CLASSIFY,
                                      .read = read_texts};

void api_classify(struct server *s, struct http_exchange *x) { call_answer(s, x, &form); }
