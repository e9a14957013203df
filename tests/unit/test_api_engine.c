/* test_api_engine.c - the public engine (plimsoll/engine.h): wrong handles and options, events and their text, stop strings, who may step,
 * handlers that cancel and submit, a budget that moves, two engines at once, failing steps, and closing with requests under way. What a
 * request says is always what it says alone. */
#include "base/fault.h"
#include <plimsoll/plimsoll.h>

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

enum { ANSWER = 20, PROMPTS = 6, VOCAB = 157 };
#define BUDGET (16 << 20)

static char model[600], tokenizer[600], folder[400];
static struct plim_context *context;

static const char *const prompts[PROMPTS] = {"Once upon a time", "a",         "The quick brown fox jumps",
                                             "The quick red",    "[x] * {y}", "zebra"};

/* --- the model: golden weights and a tokenizer of one token for each printable character ------------------------ */

static void write_tokenizer(const char *path)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "{\"added_tokens\": [], \"normalizer\": null, \"post_processor\": null, \"pre_tokenizer\": "
               "{\"type\": \"ByteLevel\", "
               "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, \"decoder\": "
               "{\"type\": \"ByteLevel\", "
               "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, \"model\": "
               "{\"type\": \"BPE\", \"merges\": "
               "[], \"vocab\": {\"\\u0120\": 0");
    for (int i = 1; i < 95; i++)
        fprintf(f, ", \"%s%c\": %d", 32 + i == '"' || 32 + i == '\\' ? "\\" : "", 32 + i, i);
    for (int i = 95; i < VOCAB; i++) fprintf(f, ", \"%c%c\": %d", 'a' + (i - 95) / 8, 'a' + (i - 95) % 8, i);
    fprintf(f, "}}}\n");
    fclose(f);
}

