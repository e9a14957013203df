/* ask.c - see ask.h. The table is the whole of it: a row per parameter, with the forms that have it. */
#include "serve/ask.h"
#include "base/nearest.h"
#include "serve/engine.h"

#include <math.h>
#include <string.h>

enum kind {
    KIND_INT,
    KIND_FLOAT,
    KIND_BOOL,
    KIND_TEXT,
    KIND_NODE,    /* kept as it is */
    KIND_NAME,    /* one of `names`, as its number */
    KIND_SPECIAL, /* has a function */
    KIND_NEUTRAL, /* must be a number equal to `least`, false, "none", or empty */
    KIND_IGNORED,
};

struct row {
    const char *name;
    unsigned forms;
    enum kind kind;
    size_t offset;
    double least, most;
    size_t given; /* of a bool that becomes true, + 1; 0: none */
    bool (*read)(const struct node *value, struct ask *out, struct refusal *why);
    const char *const *names; /* ends with NULL */
};

/* --- values that are more than a number -------------------------------------------------------------------- */

static bool add_stop(const struct node *value, struct ask *out, struct refusal *why)
{
    if (!value || value->kind != NODE_STRING || !value->as.string.len ||
        value->as.string.len > ASK_STOP_BYTES)
        return refuse(why, 422, "stop", "invalid_value",
                      "stop: write a text of 1 to %d bytes, or a list of them", ASK_STOP_BYTES);
    if (out->stops == ASK_STOPS)
        return refuse(why, 422, "stop", "invalid_value", "stop: at most %d strings", ASK_STOPS);
    out->stop[out->stops++] = (struct stop_string){value->as.string.text, value->as.string.len};
    return true;
}

static bool read_stop(const struct node *value, struct ask *out, struct refusal *why)
{
    if (value->kind != NODE_LIST) return add_stop(value, out, why);
    for (size_t i = 0; i < node_count(value); i++)
        if (!add_stop(node_item(value, i), out, why)) return false;
    return true;
}

/* A number for completions, true or false for chats. */
static bool read_logprobs(const struct node *value, struct ask *out, struct refusal *why)
{
    int64_t n = 0;
    if (value->kind == NODE_BOOL) return out->logprobs_wanted = value->as.boolean, true;
    if (!node_is_whole(value, &n) || n < 0 || n > ENGINE_LOGPROBS)
        return refuse(why, 422, "logprobs", "invalid_value", "logprobs: write a whole number from 0 to %d",
                      ENGINE_LOGPROBS);
    out->logprobs_wanted = true, out->logprobs = n;
    return true;
}

static bool read_stream_options(const struct node *value, struct ask *out, struct refusal *why)
{
    const struct node *usage = node_get(value, "include_usage");
    if (value->kind != NODE_MAP || (usage && usage->kind != NODE_BOOL))
        return refuse(why, 422, "stream_options", "invalid_value",
                      "stream_options: write {\"include_usage\": true}");
    out->usage_wanted = node_bool(usage, false);
    return true;
}

/* All of the text, whatever bytes it has. */
static bool is_text(const struct node *value, const char *text)
{
    return value && value->kind == NODE_STRING && value->as.string.len == strlen(text) &&
           !memcmp(value->as.string.text, text, value->as.string.len);
}

static bool read_response_format(const struct node *value, struct ask *, struct refusal *why)
{
    if (is_text(node_get(value, "type"), "text")) return true;
    return refuse(why, 422, "response_format", "unsupported_value",
                  "response_format: only {\"type\": \"text\"} is supported");
}

static bool read_encoding(const struct node *value, struct ask *out, struct refusal *why)
{
    out->base64 = is_text(value, "base64");
    if (out->base64 || is_text(value, "float")) return true;
    return refuse(why, 422, "encoding_format", "invalid_value",
                  "encoding_format: write \"float\" or \"base64\"");
}

static bool read_ignored(const struct node *value, struct ask *out, struct refusal *why)
{
    bool good = value->kind == NODE_LIST;
    for (size_t i = 0; good && i < node_count(value); i++) good = node_item(value, i)->kind == NODE_STRING;
    out->ignored_labels = value;
    return good ||
           refuse(why, 422, "ignore_labels", "invalid_value", "ignore_labels: write a list of labels");
}

/* --- the table ----------------------------------------------------------------------------------------------- */

