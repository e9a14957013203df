/* call.h - one request on its way: its prompts in the engine, the tokens that come back, the text they become.
 *
 *     struct call *c = call_new(s, x, &form);
 *     ... c->ask, call_add_prompt(c, ...)
 *     if (!call_start(c, &why)) call_refuse(c, &why);
 *
 * The engine's thread only puts tokens down (hear) and wakes the exchange; call_more turns them into text on a thread of
 * the front, looks for stop strings, and lets the form write. A request with n choices is n requests of the engine.
 *
 * Who holds a call: the exchange until its end, and the engine once for each choice it was given until that choice's last
 * event. call.lock guards what both touch: the exchange, the events that wait, and the number of holders.
 *
 *     call_new -> call_start -> call_more ... -> call_end       answered, or the client has gone
 *             \-> call_refuse                                   a refusal was answered
 */
#ifndef PLIM_SERVE_CALL_H
#define PLIM_SERVE_CALL_H

#include "serve/server_part.h"
#include "text/token_place.h"

enum choice_end { CHOICE_RUNS, CHOICE_LENGTH, CHOICE_EOS, CHOICE_STOP, CHOICE_FAILED, CHOICE_CANCELLED };

/* A token that has come, as the engine said it. */
struct call_event {
    int32_t token;
    float logprob;
    int ntop;
    bool prompt; /* of the prompt, not of the answer */
    enum engine_finish finish;
    int64_t shared; /* prompt tokens found in blocks of others */
    double when;
};

/* A token whose place in the text and likelihood are told. */
struct mark {
    int32_t token;
    float logprob;
    bool prompt;
    size_t offset; /* in the text before a stop string cut it, where it begins: characters */
    int ntop, top; /* the first of them in tops */
};

struct choice {
    struct call *call;
    int index, prompt;
    int64_t id; /* the engine's */
    /* Guarded by the lock: */
    bool submitted, heard_end, overrun;
    struct call_event *events;
    size_t taken, count, cap; /* those before `taken` were read */
    struct engine_logprob *event_tops;
    size_t tops_taken, event_top_count, event_top_cap;
    char why[256];
    float *vector; /* of an encoder, once its end was heard */
    /* The front's: */
    struct token_text decoder;
    struct stop_text stop;
    struct strbuf text; /* all of it, behind the prompt where that is echoed */
    size_t told;        /* of text: sent in a stream */
    size_t echoed;      /* of text: the prompt */
    size_t escapes;     /* bytes that its JSON has beside those of the text */
    size_t
        text_most; /* bytes that text and escapes may come to beside the echo; an answer of more ends there */
    struct token_place place;
    struct prompt_place {
        struct token_text decoder;
        struct token_place place;
        size_t bytes;    /* of the echoed text that its tokens have come to */
        bool after_mark; /* the last one was special */
    } echo;              /* of the prompt's tokens, when those are told */
    struct mark *marks;  /* kept when somebody wants them */
    size_t mark_count, mark_cap, marks_told;
    struct engine_logprob *tops;
    size_t top_count, top_cap;
    int64_t tokens, shared;
    double last; /* token came */
    enum choice_end end;
    bool end_told;
};

struct call;
struct call_prompt;
struct label_job; /* of /v1/classify: the texts, and what is asked of their labels */
void label_job_free(struct label_job *job);

/* Events that are read at once: as much as is made of a stream before it is sent. */
enum { CALL_EVENTS = 64 };

/* How an endpoint writes what comes. All write to `out`; streams in events. */
struct call_form {
    void (*open)(struct call *c, struct strbuf *out); /* a stream begins; NULL: nothing */
    void (*piece)(struct call *c, struct choice *ch,
                  struct strbuf *out);                 /* text, marks or an end not yet told */
    void (*close)(struct call *c, struct strbuf *out); /* a stream ends */
    void (*whole)(struct call *c, struct strbuf *out);
    /* What the answer to one prompt may take; NULL: the usual. */
    int64_t (*bytes)(const struct call *c, const struct call_prompt *p);
    bool marks; /* wanted whether likelihoods are or not */
    int most;   /* prompts of a request; 0: ASK_CHOICES */
};

struct call {
    struct server *server;
    const struct call_form *form;
    struct doc *doc; /* the body, which ask points into; NULL once it was started */
    struct ask ask;  /* from then on without its texts */
    struct strbuf stops;
    struct call_prompt {
        struct token_list ids; /* until they are queued */
        int64_t count;         /* of them */
        int64_t second;        /* where the second segment begins; 0: there is none */
        struct strbuf text;    /* to be echoed */
        bool listed;           /* it came as ids: special ones are in the text */
    } * prompts;
    int prompt_count;
    struct label_job *labels; /* NULL: none are asked for */
    struct choice *choices;
    int count;
    int64_t prompt_tokens;
    int64_t tokens_most; /* of an answer, where the request does not say */
    char id[48];
    int64_t created;
    double began;
    bool streams;
    struct strbuf piece; /* scratch of call_more */

    pthread_mutex_t lock;
    struct http_exchange *exchange; /* NULL: it has ended */
    int holders;
    int64_t reserved;            /* of server.answers, guarded by its lock */
    struct call *before, *after; /* all calls of the server, guarded by its lock */
};

/* Reads nothing yet. NULL: no memory. */
struct call *call_new(struct server *s, struct http_exchange *x, const struct call_form *form,
                      const char *prefix);
/* Counts bytes among those of all answers, until the call is freed. */
bool call_take_bytes(struct call *c, int64_t bytes, struct refusal *why);
/* Before prompts are read: so many, each with its choices. */
bool call_take_prompts(struct call *c, int64_t count, struct refusal *why);
/* Another prompt; its ids are taken over. */
bool call_add_prompt(struct call *c, struct token_list *ids, struct refusal *why);
/* The body's prompt or prompts: a text, token ids, or a list of either. `param` is what the body calls them. */
bool call_read_prompts(struct call *c, const char *param, struct refusal *why);
/* Queues everything, all or nothing. */
bool call_start(struct call *c, struct refusal *why);
/* Answers with the refusal and lets go. */
void call_refuse(struct call *c, const struct refusal *why);
/* After http_wake; at the end of the exchange. */
void call_more(struct call *c);
void call_end(struct call *c);

/* Everything under way ends as failed, although the engine has not said so. From any thread. */
void call_fail_all(struct server *s, const char *why);

/* For forms. */
int64_t call_answer_tokens(const struct call *c);
int64_t call_shared_tokens(const struct call *c);

#endif
