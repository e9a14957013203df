/* call.h - one HTTP request: its prompts in the engine, the tokens that come back, and their text.
 *
 *     call_answer(s, x, &form);          // form.read: c->ask, call_add_prompt(c, ...)
 *
 * The engine's thread only stores tokens (hear) and, once it has reported a whole step, wakes the exchanges: an HTTP thread that
 * is woken for each token alone looks through all its connections for each. call_more turns them into text on an HTTP
 * thread, looks for stop strings, and lets the form write. A request with n choices becomes n engine requests.
 *
 * A call is referenced by the exchange until its end, and by the engine once per choice until that choice's last
 * event. call.lock guards what both touch: the exchange, the waiting events, and the reference count.
 *
 *     call_answer -> call_more ... -> call_end       answered, or the client has gone
 *                \-> a refusal was answered
 */
#pragma once

#include "serve/engine_adapters.h"
#include "serve/server_part.h"
#include "text/token_place.h"

enum choice_end { CHOICE_RUNS, CHOICE_LENGTH, CHOICE_EOS, CHOICE_STOP, CHOICE_FAILED, CHOICE_CANCELLED };

/* A token as reported by the engine. */
struct call_event {
    int32_t token;
    float logprob;
    int ntop;
    bool prompt; /* of the prompt, not of the answer */
    enum engine_finish finish;
    int64_t shared; /* prompt tokens found in blocks of others */
    double when;
};

/* A token with its offset in the text and its logprob. */
struct mark {
    int32_t token;
    float logprob;
    bool prompt;
    size_t offset; /* where it begins, in characters, before a stop string cuts the text */
    int ntop, top; /* the first of them in tops */
};

struct choice {
    struct call *call;
    int index, prompt;
    int64_t id; /* the engine's */
    /* Guarded by the lock: */
    bool submitted, heard_end, overrun;
    struct call_event *events;
    size_t taken, count, cap; /* events before `taken` were read */
    struct engine_logprob *event_tops;
    size_t tops_taken, event_top_count, event_top_cap;
    char why[256];
    float *vector; /* of an encoder, once its end was heard */
    /* The front's: */
    struct token_text decoder;
    struct stop_text stop;
    struct strbuf
        text; /* after the echoed prompt if there is one; in a stream that does not end with all of it, what was not sent */
    size_t told;    /* of text: sent in a stream */
    size_t dropped; /* bytes before text: sent and freed */
    size_t echoed;  /* of all of it: the prompt */
    size_t escapes; /* extra bytes of its JSON form */
    /* Maximum bytes of text and escapes, not counting the echo; an answer ends there. */
    size_t text_most;
    struct token_place place;
    struct prompt_place {
        struct token_text decoder;
        struct token_place place;
        size_t bytes;    /* of echoed text covered by the tokens so far */
        bool after_mark; /* the last one was special */
    } echo;              /* of the prompt's tokens, when they are reported */
    struct mark *marks;  /* kept when requested */
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
struct label_job; /* of /v1/classify: the texts, and the labels requested */
void label_job_free(struct label_job *job);

/* Maximum events read at once: a stream sends after this many. */
enum { CALL_EVENTS = 64 };

/* How an endpoint writes an answer. All functions write to `out`; streams write events. */
struct call_form {
    void (*open)(struct call *c, struct strbuf *out); /* a stream begins; NULL: nothing */
    /* Writes text, marks or an end that was not sent yet. */
    void (*piece)(struct call *c, struct choice *ch, struct strbuf *out);
    void (*close)(struct call *c, struct strbuf *out); /* a stream ends */
    void (*whole)(struct call *c, struct strbuf *out); /* the whole answer, without a stream */
    /* Memory that the answer to one prompt may take. NULL: the usual estimate. */
    int64_t (*bytes)(const struct call *c, const struct call_prompt *p);
    bool marks;         /* needed even without logprobs */
    bool ends_with_all; /* a stream ends with the whole text */
    int most;           /* prompts of a request; 0: ASK_CHOICES */
    const char *prefix; /* of the answer's id */
    enum ask_form ask;
    /* Reads the body's prompts; `ask` has been read unless it is 0. */
    bool (*read)(struct call *c, struct refusal *why);
};

struct call {
    struct server *server;
    const struct call_form *form;
    struct doc *doc; /* the body, which ask points into; NULL once it is queued */
    struct ask ask;  /* once it is queued, without its texts */
    struct strbuf stops;
    struct call_prompt {
        struct token_list ids; /* until they are queued */
        int64_t count;         /* of them */
        int64_t second;        /* start of the second segment; 0: none */
        struct strbuf text;    /* to be echoed */
        bool listed;           /* given as ids: special tokens are part of the text */
    } * prompts;
    int prompt_count;
    struct label_job *labels; /* NULL: not requested */
    struct choice *choices;
    int count;
    int64_t prompt_tokens;
    int64_t tokens_most; /* maximum per answer when the request gives none */
    char id[48];
    char adapter[ENGINE_ADAPTER_NAME]; /* the model asked for, where it is one; "": none */
    int64_t created;
    double began;
    bool streams;
    struct strbuf piece; /* scratch of call_more */
    struct strbuf head;  /* beginning of every event of a stream, once there was one */
    struct json_writer behind_head;

    pthread_mutex_t lock;
    struct http_exchange *exchange; /* NULL: it has ended */
    int holders;
    bool waking;                 /* in server.waking, and held by it */
    struct call *wakes_next;     /* in that list: the stepping thread's */
    int64_t reserved;            /* of server.answers, guarded by its lock */
    struct call *before, *after; /* all calls of the server, guarded by its lock */
};

/* Reads a request of this form and queues it, or answers with a refusal. */
void call_answer(struct server *s, struct http_exchange *x, const struct call_form *form);
/* Reserves bytes for the answer until the call is freed. */
bool call_take_bytes(struct call *c, int64_t bytes, struct refusal *why);
/* Announces the number of prompts, each with its choices; call it before adding them. */
bool call_take_prompts(struct call *c, int64_t count, struct refusal *why);
/* Adds a prompt and takes over its ids. */
bool call_add_prompt(struct call *c, struct token_list *ids, struct refusal *why);
/* Adds the body's prompts: a text, token ids, or a list of either. `param` is their name in the body. */
bool call_read_prompts(struct call *c, const char *param, struct refusal *why);
/* After http_wake; at the end of the exchange. */
void call_more(struct call *c);
void call_end(struct call *c);

/* Ends every running choice as failed without waiting for the engine. Any thread may call it. */
void call_fail_all(struct server *s, const char *why);

/* Wakes the exchanges whose tokens were put down since the last time. For engine_on_told. */
void call_wake_all(void *server);

/* For forms. */
int64_t call_answer_tokens(const struct call *c);
int64_t call_shared_tokens(const struct call *c);

/* Makes room for `more` items after count in *array. Returns false when memory is short. */
bool call_room(void *array, size_t count, size_t more, size_t *cap, size_t size);