static int set_up(void **state)
{
    (void)state;
    const char *src = getenv("SRC_DIR"), *tmp = getenv("TMPDIR");
    snprintf(model, sizeof model, "%s/tests/golden/llama-untied", src ? src : ".");
    snprintf(folder, sizeof folder, "%s/plimsoll-api-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(folder));
    snprintf(tokenizer, sizeof tokenizer, "%s/tokenizer.json", folder);
    write_tokenizer(tokenizer);
    return plim_context_open(NULL, &context, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    plim_context_close(context);
    unlink(tokenizer);
    return rmdir(folder);
}

static struct plim_engine_options options(void)
{
    return (struct plim_engine_options){.size = sizeof(struct plim_engine_options),
                                        .model = model,
                                        .device = "cpu",
                                        .tokenizer = tokenizer,
                                        .budget = BUDGET,
                                        .threads = 1};
}

static struct plim_engine *open_in(struct plim_context *in, const struct plim_engine_options *o)
{
    struct plim_engine *e;
    struct plim_error err = {0};
    if (plim_engine_open(in, o, &e, &err) != PLIM_OK) fail_msg("%s", err.text);
    return e;
}

static struct plim_engine *open_engine(void)
{
    struct plim_engine_options o = options();
    return open_in(context, &o);
}

/* --- what a request says ----------------------------------------------------------------------------------------- */

struct said {
    char text[512];
    size_t bytes;
    int32_t ids[64];
    int count, events;
    atomic_int ends;
    enum plim_finish finish;
    int cancel_after; /* tokens; 0: never */
    int64_t id;
    char why[256];
};

static int hear(void *arg, const struct plim_engine_event *event)
{
    struct said *s = arg;
    assert_int_equal(event->size, sizeof *event);
    assert_int_equal(s->ends, 0);
    memcpy(s->text + s->bytes, event->text, event->text_bytes);
    s->bytes += event->text_bytes, s->text[s->bytes] = '\0';
    if (event->token >= 0) s->ids[s->count++] = event->token;
    assert_int_equal(event->tokens, s->count);
    s->id = event->id, s->events++;
    if (event->why) snprintf(s->why, sizeof s->why, "%s", event->why);
    bool enough = s->cancel_after && s->count >= s->cancel_after;
    if (event->finish) s->finish = event->finish, s->ends++; /* last: who awaits it may use *s again */
    return enough;
}

static struct plim_request request(const char *prompt, struct said *said)
{
    *said = (struct said){0};
    return (struct plim_request){.size = sizeof(struct plim_request),
                                 .prompt = prompt,
                                 .max_tokens = ANSWER,
                                 .ignore_eos = 1,
                                 .hear = hear,
                                 .arg = said};
}

static void submit(struct plim_engine *e, const char *prompt, struct said *said)
{
    struct plim_request r = request(prompt, said);
    struct plim_error err = {0};
    int64_t id = 0;
    if (plim_engine_submit(e, &r, &id, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_true(id > 0);
}

static void run(struct plim_engine *e)
{
    struct plim_error err = {0};
    if (plim_engine_run(e, &err) != PLIM_OK) fail_msg("%s", err.text);
}

/* The answers, each from an engine of its own. */
static const struct said *alone(int i)
{
    static struct said answers[PROMPTS];
    if (!answers[i].ends) {
        struct plim_engine *e = open_engine();
        submit(e, prompts[i], &answers[i]);
        run(e);
        plim_engine_close(e);
    }
    return &answers[i];
}

static void same(const struct said *a, const struct said *b)
{
    assert_int_equal(a->ends, 1);
    assert_int_equal(a->finish, b->finish);
    assert_int_equal(a->count, b->count);
    assert_memory_equal(a->ids, b->ids, sizeof a->ids);
    assert_string_equal(a->text, b->text);
}

static void refused(enum plim_status got, const struct plim_error *err, enum plim_status wanted,
                    const char *words)
{
    if (got != wanted || !strstr(err->text, words) || strchr(err->text, '\n'))
        fail_msg("wanted %d with '%s', got %d: %s", wanted, words, got, err->text);
}

/* --- handles and options ----------------------------------------------------------------------------------------- */

static void wrong_handles(void **state)
{
    (void)state;
    struct plim_error err = {0};
    struct plim_engine *none = NULL, *e = NULL;
    struct plim_engine_options o = options();
    struct plim_engine_figures figures = {.size = sizeof figures};
    struct said said;
    struct plim_request r = request("a", &said);
    refused(plim_engine_open(NULL, &o, &e, &err), &err, PLIM_BAD_INPUT, "expected a plim_context, got NULL");
    refused(plim_engine_open(context, &o, NULL, &err), &err, PLIM_BAD_INPUT, "out is NULL");
    refused(plim_engine_step(none, NULL, &err), &err, PLIM_BAD_INPUT, "plim_engine_step");
    refused(plim_engine_submit((struct plim_engine *)context, &r, NULL, &err), &err, PLIM_BAD_INPUT,
            "expected a plim_engine, got plim_context");
    refused(plim_engine_figures(none, &figures, &err), &err, PLIM_BAD_INPUT, "got NULL");
    plim_engine_close(NULL), plim_engine_cancel(NULL, 1);
    assert_int_equal(plim_engine_run(none, NULL), PLIM_BAD_INPUT);
}

static void wrong_options(void **state)
{
    (void)state;
    static const struct {
        struct plim_engine_options o;
        enum plim_status status;
        const char *words;
    } cases[] = {
        {{.model = NULL}, PLIM_BAD_INPUT, "options.model"},
        {{.model = "/nowhere"}, PLIM_BAD_INPUT, "/nowhere"},
        {{.model = model, .device = "abacus"}, PLIM_BAD_INPUT, "options.device: 'abacus'"},
        {{.model = model, .weights = "q3"}, PLIM_BAD_INPUT, "options.weights: 'q3'"},
        {{.model = model, .kv_type = "i7"}, PLIM_BAD_INPUT, "options.kv_type: 'i7'"},
        {{.model = model, .threads = -1}, PLIM_BAD_INPUT, "options.threads"},
        {{.model = model, .parallel = 5000}, PLIM_BAD_INPUT, "options.parallel"},
        {{.model = model, .queue = -1}, PLIM_BAD_INPUT, "options.queue"},
        {{.model = model, .max_context = -1}, PLIM_BAD_INPUT, "options.max_context"},
        {{.model = model, .device = "cpu"}, PLIM_BAD_INPUT, "too small for the byte tokenizer"},
        {{.model = model, .device = "cpu", .tokenizer = tokenizer, .budget = 1 << 18},
         PLIM_NO_FIT,
         "does not fit"},
        {{.model = model, .device = "cpu", .tokenizer = tokenizer, .budget = 1 << 10},
         PLIM_NO_FIT,
         "tokenizer.json"},
        {{.model = model, .device = "cpu", .tokenizer = tokenizer, .budget = 1ull << 60},
         PLIM_BAD_INPUT,
         "options.budget"},
    };
    struct plim_engine *e = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plim_error err = {0};
        struct plim_engine_options o = cases[i].o;
        o.size = sizeof o;
        refused(plim_engine_open(context, &o, &e, &err), &err, cases[i].status, cases[i].words);
        assert_null(e);
    }
    struct plim_error err = {0};
    struct plim_engine_options o = options();
    o.size = sizeof o + 8;
    refused(plim_engine_open(context, &o, &e, &err), &err, PLIM_BAD_INPUT, "options.size");
    char encoder[600];
    snprintf(encoder, sizeof encoder, "%.*s/bert-labels", (int)(strrchr(model, '/') - model), model);
    o = options(), o.model = encoder;
    refused(plim_engine_open(context, &o, &e, &err), &err, PLIM_UNSUPPORTED, "plim_embedder_open");
}

static void wrong_requests(void **state)
{
    (void)state;
    struct plim_engine *e = open_engine();
    struct plim_error err = {0};
    struct said said;
    const char *stop[] = {"", NULL};
    int32_t beyond = VOCAB;
    struct plim_request r = request(NULL, &said);
    refused(plim_engine_submit(e, &r, NULL, &err), &err, PLIM_BAD_INPUT, "either");
    refused(plim_engine_submit(e, NULL, NULL, &err), &err, PLIM_BAD_INPUT, "either");
    r.ids = &beyond, r.id_count = 1;
    refused(plim_engine_submit(e, &r, NULL, &err), &err, PLIM_BAD_INPUT, "plim_engine_submit");
    r = request("", &said);
    refused(plim_engine_submit(e, &r, NULL, &err), &err, PLIM_BAD_INPUT, "empty");
    r = request("a", &said), r.stop = stop;
    refused(plim_engine_submit(e, &r, NULL, &err), &err, PLIM_BAD_INPUT, "request.stop");
    r = request("a", &said), r.temperature = -1;
    refused(plim_engine_submit(e, &r, NULL, &err), &err, PLIM_BAD_INPUT, "temperature");
    r = request("a", &said), r.max_tokens = 1000;
    refused(plim_engine_submit(e, &r, NULL, &err), &err, PLIM_NO_FIT, "1000");
    r = request("[]", &said), r.chat = 1;
    refused(plim_engine_submit(e, &r, NULL, &err), &err, PLIM_NOT_FOUND, "chat");
    assert_int_equal(said.events, 0);
    plim_engine_close(e);
}

/* --- answers --------------------------------------------------------------------------------------------------------- */

static void answers_are_their_own(void **state)
{
    (void)state;
    struct said said[PROMPTS];
    struct plim_engine_figures figures = {.size = sizeof figures};
    struct plim_engine *e = open_engine();
    for (int i = 0; i < PROMPTS; i++) submit(e, prompts[i], &said[i]);
    run(e);
    for (int i = 0; i < PROMPTS; i++) {
        same(&said[i], alone(i));
        assert_int_equal(said[i].finish, PLIM_FINISH_LENGTH);
        assert_int_equal(said[i].count, ANSWER);
    }
    assert_int_equal(plim_engine_figures(e, &figures, NULL), PLIM_OK);
    assert_int_equal(figures.generated_tokens, PROMPTS * ANSWER);
    assert_true(figures.planned_bytes <= BUDGET && figures.used_bytes <= figures.planned_bytes &&
                figures.budget == BUDGET);
    assert_int_equal(figures.running + figures.waiting, 0);
    plim_engine_close(e);
}

/* The text of the events is the decoded text of the tokens; as many tokens as there is room for; ids instead of text. */
static void text_is_that_of_tokens(void **state)
{
    (void)state;
    struct plim_engine *e = open_engine();
    struct plim_tokenizer *t;
    struct plim_engine_figures figures = {.size = sizeof figures};
    struct said said;
    int32_t ids[64];
    size_t count;
    char *text = NULL;
    assert_int_equal(plim_tokenizer_open(context, tokenizer, &t, NULL), PLIM_OK);
    assert_int_equal(plim_tokenizer_vocab(t), VOCAB);
    assert_int_equal(plim_tokenizer_encode(t, prompts[0], strlen(prompts[0]), 1, ids, 64, &count, NULL),
                     PLIM_OK);
    struct plim_request r = request(NULL, &said);
    r.ids = ids, r.id_count = count, r.max_tokens = 0, r.logprobs = 1;
    assert_int_equal(plim_engine_submit(e, &r, NULL, NULL), PLIM_OK);
    run(e);
    plim_engine_figures(e, &figures, NULL);
    assert_int_equal(said.count, figures.context - (int64_t)count + 1);
    assert_memory_equal(said.ids, alone(0)->ids, ANSWER * sizeof *said.ids);
    assert_int_equal(plim_tokenizer_decode(t, said.ids, (size_t)said.count, 1, &text, NULL), PLIM_OK);
    assert_string_equal(text, said.text);
    plim_free(text);
    plim_tokenizer_close(t);
    plim_engine_close(e);
}

static void generate_is_submit_and_run(void **state)
{
    (void)state;
    struct plim_engine *e = open_engine();
    struct plim_error err = {0};
    struct said said;
    char *text = NULL;
    struct plim_request r = request(prompts[2], &said);
    assert_int_equal(plim_engine_generate(e, &r, &text, &err), PLIM_OK);
    same(&said, alone(2));
    assert_string_equal(text, alone(2)->text);
    plim_free(text);
    r = request(prompts[2], &said), said.cancel_after = 4;
    refused(plim_engine_generate(e, &r, &text, &err), &err, PLIM_INTERRUPTED, "cancelled");
    assert_true(strlen(text) < strlen(alone(2)->text) && !strncmp(text, alone(2)->text, strlen(text)));
    plim_free(text);
    plim_engine_close(e);
}

/* Every piece of an answer as a stop string: the text ends before its first occurrence, whatever tokens it is cut into. */
static void stop_strings(void **state)
{
    (void)state;
    struct plim_engine *e = open_engine();
    for (int p = 0; p < 2; p++)
        for (size_t from = 0; from < alone(p)->bytes; from += 3) {
            struct said said;
            char piece[4] = {0};
            const char *stop[] = {"never in it", piece, NULL}, *whole = alone(p)->text;
            strncpy(piece, whole + from, 1 + from % 3);
            struct plim_request r = request(prompts[p], &said);
            r.stop = stop;
            assert_int_equal(plim_engine_submit(e, &r, NULL, NULL), PLIM_OK);
            memset(piece, '?', 3); /* it was copied */
            run(e);
            memset(piece, 0, 4), strncpy(piece, whole + from, 1 + from % 3);
            assert_int_equal(said.finish, PLIM_FINISH_STOP);
            assert_int_equal(said.ends, 1);
            assert_int_equal(said.bytes, strstr(whole, piece) - whole);
            assert_memory_equal(said.text, whole, said.bytes);
        }
    plim_engine_close(e);
}

/* --- handlers -------------------------------------------------------------------------------------------------------- */

struct meddler {
    struct said said; /* first */
    struct plim_engine *engine;
    int64_t victim;
    struct said more;
    bool asked;
};

static int meddle(void *arg, const struct plim_engine_event *event)
{
    struct meddler *m = arg;
    struct plim_error err = {0};
    char *text;
    hear(&m->said, event);
    if (m->asked || m->said.count < 3) return 0;
    m->asked = true;
    plim_engine_cancel(m->engine, m->victim);
    submit(m->engine, prompts[3], &m->more);
    refused(plim_engine_step(m->engine, NULL, &err), &err, PLIM_BAD_INPUT,
            "a handler may only submit and cancel");
    struct plim_request r = request("a", &(struct said){0});
    refused(plim_engine_generate(m->engine, &r, &text, &err), &err, PLIM_BAD_INPUT, "handler");
    plim_engine_close(m->engine); /* refused, and logged */
    return 0;
}

static void handlers_cancel_and_submit(void **state)
{
    (void)state;
    struct said victim, shy;
    struct plim_engine *e = open_engine();
    struct meddler m = {.engine = e};
    struct plim_request r = request(prompts[0], &victim);
    assert_int_equal(plim_engine_submit(e, &r, &m.victim, NULL), PLIM_OK);
    r = request(prompts[1], &m.said), r.hear = meddle, r.arg = &m;
    assert_int_equal(plim_engine_submit(e, &r, NULL, NULL), PLIM_OK);
    r = request(prompts[2], &shy), shy.cancel_after = 5;
    assert_int_equal(plim_engine_submit(e, &r, NULL, NULL), PLIM_OK);
    run(e);
    assert_int_equal(victim.finish, PLIM_FINISH_CANCELLED);
    assert_true(victim.count < ANSWER && victim.ends == 1);
    same(&m.said, alone(1));
    same(&m.more, alone(3));
    assert_int_equal(shy.finish, PLIM_FINISH_CANCELLED);
    assert_int_equal(shy.count, 5);
    plim_engine_close(e);
}

/* --- threads --------------------------------------------------------------------------------------------------------- */

static void await(struct said *said)
{
    while (!said->ends) sched_yield();
}

static void a_thread_of_its_own(void **state)
{
    (void)state;
    struct said said[PROMPTS];
    struct plim_engine *e = open_engine();
    struct plim_error err = {0};
    char *text;
    struct plim_request r = request("a", &(struct said){0});
    assert_int_equal(plim_engine_start(e, &err), PLIM_OK);
    refused(plim_engine_start(e, &err), &err, PLIM_BAD_INPUT, "thread of its own");
    refused(plim_engine_step(e, NULL, &err), &err, PLIM_BAD_INPUT, "thread of its own");
    refused(plim_engine_run(e, &err), &err, PLIM_BAD_INPUT, "thread of its own");
    refused(plim_engine_generate(e, &r, &text, &err), &err, PLIM_BAD_INPUT, "thread of its own");
    for (int i = 0; i < PROMPTS; i++) submit(e, prompts[i], &said[i]);
    for (int i = 0; i < PROMPTS; i++) await(&said[i]), same(&said[i], alone(i));
    plim_engine_close(e);
}

static int hold(void *arg, const struct plim_engine_event *event)
{
    atomic_int *phase = arg;
    (void)event;
    if (*phase == 0) *phase = 1;
    while (*phase == 1) sched_yield();
    return 0;
}

static void *run_thread(void *arg)
{
    assert_int_equal(plim_engine_run(arg, NULL), PLIM_OK);
    return NULL;
}

static void one_steps_at_a_time(void **state)
{
    (void)state;
    struct plim_engine *e = open_engine();
    struct plim_error err = {0};
    struct said said;
    atomic_int phase = 0;
    pthread_t thread;
    struct plim_request r = request("a", &said);
    r.hear = hold, r.arg = &phase;
    assert_int_equal(plim_engine_submit(e, &r, NULL, NULL), PLIM_OK);
    pthread_create(&thread, NULL, run_thread, e);
    while (phase == 0) sched_yield();
    refused(plim_engine_step(e, NULL, &err), &err, PLIM_BAD_INPUT, "another thread steps this engine");
    refused(plim_engine_start(e, &err), &err, PLIM_BAD_INPUT, "another thread steps this engine");
    phase = 2;
    pthread_join(thread, NULL);
    plim_engine_close(e);
}

static void budget_moves(void **state)
{
    (void)state;
    enum { ROUNDS = 12 };
    struct said said[PROMPTS];
    struct plim_error err = {0};
    struct plim_engine_figures figures = {.size = sizeof figures};
    struct plim_engine *e = open_engine();
    int moved = 0;
    assert_int_equal(plim_engine_figures(e, &figures, NULL), PLIM_OK);
    uint64_t least = figures.planned_bytes - figures.kv_bytes;
    assert_int_equal(plim_engine_start(e, NULL), PLIM_OK);
    refused(plim_engine_set_budget(e, 1000, &err), &err, PLIM_NO_FIT, "1000 B");
    assert_int_equal(plim_engine_set_budget(e, UINT64_MAX, NULL), PLIM_BAD_INPUT);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < PROMPTS; i++) submit(e, prompts[i], &said[i]);
        uint64_t budget = least + figures.kv_bytes * (uint64_t)(1 + round % 4) / 4;
        budget = round % 2 ? BUDGET : budget;
        if (plim_engine_set_budget(e, budget, NULL) == PLIM_OK) {
            struct plim_engine_figures now = {.size = sizeof now};
            moved++;
            assert_int_equal(plim_engine_figures(e, &now, NULL), PLIM_OK);
            assert_true(now.budget == budget && now.planned_bytes <= budget);
        }
        for (int i = 0; i < PROMPTS; i++) await(&said[i]), same(&said[i], alone(i));
    }
    assert_true(moved >= ROUNDS / 2 + 1);
    plim_engine_close(e);
}

struct pair {
    struct plim_context *context;
    struct said said[PROMPTS];
    atomic_int lines;
};

static void count_lines(void *arg, enum plim_log_level level, const char *line)
{
    struct pair *p = arg;
    (void)level;
    assert_null(strchr(line, '\n'));
    p->lines++;
}

static void *serve_alone(void *arg)
{
    struct pair *p = arg;
    struct plim_engine_options o = options();
    o.threads = 2;
    struct plim_engine *e = open_in(p->context, &o);
    for (int i = 0; i < PROMPTS; i++) submit(e, prompts[i], &p->said[i]);
    run(e);
    plim_engine_close(e);
    return NULL;
}

static void two_at_once(void **state)
{
    (void)state;
    struct pair pair[2] = {0};
    pthread_t thread[2];
    for (int i = 0; i < PROMPTS; i++) alone(i);
    for (int k = 0; k < 2; k++) {
        struct plim_context_options o = {
            .size = sizeof o, .log = count_lines, .log_arg = &pair[k], .overhead_bytes = 1 << 20};
        assert_int_equal(plim_context_open(&o, &pair[k].context, NULL), PLIM_OK);
        pthread_create(&thread[k], NULL, serve_alone, &pair[k]);
    }
    for (int k = 0; k < 2; k++) {
        pthread_join(thread[k], NULL);
        for (int i = 0; i < PROMPTS; i++) same(&pair[k].said[i], alone(i));
        plim_context_close(pair[k].context);
    }
}

/* A handler that hears of the end submits again: refused, so that closing ends. */
static int persist(void *arg, const struct plim_engine_event *event)
{
    struct meddler *m = arg;
    struct plim_error err = {0};
    hear(&m->said, event);
    struct plim_request r = request("a", &m->more);
    if (event->finish == PLIM_FINISH_CANCELLED)
        refused(plim_engine_submit(m->engine, &r, NULL, &err), &err, PLIM_BAD_INPUT, "being closed");
    return 0;
}

static void closing_ends_requests(void **state)
{
    (void)state;
    for (int started = 0; started < 2; started++) {
        struct meddler m[PROMPTS] = {0};
        struct plim_engine *e = open_engine();
        for (int i = 0; i < PROMPTS; i++) {
            struct plim_request r = request(prompts[i], &m[i].said);
            m[i].engine = e, r.hear = persist, r.arg = &m[i];
            assert_int_equal(plim_engine_submit(e, &r, NULL, NULL), PLIM_OK);
        }
        if (started) assert_int_equal(plim_engine_start(e, NULL), PLIM_OK);
        for (int i = 0; i < 3 && !started; i++) assert_int_equal(plim_engine_step(e, NULL, NULL), PLIM_OK);
        plim_engine_close(e);
        for (int i = 0; i < PROMPTS; i++) {
            assert_int_equal(m[i].said.ends, 1);
            assert_true(started || m[i].said.finish == PLIM_FINISH_CANCELLED);
        }
    }
}

/* --- failures -------------------------------------------------------------------------------------------------------- */

/* Each allocation and reservation of opening fails once: an error with one line, or an engine that answers. */
static void opening_fails(void **state)
{
    (void)state;
    static const enum fault_point points[] = {FAULT_ALLOC, FAULT_RESERVE, FAULT_COMPILE};
    for (size_t k = 0; k < sizeof points / sizeof *points; k++)
        for (int n = 1, hit = 1; hit && n < 20; n++) {
            struct plim_engine_options o = options();
            struct plim_engine *e = NULL;
            struct plim_error err = {0};
            struct said said;
            fault_set(fault_process(), points[k], n);
            enum plim_status status = plim_engine_open(context, &o, &e, &err);
            hit = atomic_load(&fault_process()->left[points[k]]) <= 0;
            fault_set(fault_process(), points[k], 0);
            assert_true(status != PLIM_OK ? !e && *err.text && !strchr(err.text, '\n') : e != NULL);
            if (status == PLIM_OK) submit(e, prompts[0], &said), run(e), same(&said, alone(0));
            plim_engine_close(e);
        }
}

enum { ONCE = 1, THRICE = 3, ALWAYS = 100 };

struct breaker {
    struct plim_engine *engine;
    int failures, rungs, wanted;
};

/* A budget that rises, and memory that is refused. */
static void break_step(struct breaker *b)
{
    assert_int_equal(plim_engine_set_budget(b->engine, BUDGET, NULL), PLIM_OK);
    fault_set(fault_process(), FAULT_RESERVE, 1);
}

/* A step that has failed fails again, as often as wanted; with ALWAYS every lower rung is refused memory, too. */
static void break_again(void *arg, enum plim_log_level level, const char *line)
{
    struct breaker *b = arg;
    bool step = level == PLIM_LOG_ERROR && strstr(line, "a step failed"), rung = strstr(line, "; next: ");
    if (!b->engine) return;
    b->failures += step, b->rungs += rung;
    if (step && b->failures < b->wanted && b->failures < THRICE) break_step(b);
    if (rung && b->wanted == ALWAYS) fault_set(fault_process(), FAULT_RESERVE, 1);
}

/* A step that fails is tried again, and after three failures goes on a lower rung: answers are the same. Where no rung works, every
 * request ends as failed, and so does every later call. */
static void failing_steps(void **state)
{
    (void)state;
    static const int times[] = {ONCE, THRICE, ALWAYS};
    for (int k = 0; k < 3; k++) {
        struct breaker b = {.wanted = times[k]};
        struct plim_context *own;
        struct plim_context_options c = {.size = sizeof c, .log = break_again, .log_arg = &b};
        struct plim_engine_options o = options();
        struct plim_error err = {0};
        struct said said[PROMPTS];
        assert_int_equal(plim_context_open(&c, &own, NULL), PLIM_OK);
        struct plim_engine_figures figures = {.size = sizeof figures};
        struct plim_engine *e = open_in(own, &o);
        plim_engine_figures(e, &figures, NULL);
        uint64_t small = figures.planned_bytes - figures.kv_bytes / 2;
        assert_int_equal(plim_engine_set_budget(e, small, NULL), PLIM_OK);
        b.engine = e;
        for (int i = 0; i < PROMPTS; i++) submit(e, prompts[i], &said[i]);
        assert_int_equal(plim_engine_step(e, NULL, NULL), PLIM_OK);
        break_step(&b);
        enum plim_status status = plim_engine_run(e, &err);
        fault_set(fault_process(), FAULT_RESERVE, 0);
        assert_int_equal(b.failures, k ? THRICE : ONCE);
        assert_int_equal(b.rungs > 0, k > 0);
        assert_int_equal(status, times[k] == ALWAYS ? PLIM_NO_MEMORY : PLIM_OK);
        for (int i = 0; i < PROMPTS; i++) {
            if (status == PLIM_OK) same(&said[i], alone(i));
            assert_true(said[i].ends == 1 &&
                        (status == PLIM_OK || (said[i].finish == PLIM_FINISH_FAILED && *said[i].why)));
        }
        struct plim_request r = request(prompts[0], &said[0]);
        if (status != PLIM_OK)
            refused(plim_engine_submit(e, &r, NULL, &err), &err, status, "can only be closed");
        if (status != PLIM_OK) refused(plim_engine_step(e, NULL, &err), &err, status, "can only be closed");
        b.engine = NULL;
        plim_engine_close(e);
        plim_context_close(own);
    }
}

/* --- plans ----------------------------------------------------------------------------------------------------------- */

static void plans_are_what_is_committed(void **state)
{
    (void)state;
    struct plim_engine_options o = options();
    struct plim_engine_figures figures = {.size = sizeof figures};
    struct plim_error err = {0};
    char *json = NULL, total[64];
    struct plim_engine *e = open_engine();
    plim_engine_figures(e, &figures, NULL);
    plim_engine_close(e);
    if (plim_plan_serving(context, &o, &json, &err) != PLIM_OK) fail_msg("%s", err.text);
    snprintf(total, sizeof total, ": %llu", (unsigned long long)figures.planned_bytes);
    if (!strstr(json, total) || !strstr(json, "\"llama-untied\"")) fail_msg("no %s in %s", total, json);
    plim_free(json);
    o.device = "rtx-4090", o.budget = 0;
    if (plim_plan_serving(context, &o, &json, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_non_null(strstr(json, "4090"));
    plim_free(json);
    refused(plim_engine_open(context, &o, &e, &err), &err, PLIM_BAD_INPUT, "options.device");
    o.device = "cpu", o.budget = 1 << 18;
    refused(plim_plan_serving(context, &o, &json, &err), &err, PLIM_NO_FIT, "does not fit");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_handles),          cmocka_unit_test(wrong_options),
        cmocka_unit_test(wrong_requests),         cmocka_unit_test(answers_are_their_own),
        cmocka_unit_test(text_is_that_of_tokens), cmocka_unit_test(generate_is_submit_and_run),
        cmocka_unit_test(stop_strings),           cmocka_unit_test(handlers_cancel_and_submit),
        cmocka_unit_test(a_thread_of_its_own),    cmocka_unit_test(one_steps_at_a_time),
        cmocka_unit_test(budget_moves),           cmocka_unit_test(two_at_once),
        cmocka_unit_test(closing_ends_requests),  cmocka_unit_test(opening_fails),
        cmocka_unit_test(failing_steps),          cmocka_unit_test(plans_are_what_is_committed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
