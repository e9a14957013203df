/* intake.c - a ring of slots between one reader at a time, several encoders and one consumer.
 *
 * Slot number k lies at ring[k % slots]. `taken` counts slots given to the reader, `given` slots handed to the
 * consumer and back: taken - given never exceeds the ring. A worker's round is
 *
 *     wait for room and for nobody to be reading -> take number k, read -> encode -> done
 *
 * Everything shared is under `lock`; a slot's content belongs to whoever has it: the reader and encoder until done,
 * then the consumer until it is given back. Workers wait for `room_for_work`, the consumer for `ready`, so that nobody
 * is woken in vain: waking a thread takes the time of encoding some hundred bytes.
 */
#include "base/threads.h"
#include "data/intake_part.h"
#include "data/record_preference.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES  ((size_t)512 << 10)
#define THREAD_BYTES ((size_t)40 << 10) /* stack and allocator of a worker, touched: 24 KiB with most data */
#define CHAT_TOKENS  ((size_t)64 << 10) /* of a slot's conversations, about */
#define SPARE_IDS    16                 /* an encoder asks for a few more than it adds */

struct worker {
    struct intake *intake;
    pthread_t thread;
    struct record_encoder *encoder;
};

struct intake {
    struct intake_options options;
    struct intake_reader reader;
    struct intake_slot *ring;
    struct intake_long room;
    uint64_t slots, taken, given;
    bool reading, ended, large;
    atomic_bool stop;
    pthread_mutex_t lock;
    pthread_cond_t room_for_work, ready;
    struct worker *workers;
    int started, encoders;
};

/* One line longer than a slot at a time. */
static struct intake_long *grow(void *arg)
{
    struct intake *intake = arg;
    pthread_mutex_lock(&intake->lock);
    while (intake->large && !intake->stop) pthread_cond_wait(&intake->room_for_work, &intake->lock);
    bool go = !intake->stop;
    if (go) intake->large = true;
    pthread_mutex_unlock(&intake->lock);
    return go ? &intake->room : NULL;
}

/* Signals are the caller's affair: no other thread asks. */
static bool signalled(const struct intake *intake) { return intake->options.stop && *intake->options.stop; }

static bool stopped(void *arg)
{
    const struct intake *intake = arg;
    return intake->stop || (!intake->options.workers && signalled(intake));
}

/* Read and encode one slot; the lock is not held. */
static void work_on(struct intake *intake, struct intake_slot *slot, struct record_encoder *encoder)
{
    struct intake_slot_work *w = slot->work;
    w->status = intake_read_slot(&intake->reader, slot, &w->err);
    pthread_mutex_lock(&intake->lock);
    intake->reading = false;
    if (intake->reader.ended || w->status != PLIM_OK) intake->ended = true;
    bool empty = intake->reader.ended;
    pthread_cond_broadcast(&intake->room_for_work);
    pthread_mutex_unlock(&intake->lock);
    slot->failed = PLIM_OK;
    if (w->status == PLIM_OK && !empty)
        slot->failed = intake_encode_slot(&intake->options, w->large ? w->large->encoder : encoder, slot,
                                          &slot->failure);
    pthread_mutex_lock(&intake->lock);
    w->done = true;
    if (empty) intake->taken--; /* nothing came: as if it had not been taken */
    pthread_mutex_unlock(&intake->lock);
    pthread_cond_broadcast(&intake->ready);
}

/* A slot to read into, or NULL when there is nothing left to do. The lock is held. */
static struct intake_slot *take(struct intake *intake)
{
    struct intake_slot *slot = &intake->ring[intake->taken++ % intake->slots];
    slot->work->done = false;
    intake->reading = true;
    return slot;
}

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    struct intake *intake = me->intake;
    for (;;) {
        pthread_mutex_lock(&intake->lock);
        while (!intake->stop && !intake->ended &&
               (intake->reading || intake->taken - intake->given == intake->slots))
            pthread_cond_wait(&intake->room_for_work, &intake->lock);
        bool leave = intake->stop || intake->ended;
        struct intake_slot *slot = leave ? NULL : take(intake);
        pthread_mutex_unlock(&intake->lock);
        if (!slot) return NULL;
        work_on(intake, slot, me->encoder);
    }
}

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY,
                     "out of memory for the data loader; lower data.max_line_bytes or data.workers");
}

