/* intake.c - a ring of slots between one reader at a time, several encoders and one consumer.
 *
 * Slot number k lies at ring[k % slots]. `taken` counts slots given to the reader, `given` slots handed to the
 * consumer and back: taken - given never exceeds the ring. A worker's round is
 *
 *     wait for room and for nobody to be reading -> take number k, read -> encode -> done
 *
 * Everything shared is under `lock`; a slot's content belongs to whoever has it: the reader and encoder until done,
 * then the consumer until it is given back. Workers wait for `room`, the consumer for `ready`, so that nobody
 * is woken in vain: waking a thread takes the time of encoding some hundred bytes.
 */
#include "base/threads.h"
#include "data/intake_part.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES  ((size_t)512 << 10)
#define THREAD_BYTES ((size_t)320 << 10) /* stack and allocator of a worker, touched */
#define TOKEN_BYTES  4
#define CHAT_TOKENS  ((size_t)64 << 10) /* of a slot's conversations, about */

struct worker {
    struct intake *intake;
    pthread_t thread;
    struct record_encoder *encoder;
};

struct intake {
    struct intake_options options;
    struct intake_reader reader;
    struct intake_slot *ring;
    uint64_t slots, taken, given;
    bool reading, ended, large, stop;
    pthread_mutex_t lock;
    pthread_cond_t room, ready;
    struct worker *workers;
    int started, encoders;
};

/* One record longer than a slot at a time. */
static bool grow(void *arg, struct intake_slot *slot)
{
    struct intake *intake = arg;
    pthread_mutex_lock(&intake->lock);
    while (intake->large && !intake->stop) pthread_cond_wait(&intake->room, &intake->lock);
    bool go = !intake->stop;
    if (go) intake->large = slot->work->large = true;
    pthread_mutex_unlock(&intake->lock);
    return go;
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
    pthread_cond_broadcast(&intake->room);
    pthread_mutex_unlock(&intake->lock);
    slot->failed = PLIM_OK;
    if (w->status == PLIM_OK && !empty)
        slot->failed = intake_encode_slot(&intake->options, encoder, slot, &slot->failure);
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
            pthread_cond_wait(&intake->room, &intake->lock);
        bool leave = intake->stop || intake->ended;
        struct intake_slot *slot = leave ? NULL : take(intake);
        pthread_mutex_unlock(&intake->lock);
        if (!slot) return NULL;
        work_on(intake, slot, me->encoder);
    }
}

static enum plim_status start_workers(struct intake *intake, struct plim_error *err)
{
    int encoders = intake->options.workers > 0 ? intake->options.workers : 1;
    intake->workers = calloc((size_t)encoders, sizeof *intake->workers);
    if (!intake->workers) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for data workers");
    for (; intake->encoders < encoders; intake->encoders++) {
        struct worker *w = &intake->workers[intake->encoders];
        w->intake = intake;
        enum plim_status status = record_encoder_open(&intake->options.rules, &w->encoder, err);
        if (status != PLIM_OK) return status;
    }
    for (; intake->started < intake->options.workers; intake->started++) {
        struct worker *worker = &intake->workers[intake->started];
        int rc = thread_begin(&worker->thread, STACK_BYTES, worker_main, worker);
        if (rc)
            return plim_fail(err, PLIM_NO_MEMORY, "cannot start data worker %d: %s; lower data.workers",
                             intake->started + 1, strerror(rc));
    }
    return PLIM_OK;
}

static uint64_t slots_of(const struct intake_options *o)
{
    return o->workers > 0 ? (uint64_t)o->workers * (uint64_t)(o->prefetch > 0 ? o->prefetch : 1) + 1 : 1;
}

enum plim_status intake_open(const struct intake_options *options, const struct intake_place *start,
                             struct intake **out, struct plim_error *err)
{
    struct intake *intake = calloc(1, sizeof *intake);
    if (!intake) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while data were opened");
    intake->options = *options;
    intake->reader =
        (struct intake_reader){.options = &intake->options, .at = *start, .grow = grow, .arg = intake};
    pthread_mutex_init(&intake->lock, NULL);
    pthread_cond_init(&intake->room, NULL);
    pthread_cond_init(&intake->ready, NULL);
    intake->slots = slots_of(options);
    intake->ring = calloc((size_t)intake->slots, sizeof *intake->ring);
    bool good = intake->ring != NULL;
    for (uint64_t i = 0; good && i < intake->slots; i++)
        good = (intake->ring[i].work = calloc(1, sizeof *intake->ring[i].work)) != NULL;
    enum plim_status status = good ? start_workers(intake, err)
                                   : plim_fail(err, PLIM_NO_MEMORY, "out of memory while data were opened");
    if (status != PLIM_OK) {
        intake_close(intake);
        return status;
    }
    *out = intake;
    return PLIM_OK;
}

static void free_slot(struct intake_slot *slot)
{
    if (slot->work) free(slot->work->raw);
    free(slot->work);
    free(slot->records);
    token_list_release(&slot->tokens);
}