#define AT(field)    offsetof(struct ask, field)
#define GIVEN(field) (offsetof(struct ask, field) + 1)
#define OPENAI       (ASK_COMPLETION | ASK_CHAT)
#define OURS         (OPENAI | ASK_GENERATE)
#define TEXTS        (OURS | ASK_TGI)
#define ANY          (OURS | ASK_TOKENIZE | ASK_DETOKENIZE | ASK_EMBED | ASK_CLASSIFY | ASK_TGI_OUTER)
#define MOST_TOKENS  100000000.0
#define MOST_INT     9.2e18

static const struct row rows[] = {
    {"model", ANY, KIND_TEXT, AT(model)},
    {"prompt", ASK_COMPLETION | ASK_GENERATE | ASK_TOKENIZE, KIND_NODE, AT(input)},
    {"messages", ASK_CHAT | ASK_TOKENIZE, KIND_NODE, AT(input)},
    {"inputs", ASK_TGI_OUTER, KIND_NODE, AT(input)},
    {"parameters", ASK_TGI_OUTER, KIND_NODE, AT(parameters)},
    {"tokens", ASK_DETOKENIZE, KIND_NODE, AT(input)},
    {"input", ASK_EMBED | ASK_CLASSIFY, KIND_NODE, AT(input)},
    {"max_tokens", OURS, KIND_INT, AT(max_tokens), 0, MOST_TOKENS, GIVEN(given_max)},
    {"max_completion_tokens", ASK_CHAT, KIND_INT, AT(max_tokens), 0, MOST_TOKENS, GIVEN(given_max)},
    {"max_new_tokens", ASK_TGI, KIND_INT, AT(max_tokens), 1, MOST_TOKENS, GIVEN(given_max)},
    {"temperature", TEXTS, KIND_FLOAT, AT(temperature), 0, 100, GIVEN(given_temperature)},
    {"top_p", TEXTS, KIND_FLOAT, AT(top_p), 0, 1, GIVEN(given_top_p)},
    {"top_k", TEXTS, KIND_INT, AT(top_k), -1, MOST_TOKENS, GIVEN(given_top_k)},
    {"min_p", OURS, KIND_FLOAT, AT(min_p), 0, 1},
    {"repetition_penalty", TEXTS, KIND_FLOAT, AT(repetition_penalty), 0.01, 100},
    {"presence_penalty", OURS, KIND_FLOAT, AT(presence_penalty), -2, 2},
    {"frequency_penalty", TEXTS, KIND_FLOAT, AT(frequency_penalty), -2, 2},
    {"seed", TEXTS, KIND_INT, AT(seed), -MOST_INT, MOST_INT, GIVEN(given_seed)},
    {"n", OPENAI, KIND_INT, AT(n), 1, ASK_CHOICES},
    {"stop", TEXTS, KIND_SPECIAL, .read = read_stop},
    {"stop_sequences", ASK_TGI, KIND_SPECIAL, .read = read_stop},
    {"stream", OURS | ASK_TGI_OUTER, KIND_BOOL, AT(stream)},
    {"stream_options", OPENAI, KIND_SPECIAL, .read = read_stream_options},
    {"logprobs", OPENAI, KIND_SPECIAL, .read = read_logprobs},
    {"top_logprobs", ASK_CHAT, KIND_INT, AT(logprobs), 0, ENGINE_LOGPROBS},
    {"echo", ASK_COMPLETION, KIND_BOOL, AT(echo)},
    {"ignore_eos", OURS, KIND_BOOL, AT(ignore_eos)},
    {"details", ASK_TGI, KIND_BOOL, AT(details)},
    {"do_sample", ASK_TGI, KIND_BOOL, AT(do_sample)},
    {"return_full_text", ASK_TGI, KIND_BOOL, AT(echo)},
    {"add_special_tokens", ASK_COMPLETION | ASK_GENERATE | ASK_TOKENIZE | ASK_EMBED, KIND_BOOL, AT(special)},
    {"add_generation_prompt", ASK_CHAT | ASK_TOKENIZE, KIND_BOOL, AT(generation_prompt)},
    {"chat_template_kwargs", ASK_CHAT | ASK_TOKENIZE, KIND_NODE, AT(variables)},
    {"response_format", OPENAI, KIND_SPECIAL, .read = read_response_format},
    {"best_of", ASK_COMPLETION | ASK_TGI, KIND_NEUTRAL, .least = 1},
    {"suffix", ASK_COMPLETION, KIND_NEUTRAL},
    {"logit_bias", OPENAI, KIND_NEUTRAL},
    {"tools", ASK_CHAT, KIND_NEUTRAL},
    {"functions", ASK_CHAT, KIND_NEUTRAL},
    {"tool_choice", ASK_CHAT, KIND_NEUTRAL},
    {"typical_p", ASK_TGI, KIND_NEUTRAL, .least = 1},
    {"top_n_tokens", ASK_TGI, KIND_NEUTRAL},
    {"truncate", ASK_TGI, KIND_NEUTRAL},
    {"watermark", ASK_TGI, KIND_NEUTRAL},
    {"decoder_input_details", ASK_TGI, KIND_NEUTRAL},
    {"user", ANY, KIND_IGNORED},
    {"store", ANY, KIND_IGNORED},
    {"metadata", ANY, KIND_IGNORED},
    {"service_tier", ANY, KIND_IGNORED},
    {"safety_identifier", ANY, KIND_IGNORED},
    {"prompt_cache_key", ANY, KIND_IGNORED},
    {"parallel_tool_calls", ASK_CHAT, KIND_IGNORED},
    {"return_token_strs", ASK_TOKENIZE, KIND_IGNORED},
    {"encoding_format", ASK_EMBED, KIND_SPECIAL, .read = read_encoding},
    {"dimensions", ASK_EMBED, KIND_NEUTRAL},
    {"aggregation_strategy", ASK_CLASSIFY, KIND_NAME, AT(aggregation), .names = aggregation_names},
    {"ignore_labels", ASK_CLASSIFY, KIND_SPECIAL, .read = read_ignored},
    {"top_k", ASK_CLASSIFY, KIND_INT, AT(top_k), 0, MOST_TOKENS, GIVEN(given_top_k)},
    {"function_to_apply", ASK_CLASSIFY, KIND_NAME, AT(function), .names = label_function_names},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static bool is_neutral(const struct node *value, const struct row *row)
{
    switch (value->kind) {
    case NODE_NULL:
        return true;
    case NODE_BOOL:
        return !value->as.boolean;
    case NODE_INT:
    case NODE_FLOAT:
        return fabs(node_float(value, -1) - row->least) < 1e-9;
    case NODE_STRING:
        return !value->as.string.len || is_text(value, "none");
    case NODE_LIST:
    case NODE_MAP:
        return !node_count(value);
    }
    return false;
}

/* --- rows -------------------------------------------------------------------------------------------------- */

/* An enum has the size of an int. */
static bool read_name(const struct row *row, const struct node *value, int *out, struct refusal *why)
{
    STRBUF_AUTO known = STRBUF_INIT;
    for (int i = 0; row->names[i]; i++) {
        if (is_text(value, row->names[i])) return *out = i, true;
        strbuf_addf(&known, "%s%s", i ? ", " : "", row->names[i]);
    }
    return refuse(why, 422, row->name, "invalid_value", "%s: write one of %s", row->name,
                  strbuf_text(&known));
}

static bool wrong(const struct row *row, const struct node *value, const char *wanted, struct refusal *why)
{
    return refuse(why, 422, row->name, "invalid_value", "%s: expected %s, got %s", row->name, wanted,
                  node_kind_name(value->kind));
}

static bool out_of_range(const struct row *row, double got, struct refusal *why)
{
    return refuse(why, 422, row->name, "invalid_value", "%s: %g is outside the range from %g to %g",
                  row->name, got, row->least, row->most);
}

static bool read_row(const struct row *row, const struct node *value, struct ask *out, struct refusal *why)
{
    void *to = (char *)out + row->offset;
    int64_t whole;
    double number;
    switch (row->kind) {
    case KIND_INT:
        if (!node_is_whole(value, &whole)) return wrong(row, value, "a whole number", why);
        if ((double)whole < row->least || (double)whole > row->most)
            return out_of_range(row, (double)whole, why);
        return *(int64_t *)to = whole, true;
    case KIND_FLOAT:
        if (value->kind != NODE_INT && value->kind != NODE_FLOAT) return wrong(row, value, "a number", why);
        number = node_float(value, 0);
        if (!(number >= row->least && number <= row->most)) return out_of_range(row, number, why);
        return *(double *)to = number, true;
    case KIND_BOOL:
        if (value->kind != NODE_BOOL) return wrong(row, value, "true or false", why);
        return *(bool *)to = value->as.boolean, true;
    case KIND_TEXT:
        if (value->kind != NODE_STRING) return wrong(row, value, "a text", why);
        if (strlen(value->as.string.text) != value->as.string.len)
            return refuse(why, 422, row->name, "invalid_value", "%s: no name has U+0000 in it", row->name);
        return *(const char **)to = value->as.string.text, true;
    case KIND_NODE:
        return *(const struct node **)to = value, true;
    case KIND_NAME:
        return read_name(row, value, to, why);
    case KIND_SPECIAL:
        return row->read(value, out, why);
    case KIND_NEUTRAL:
        if (is_neutral(value, row)) return true;
        return refuse(why, 422, row->name, "unsupported_parameter", "%s is not supported by this server",
                      row->name);
    case KIND_IGNORED:
        return true;
    }
    return false;
}

static const struct row *find_row(const struct node *value, enum ask_form form, struct nearest *near)
{
    for (int i = 0; i < ROWS; i++) {
        if (!(rows[i].forms & (unsigned)form)) continue;
        if (strlen(rows[i].name) == value->key_len && !strcmp(rows[i].name, value->key)) return &rows[i];
        nearest_offer(near, rows[i].name);
    }
    return NULL;
}

static bool read_all(const struct node *root, enum ask_form form, struct ask *out, struct refusal *why)
{
    for (size_t i = 0; i < node_count(root); i++) {
        const struct node *value = node_item(root, i);
        if (!value->key[0]) return refuse(why, 400, NULL, "unknown_parameter", "a parameter has no name");
        struct nearest near = nearest_begin(value->key);
        const struct row *row = find_row(value, form, &near);
        if (!row)
            return refuse(why, 422, value->key, "unknown_parameter", "unknown parameter '%.60s'%s%s%s",
                          value->key, near.best ? "; did you mean '" : "", near.best ? near.best : "",
                          near.best ? "'?" : "");
        if (value->kind == NODE_NULL) continue;
        if (!read_row(row, value, out, why)) return false;
        if (row->given) *((bool *)out + row->given - 1) = true;
    }
    return true;
}

static bool check_together(enum ask_form form, struct ask *out, struct refusal *why)
{
    bool top = out->logprobs >= 0;
    if (form == ASK_CHAT && top && !out->logprobs_wanted)
        return refuse(why, 422, "top_logprobs", "invalid_value", "top_logprobs needs \"logprobs\": true");
    if (out->logprobs_wanted && !top) out->logprobs = 0;
    if (!out->logprobs_wanted && form != ASK_TGI) out->logprobs = -1;
    if (form == ASK_TGI && out->details) out->logprobs = 0;
    if (out->top_k < 0) out->top_k = 0;
    if (out->given_max && !out->max_tokens && !(out->echo && form == ASK_COMPLETION))
        return refuse(why, 422, "max_tokens", "invalid_value",
                      "max_tokens: 0 asks for nothing; write 1 or more");
    if (out->usage_wanted && !out->stream)
        return refuse(why, 422, "stream_options", "invalid_value", "stream_options needs \"stream\": true");
    return true;
}

static int64_t default_tokens(enum ask_form form)
{
    return form == ASK_COMPLETION ? 16 : form == ASK_CHAT ? -1 : 100;
}

bool ask_read(const struct node *root, enum ask_form form, struct ask *out, struct refusal *why)
{
    *out = (struct ask){.max_tokens = default_tokens(form),
                        .temperature = 1,
                        .top_p = 1,
                        .n = 1,
                        .logprobs = -1,
                        .special = true,
                        .generation_prompt = true};
    if (!root || root->kind != NODE_MAP)
        return refuse(why, 400, NULL, "invalid_json", "the body must be a JSON object");
    return read_all(root, form, out, why) && check_together(form, out, why);
}

struct sampling ask_sampling(const struct ask *ask, uint64_t seed)
{
    return (struct sampling){.temperature = ask->temperature,
                             .top_k = ask->top_k,
                             .top_p = ask->top_p > 0 ? ask->top_p : 1e-9, /* 0: the likeliest alone */
                             .min_p = ask->min_p,
                             .repetition_penalty = ask->repetition_penalty,
                             .presence_penalty = ask->presence_penalty,
                             .frequency_penalty = ask->frequency_penalty,
                             .seed = ask->given_seed ? (uint64_t)ask->seed : seed};
}
