/* ask.h - what a request's body asks for, in whichever of the forms clients speak.
 *
 *     struct ask ask;
 *     if (!ask_read(&doc->root, ASK_COMPLETION, &ask, &why)) return reply_refusal(x, &why);
 *     ... ask.max_tokens, ask.sampling, ask_stop(...)
 *
 * One table has a row for every parameter of every form: its name, its range, where it goes. A parameter that is known
 * and changes nothing here (user, store) is taken; one whose wish cannot be fulfilled (tools, logit_bias, best_of) is taken
 * only with the value that asks for nothing; everything else is refused by name, with the nearest known one. null means
 * absent. Texts and nodes point into the document.
 */
#ifndef PLIM_SERVE_ASK_H
#define PLIM_SERVE_ASK_H

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
    ASK_TGI_OUTER = 16, /* ... and what stands around them */
    ASK_TOKENIZE = 32,
    ASK_DETOKENIZE = 64,
    ASK_EMBED = 128,
    ASK_CLASSIFY = 256,
};

enum { ASK_STOPS = 16, ASK_CHOICES = 128, ASK_STOP_BYTES = 256 };

struct ask {
    const char *model;        /* NULL: whichever there is */
    const struct node *input; /* prompt, inputs, messages or tokens */
    int64_t max_tokens;       /* -1: as many as the context leaves */
    double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
    int64_t top_k, seed, n;
    bool stream, echo, ignore_eos, details, do_sample, logprobs_wanted, special, usage_wanted;
    int64_t logprobs; /* -1: none; otherwise so many of the likeliest beside the token's own */
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

/* A map is read into *out. False: *why says what is wrong (422; 400 when it is no map at all). */
bool ask_read(const struct node *root, enum ask_form form, struct ask *out, struct refusal *why);

/* The engine's numbers: what was asked, with temperature 0 where a form means greedy. `seed` stands where none was given. */
struct sampling ask_sampling(const struct ask *ask, uint64_t seed);

#endif