void intake_stop(struct intake *intake)
{
    if (!intake) return;
    pthread_mutex_lock(&intake->lock);
    intake->stop = true;
    pthread_cond_broadcast(&intake->room);
    pthread_cond_broadcast(&intake->ready);
    pthread_mutex_unlock(&intake->lock);
}

void intake_close(struct intake *intake)
{
    if (!intake) return;
    intake_stop(intake);
    for (int i = 0; i < intake->started; i++) pthread_join(intake->workers[i].thread, NULL);
    for (int i = 0; i < intake->encoders; i++) record_encoder_close(intake->workers[i].encoder);
    for (uint64_t i = 0; intake->ring && i < intake->slots; i++) free_slot(&intake->ring[i]);
    intake_reader_release(&intake->reader);
    pthread_cond_destroy(&intake->room);
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
    while (!intake->stop && !(intake->given < intake->taken && slot->work->done) &&
           !(intake->ended && intake->given == intake->taken))
        pthread_cond_wait(&intake->ready, &intake->lock);
    bool over = intake->given == intake->taken, stop = intake->stop;
    pthread_mutex_unlock(&intake->lock);
    if (stop) return plim_fail(err, PLIM_INTERRUPTED, "the data loader is being closed");
    if (over) return PLIM_OK;
    if (slot->work->status != PLIM_OK) {
        if (err) *err = slot->work->err;
        return slot->work->status;
    }
    *out = slot;
    return PLIM_OK;
}

void intake_give_back(struct intake *intake, struct intake_slot *slot)
{
    bool large = slot->work->large;
    intake_slot_trim(slot);
    pthread_mutex_lock(&intake->lock);
    intake->given++;
    if (large) intake->large = false;
    pthread_cond_broadcast(&intake->room);
    pthread_mutex_unlock(&intake->lock);
}

/* A line cannot be longer than its file, when that is not compressed. */
static size_t longest_line(const struct intake_options *o)
{
    uint64_t most = 0;
    if (o->rules.kind == RECORD_TEXT) return INTAKE_SLOT;
    for (int i = 0; i < o->inputs->count; i++) {
        const struct input_file *f = &o->inputs->file[i];
        uint64_t n = f->compression ? o->max_line : (uint64_t)f->bytes;
        if (n > most) most = n;
    }
    return most < o->max_line ? (size_t)most : o->max_line;
}

static size_t stream_bytes(const struct inputs *in)
{
    size_t most = 0;
    for (int i = 0; i < in->count; i++) {
        size_t n = byte_stream_bytes_most(in->file[i].compression);
        if (n > most) most = n;
    }
    return most;
}

uint64_t intake_lines_most(const struct intake_options *o)
{
    if (o->rules.kind == RECORD_TEXT) return UINT64_MAX;
    if (o->rules.kind != RECORD_CHAT) return INTAKE_LINES;
    uint64_t lines = CHAT_TOKENS / record_tokens_most(&o->rules, 0);
    return lines > INTAKE_LINES ? INTAKE_LINES : lines > 1 ? lines : 1;
}

/* Tokens of so many bytes of records: no more than bytes, and no more than are kept of each. */
static size_t token_bytes(const struct intake_options *o, size_t raw)
{
    if (o->rules.kind == RECORD_CHAT)
        return TOKEN_BYTES * (raw > INTAKE_SLOT ? record_tokens_most(&o->rules, raw) : CHAT_TOKENS) +
               TOKEN_BYTES * record_chat_output(raw); /* of which not all are kept */
    size_t tokens = raw + raw / 4;                    /* begin and end marks */
    if (raw > INTAKE_SLOT && o->rules.most > 0 && (size_t)o->rules.most + RECORD_PIECE < tokens)
        tokens = (size_t)o->rules.most + RECORD_PIECE;
    return tokens * TOKEN_BYTES;
}

size_t intake_bytes_most(const struct intake_options *o)
{
    uint64_t total = 0;
    bool compressed = false;
    for (int i = 0; i < o->inputs->count; i++)
        total += (uint64_t)o->inputs->file[i].bytes, compressed |= o->inputs->file[i].compression != 0;
    size_t line = longest_line(o), encoders = o->workers > 0 ? (size_t)o->workers : 1;
    size_t piece = !compressed && total < INTAKE_SLOT ? (size_t)total + 1 : INTAKE_SLOT;
    size_t lines = piece / (o->rules.kind == RECORD_LINE ? 2 : 12); /* {"text":""} */
    if (lines > INTAKE_LINES) lines = INTAKE_LINES;
    size_t slot = 2 * piece + token_bytes(o, piece) + sizeof(struct intake_slot) +
                  sizeof(struct intake_slot_work) + lines * sizeof(struct intake_record);
    size_t large = line > INTAKE_SLOT ? line + INTAKE_SLOT + token_bytes(o, line) : 0;
    return sizeof(struct intake) + (size_t)slots_of(o) * slot + large + INTAKE_SLOT +
           stream_bytes(o->inputs) +
           encoders * (record_encoder_bytes_most(&o->rules, piece) + (o->workers > 0 ? THREAD_BYTES : 0)) +
           (large ? record_encoder_bytes_most(&o->rules, line) - record_encoder_bytes_most(&o->rules, piece)
                  : 0);
}