/* --- its memory --- */

/* A line cannot be longer than what its file may give. */
static size_t longest_line(const struct intake_options *o)
{
    uint64_t most = 0;
    if (o->rules.kind == RECORD_TEXT) return 0;
    for (int i = 0; i < o->inputs->count; i++) {
        uint64_t n = input_record_most(&o->inputs->file[i]);
        if (n > most) most = n;
    }
    return most < o->max_line ? (size_t)most : o->max_line;
}

uint64_t intake_pieces(const struct inputs *in)
{
    uint64_t sum = 1;
    for (int i = 0; i < in->count; i++) {
        uint64_t bytes = input_records_most(&in->file[i]);
        if (bytes == UINT64_MAX) return UINT64_MAX;
        sum += 2 * bytes / INTAKE_SLOT + 1;
    }
    return sum;
}

uint64_t intake_lines_most(const struct intake_options *o)
{
    if (o->rules.kind == RECORD_TEXT) return UINT64_MAX;
    if (!record_renders(&o->rules)) return INTAKE_LINES;
    uint64_t lines = CHAT_TOKENS / record_tokens_most(&o->rules, 0);
    return lines > INTAKE_LINES ? INTAKE_LINES : lines > 1 ? lines : 1;
}

/* The last conversation needs memory for all its tokens, or those of one piece. */
static size_t chat_tokens(const struct intake_options *o)
{
    size_t one = record_chat_output(INTAKE_SLOT);
    return CHAT_TOKENS + (o->rules.most > 0 && RECORD_TOKENS < one ? RECORD_TOKENS : one);
}

struct sizes {
    uint64_t slots;
    size_t records, tokens;       /* of each */
    size_t longest;               /* line */
    size_t long_raw, long_tokens; /* 0: no line is longer than a slot */
};

/* The one place that says what is allocated, for intake_open and for the plan. */
static void size_up(const struct intake_options *o, struct sizes *out)
{
    uint64_t ahead =
        o->workers > 0 ? (uint64_t)o->workers * (uint64_t)(o->prefetch > 0 ? o->prefetch : 1) : 0;
    uint64_t pieces = intake_pieces(o->inputs);
    *out = (struct sizes){.slots = 1 + (ahead < pieces ? ahead : pieces),
                          .records = o->rules.kind == RECORD_TEXT ? 2 : (size_t)intake_lines_most(o) + 1,
                          .tokens = INTAKE_SLOT + INTAKE_SLOT / 4 + SPARE_IDS,
                          .longest = longest_line(o)};
    if (record_renders(&o->rules)) out->tokens = chat_tokens(o) + SPARE_IDS;
    /* Each token has a label; numbers come before the tokens of a preference. */
    if (o->rules.kind == RECORD_LABELS || record_has_preference(&o->rules)) out->tokens *= 2;
    if (out->longest < INTAKE_SLOT) return;
    out->long_raw = out->longest + INTAKE_SLOT;
    out->long_tokens = RECORD_TOKENS + SPARE_IDS + o->rules.most;
}

/* Without room for long lines: what certainly ends in a slot. */
static size_t short_line(const struct intake_options *o)
{
    return o->max_line < INTAKE_SLOT ? o->max_line : INTAKE_SLOT - 1;
}

static struct record_rules rules_for(const struct intake_options *o, size_t longest)
{
    struct record_rules rules = o->rules;
    rules.longest = longest < o->max_line ? longest : o->max_line;
    for (int i = 0; i < o->inputs->count; i++) {
        rules.data_bytes += (uint64_t)o->inputs->file[i].bytes;
        if (!input_is_sized(&o->inputs->file[i])) return rules.data_bytes = 0, rules;
    }
    return rules;
}

static size_t stream_bytes(const struct inputs *in)
{
    size_t most = 0;
    for (int i = 0; i < in->count; i++) {
        size_t n = byte_stream_bytes_most(&in->file[i]);
        if (n > most) most = n;
    }
    return most;
}

