/* ask.h - the parameters of a request's body, in every form that clients use.
 *
 *     struct ask ask;
 *     if (!ask_read(&doc->root, ASK_COMPLETION, &ask, &why)) return reply_refusal(s, x, &why);
 *     ... ask.max_tokens, ask.sampling ...
 *
 * One table has a row for every parameter of every form: its name, its range, its destination. Parameters without an
 * effect here (user, store) are accepted. Unsupported parameters (tools, logit_bias, best_of) are accepted only at
 * their default value. Everything else is refused by name, with the nearest known name. null means absent. Texts and
 * nodes point into the document.
 */
#pragma once

#include "base/node.h"
#include "serve/classify.h"
#include "serve/refusal.h"
#include "tensor/sample.h"
#include "serve/stop_text.h"

enum ask_form {
    ASK_COMPLETION = 1, /* /v1/completions */
    ASK_CHAT = 2,       /* /v1/chat/completions */
    ASK_GENERATE = 4,   /* /generate {prompt, max_tokens} */
    ASK_TGI = 8,        /* /generate {inputs, parameters}: the parameters */
    ASK_TGI_OUTER = 16, /* ... and the fields around them */
    ASK_TOKENIZE = 32,
    ASK_DETOKENIZE = 64,
    ASK_EMBED = 128,
    ASK_CLASSIFY = 256,
};

enum { ASK_STOPS = 16, ASK_CHOICES = 128, ASK_STOP_BYTES = 256 };

struct ask {
    const char *model;        /* NULL: the served model */
    const struct node *input; /* prompt, inputs, messages or tokens */
    int64_t max_tokens;       /* -1: as many as the context leaves */
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, seed, n;
    bool stream, echo, ignore_eos, details, do_sample, logprobs_wanted, special, usage_wanted;
    int64_t logprobs; /* -1: none; n: the token and the n likeliest */
    struct stop_string stop[ASK_STOPS];
    int stops;
    const struct node *variables, *parameters; /* of the chat template; of TGI's form */
    bool tgi;                                  /* the form is TGI's */
    bool base64;                               /* vectors as bytes, not as numbers */
    bool generation_prompt;
    enum aggregation aggregation;      /* of labelled tokens */
    enum label_function function;      /* of labelled texts */
    const struct node *ignored_labels; /* a list of texts; NULL: the usual */
    bool given_temperature, given_top_p, given_top_k, given_seed, given_max;
};

/* Reads a map into *out. Returns false with *why set: 422, or 400 when the body is not a map. */
bool ask_read(const struct node *root, enum ask_form form, struct ask *out, struct refusal *why);

/* Sampling parameters for the engine; temperature 0 where a form means greedy. `seed` is used when none was given. */
struct sampling ask_sampling(const struct ask *ask, uint64_t seed);