size_t intake_bytes_most(const struct intake_options *o)
{
    struct sizes z;
    size_up(o, &z);
    struct record_rules usual = rules_for(o, INTAKE_SLOT), large = rules_for(o, z.longest);
    size_t encoders = o->workers > 0 ? (size_t)o->workers : 1;
    size_t slot = sizeof(struct intake_slot) + sizeof(struct intake_slot_work) + INTAKE_SLOT +
                  z.tokens * sizeof(int32_t) + z.records * sizeof(struct intake_record);
    size_t sum = sizeof(struct intake) + (size_t)z.slots * slot + INTAKE_SLOT + stream_bytes(o->inputs) +
                 encoders * (record_encoder_bytes_most(&usual) + (o->workers > 0 ? THREAD_BYTES : 0));
    if (!z.long_raw) return sum;
    return sum + z.long_raw + z.long_tokens * sizeof(int32_t) + record_encoder_bytes_most(&large);
}

void *intake_touched(size_t bytes)
{
    enum { LEAST_PAGE = 4096 };
    volatile char *p = malloc(bytes); /* a compiler makes calloc of memset, which brings nothing in */
    for (size_t i = 0; p && i < bytes; i += LEAST_PAGE) p[i] = 0;
    if (p && bytes) p[bytes - 1] = 0;
    return (void *)p;
}

static bool make_tokens(struct token_list *list, size_t most)
{
    *list = (struct token_list){.id = intake_touched(most * sizeof(int32_t)), .cap = most, .most = most};
    return list->id != NULL;
}

static bool make_slot(struct intake_slot *slot, const struct sizes *z)
{
    slot->work = calloc(1, sizeof *slot->work);
    if (!slot->work) return false;
    slot->work->raw = slot->work->own = intake_touched(INTAKE_SLOT);
    slot->records = intake_touched(z->records * sizeof *slot->records);
    return slot->work->own && slot->records && make_tokens(&slot->tokens, z->tokens);
}

static enum plim_status make_room(struct intake *intake, const struct sizes *z, struct plim_error *err)
{
    struct intake_long *room = &intake->room;
    if (!z->long_raw) return PLIM_OK;
    struct record_rules rules = rules_for(&intake->options, z->longest);
    room->raw = intake_touched(z->long_raw), room->cap = z->long_raw;
    if (!room->raw || !make_tokens(&room->tokens, z->long_tokens)) return no_memory(err);
    return record_encoder_open(&rules, &room->encoder, err);
}

static enum plim_status make_workers(struct intake *intake, struct plim_error *err)
{
    int encoders = intake->options.workers > 0 ? intake->options.workers : 1;
    struct record_rules rules = rules_for(&intake->options, INTAKE_SLOT);
    enum plim_status status = PLIM_OK;
    intake->workers = calloc((size_t)encoders, sizeof *intake->workers);
    if (!intake->workers) return no_memory(err);
    for (; intake->encoders < encoders && status == PLIM_OK; intake->encoders++) {
        struct worker *w = &intake->workers[intake->encoders];
        w->intake = intake;
        status = record_encoder_open(&rules, &w->encoder, err);
    }
    return status;
}

enum plim_status intake_open(const struct intake_options *options, struct intake **out,
                             struct plim_error *err)
{
    struct sizes z;
    struct intake *intake = calloc(1, sizeof *intake);
    if (!intake) return no_memory(err);
    size_up(options, &z);
    intake->options = *options;
    intake->stop = true; /* until it is started */
    pthread_mutex_init(&intake->lock, NULL);
    pthread_cond_init(&intake->room_for_work, NULL);
    pthread_cond_init(&intake->ready, NULL);
    intake->ring = calloc((size_t)z.slots, sizeof *intake->ring);
    intake->reader = (struct intake_reader){.options = &intake->options,
                                            .longest = z.long_raw ? z.longest : short_line(options),
                                            .carry = intake_touched(INTAKE_SLOT),
                                            .grow = grow,
                                            .stopped = stopped,
                                            .arg = intake};
    bool good = intake->ring && intake->reader.carry;
    while (good && intake->slots < z.slots) good = make_slot(&intake->ring[intake->slots++], &z);
    enum plim_status status = good ? make_room(intake, &z, err) : no_memory(err);
    if (status == PLIM_OK) status = make_workers(intake, err);
    if (status != PLIM_OK) {
        intake_close(intake);
        return status;
    }
    *out = intake;
    return PLIM_OK;
}

static void free_slot(struct intake_slot *slot)
{
    if (slot->work) {
        intake_slot_trim(slot);
        free(slot->work->own);
    }
    free(slot->work);
    free(slot->records);
    token_list_release(&slot->tokens);
}

/* --- its life --- */

void intake_set_seed(struct intake *intake, uint64_t seed) { intake->options.seed = seed; }

enum plim_status intake_start(struct intake *intake, const struct intake_place *place, struct plim_error *err)
{
    intake_rest(intake);
    intake->reader.at = *place;
    intake->reader.ended = intake->reading = intake->ended = intake->large = false;
    intake->stop = false;
    intake->taken = intake->given = 0;
    for (uint64_t i = 0; i < intake->slots; i++) intake_slot_trim(&intake->ring[i]);
    for (; intake->started < intake->options.workers; intake->started++) {
        struct worker *worker = &intake->workers[intake->started];
        int rc = thread_begin(&worker->thread, STACK_BYTES, worker_main, worker);
        if (rc)
            return plim_fail(err, PLIM_NO_MEMORY, "cannot start data worker %d: %s; lower data.workers",
                             intake->started + 1, strerror(rc));
    }
    return PLIM_OK;
}

void intake_stop(struct intake *intake)
{
    if (!intake) return;
    LOCKED(&intake->lock);
    intake->stop = true;
    pthread_cond_broadcast(&intake->room_for_work);
    pthread_cond_broadcast(&intake->ready);
}

void intake_rest(struct intake *intake)
{
    if (!intake) return;
    intake_stop(intake);
    while (intake->started > 0) pthread_join(intake->workers[--intake->started].thread, NULL);
    intake_reader_rest(&intake->reader);
}

void intake_close(struct intake *intake)
{
    if (!intake) return;
    intake_rest(intake);
    for (int i = 0; i < intake->encoders; i++) record_encoder_close(intake->workers[i].encoder);
    for (uint64_t i = 0; i < intake->slots; i++) free_slot(&intake->ring[i]);
    record_encoder_close(intake->room.encoder);
    token_list_release(&intake->room.tokens);
    free(intake->room.raw);
    free(intake->reader.carry);
    pthread_cond_destroy(&intake->room_for_work);
    pthread_cond_destroy(&intake->ready);
    pthread_mutex_destroy(&intake->lock);
    free(intake->workers);
    free(intake->ring);
    free(intake);
}

enum plim_status intake_next(struct intake *intake, struct intake_slot **out, struct plim_error *err)
{
    struct intake_slot *slot = &intake->ring[intake->given % intake->slots];
    *out = NULL;
    if (!intake->options.workers && !intake->ended && intake->taken == intake->given)
        work_on(intake, take(intake), intake->workers[0].encoder);
    pthread_mutex_lock(&intake->lock);
    bool stop;
    while (!(stop = intake->stop || signalled(intake)) &&
           !(intake->given < intake->taken && slot->work->done) &&
           !(intake->ended && intake->given == intake->taken))
        thread_wait(&intake->ready, &intake->lock, intake->options.stop != NULL);
    bool over = intake->given == intake->taken;
    pthread_mutex_unlock(&intake->lock);
    if (stop) return plim_fail(err, PLIM_INTERRUPTED, "reading was stopped");
    if (over) return PLIM_OK;
    if (slot->work->status != PLIM_OK) {
        if (err) *err = slot->work->err;
        return slot->work->status;
    }
    *out = slot;
    return PLIM_OK;
}

enum plim_status intake_more(struct intake *intake, struct intake_slot *slot, struct plim_error *err)
{
    struct intake_record *record = slot->records;
    *record = slot->records[slot->count - 1];
    slot->before += record->count;
    slot->tokens.count = 0, slot->count = 1;
    enum plim_status status = record_more(intake->room.encoder, &slot->tokens, &slot->more, err);
    record->first = 0, record->count = (uint32_t)slot->tokens.count;
    if (status != PLIM_OK)
        plim_error_prefix(err, "%s:%llu", slot->work->path, (unsigned long long)record->line + 1);
    return status;
}

void intake_give_back(struct intake *intake, struct intake_slot *slot)
{
    bool large = slot->work->large;
    intake_slot_trim(slot);
    LOCKED(&intake->lock);
    intake->given++;
    if (large) intake->large = false;
    pthread_cond_broadcast(&intake->room_for_work);
}
