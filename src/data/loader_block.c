/* loader_block.c - a stream of records becomes blocks of samples.
 *
 * A thread of its own (none when there are no workers) takes slots from the intake in order, cuts their records into
 * samples and fills one of two blocks while the other is being used:
 *
 *     empty --make--> full --block_source_next--> in use --block_source_next--> empty
 *
 * A block ends when it holds shuffle_samples samples, when another sample of T + 1 tokens might not fit
 * shuffle_bytes, or at the end of an epoch. So where it ends follows from where it begins.
 */
#include "base/threads.h"
#include "data/loader_part.h"
#include "data/record.h"

#include <stdlib.h>
#include <string.h>

#define STACK_BYTES  ((size_t)256 << 10)
#define THREAD_BYTES ((size_t)192 << 10)

/* Cuts records into samples. */
struct cutter {
    const struct dataset *data;
    struct intake *intake;
    struct intake_slot *slot; /* NULL: fetch the next */
    size_t record, token;     /* where in the slot */
    uint64_t skip;            /* tokens of the first record that belong to earlier samples */
    bool epoch_end, over;
    /* rows: stream: the window being filled, and where it begins */
    int32_t *window;
    size_t window_len;
    struct loader_state window_at;
};

struct block_source {
    struct loader_options options;
    struct cutter cutter;
    struct block blocks[2];
    bool full[2];
    int making, using; /* using -1: none yet */
    size_t token_cap;
    uint64_t sample_cap;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
    bool threaded, stop;
};

/* With what the block has counted before that place. */
static struct loader_state place_of(const struct cutter *c, const struct block *b,
                                    const struct intake_record *r, size_t token)
{
    return (struct loader_state){.epoch = c->slot->place.epoch,
                                 .visit = c->slot->place.visit,
                                 .offset = r->offset,
                                 .line = r->line,
                                 .skip = token,
                                 .bad = b->bad,
                                 .dropped = b->dropped};
}

/* The next record with something left in it; NULL at the end of a file (*file_end) or of everything. */
static enum plim_status next_record(struct cutter *c, struct block *b, const struct intake_record **out,
                                    bool *file_end, struct plim_error *err)
{
    *out = NULL, *file_end = false;
    for (;;) {
        if (!c->slot) {
            enum plim_status status = intake_next(c->intake, &c->slot, err);
            if (status != PLIM_OK) return status;
            if (!c->slot) {
                c->over = true;
                return PLIM_OK;
            }
            c->record = 0, c->token = 0;
            if (c->slot->problem[0] && !b->problem[0])
                memcpy(b->problem, c->slot->problem, sizeof b->problem);
        }
        if (c->record == c->slot->count && c->slot->failed != PLIM_OK) {
            if (err) *err = c->slot->failure;
            return c->slot->failed;
        }
        if (c->record == c->slot->count) {
            *file_end = c->slot->file_end, c->epoch_end = c->slot->epoch_end;
            intake_give_back(c->intake, c->slot);
            c->slot = NULL;
            if (*file_end) return PLIM_OK;
            continue;
        }
        const struct intake_record *r = &c->slot->records[c->record];
        if (c->token == 0 && c->skip) c->token = c->skip < r->count ? (size_t)c->skip : r->count;
        c->skip = 0;
        if (c->token == 0) b->bad += r->bad;
        if (c->token < r->count) {
            *out = r;
            return PLIM_OK;
        }
        c->record++, c->token = 0;
    }
}

static uint64_t count_targets(const int32_t *tokens, size_t n)
{
    uint64_t targets = 0;
    for (size_t i = 1; i < n; i++) targets += token_is_target(tokens[i]);
    return targets;
}

static void put_sample(struct block *b, const int32_t *tokens, size_t n, const struct loader_state *at)
{
    if (!count_targets(tokens, n)) {
        b->dropped++;
        return;
    }
    size_t from = b->samples ? b->end[b->samples - 1] : 0;
    if (!b->samples) b->start = *at;
    memcpy(b->tokens + from, tokens, n * sizeof *tokens);
    b->end[b->samples++] = from + n;
}

/* One step of rows: samples. */
static void cut_sample(struct cutter *c, const struct intake_record *r, struct block *b)
{
    const struct data_options *o = dataset_options(c->data);
    size_t most = (size_t)o->time + 1, left = r->count - c->token, n = left < most ? left : most;
    struct loader_state at = place_of(c, b, r, c->token);
    if (left > most && o->overlong == OVERLONG_DROP)
        b->dropped++;
    else if (n > 1 || c->token == 0) /* the last token of a split sample has been a target already */
        put_sample(b, c->slot->tokens.id + r->first + c->token, n, &at);
    c->token = o->overlong == OVERLONG_SPLIT && left > most ? c->token + (size_t)o->time : r->count;
}

static void flush_window(struct cutter *c, struct block *b)
{
    if (c->window_len > 1) put_sample(b, c->window, c->window_len, &c->window_at);
    c->window_len = 0;
}

/* One step of rows: stream. Windows overlap by the token that is the last target of one and the first input of the
 * next. */
static void cut_window(struct cutter *c, const struct intake_record *r, struct block *b)
{
    size_t most = (size_t)dataset_options(c->data)->time + 1, left = r->count - c->token;
    size_t n = most - c->window_len < left ? most - c->window_len : left;
    if (!c->window_len) c->window_at = place_of(c, b, r, c->token);
    memcpy(c->window + c->window_len, c->slot->tokens.id + r->first + c->token, n * sizeof *c->window);
    c->window_len += n, c->token += n;
    if (c->window_len < most) return;
    put_sample(b, c->window, most, &c->window_at);
    c->window[0] = c->window[most - 1], c->window_len = 1;
    c->window_at = place_of(c, b, r, c->token - 1);
}

static bool has_room(const struct block_source *s, const struct block *b)
{
    size_t used = b->samples ? b->end[b->samples - 1] : 0;
    return b->samples < s->sample_cap && used + (size_t)dataset_time(s->cutter.data) + 1 <= s->token_cap;
}

static enum plim_status make_block(struct block_source *s, struct block *b, struct plim_error *err)
{
    struct cutter *c = &s->cutter;
    bool stream = dataset_options(c->data)->rows == ROWS_STREAM, file_end;
    const struct intake_record *r;
    b->samples = b->bad = b->dropped = 0;
    b->problem[0] = 0;
    b->epoch_end = b->over = false;
    c->window_at.bad = c->window_at.dropped = 0; /* one left open began before this block */
    while (has_room(s, b)) {
        enum plim_status status = next_record(c, b, &r, &file_end, err);
        if (status != PLIM_OK) return status;
        if (r && stream) cut_window(c, r, b);
        if (r && !stream) cut_sample(c, r, b);
        if (file_end) flush_window(c, b);
        if (file_end && c->epoch_end) {
            b->epoch_end = true;
            break;
        }
        if (c->over) break;
    }
    b->over = c->over;
    return PLIM_OK;
}

static void make_next(struct block_source *s)
{
    struct block *b = &s->blocks[s->making];
    b->status = make_block(s, b, &b->err);
}

static void *maker_main(void *arg)
{
    struct block_source *s = arg;
    for (;;) {
        pthread_mutex_lock(&s->lock);
        while (s->full[s->making] && !s->stop) pthread_cond_wait(&s->changed, &s->lock);
        bool stop = s->stop;
        pthread_mutex_unlock(&s->lock);
        if (stop) return NULL;
        make_next(s);
        pthread_mutex_lock(&s->lock);
        struct block *b = &s->blocks[s->making];
        bool last = b->status != PLIM_OK || b->over;
        s->full[s->making] = true;
        s->making ^= 1;
        pthread_cond_broadcast(&s->changed);
        pthread_mutex_unlock(&s->lock);
        if (last) return NULL;
    }
}

static bool start_maker(struct block_source *s)
{
    s->threaded = thread_begin(&s->thread, STACK_BYTES, maker_main, s) == 0;
    return s->threaded;
}

static size_t token_cap(const struct dataset *data, const struct loader_options *o)
{
    size_t row = (size_t)dataset_time(data) + 1, cap = o->shuffle_bytes / sizeof(int32_t);
    size_t most = (size_t)o->shuffle_samples * row;
    if (most < cap) cap = most;
    return cap > row ? cap : row;
}

static void intake_options(const struct dataset *data, const struct loader_options *o,
                           struct intake_options *out)
{
    dataset_intake_options(data, out);
    out->workers = o->workers, out->prefetch = o->prefetch;
    out->endless = !o->once, out->shuffle = !o->in_order, out->seed = o->seed;
}

static enum plim_status allocate(struct block_source *s, const struct dataset *data, struct plim_error *err)
{
    bool good = true;
    s->token_cap = token_cap(data, &s->options), s->sample_cap = (uint64_t)s->options.shuffle_samples;
    s->cutter.window = malloc(((size_t)dataset_time(data) + 1) * sizeof(int32_t));
    for (int i = 0; i < 2; i++) {
        s->blocks[i].tokens = malloc(s->token_cap * sizeof(int32_t));
        s->blocks[i].end = malloc((size_t)s->sample_cap * sizeof(size_t));
        good = good && s->blocks[i].tokens && s->blocks[i].end;
    }
    if (good && s->cutter.window) return PLIM_OK;
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the shuffle buffer; lower data.shuffle_buffer");
}

enum plim_status block_source_open(const struct dataset *data, const struct loader_options *options,
                                   const struct loader_state *from, struct block_source **out,
                                   struct plim_error *err)
{
    struct intake_options intake;
    struct intake_place place = {from->epoch, from->visit, from->offset, from->line};
    struct block_source *s = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the data loader");
    s->options = *options, s->using = -1;
    s->cutter.data = data, s->cutter.skip = from->skip;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    intake_options(data, options, &intake);
    enum plim_status status = allocate(s, data, err);
    if (status == PLIM_OK) status = intake_open(&intake, &place, &s->cutter.intake, err);
    if (status == PLIM_OK && options->workers > 0 && !start_maker(s))
        status = plim_fail(err, PLIM_NO_MEMORY, "cannot start the data loader's thread");
    if (status != PLIM_OK) {
        block_source_close(s);
        return status;
    }
    *out = s;
    return PLIM_OK;
}

void block_source_close(struct block_source *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    intake_stop(s->cutter.intake);
    if (s->threaded) pthread_join(s->thread, NULL);
    intake_close(s->cutter.intake);
    for (int i = 0; i < 2; i++) free(s->blocks[i].tokens), free(s->blocks[i].end);
    free(s->cutter.window);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

enum plim_status block_source_next(struct block_source *s, struct block **out, struct plim_error *err)
{
    int next = s->using < 0 ? 0 : s->using ^ 1;
    if (!s->threaded) {
        s->making = next;
        make_next(s);
    } else {
        pthread_mutex_lock(&s->lock);
        if (s->using >= 0) s->full[s->using] = false;
        pthread_cond_broadcast(&s->changed);
        while (!s->full[next]) pthread_cond_wait(&s->changed, &s->lock);
        pthread_mutex_unlock(&s->lock);
    }
    s->using = next;
    *out = &s->blocks[next];
    if ((*out)->status != PLIM_OK && err) *err = (*out)->err;
    return (*out)->status;
}

/* No more tokens than bytes, begin and end marks aside; what is compressed has no bound. */
static size_t tokens_most(const struct dataset *data)
{
    const struct inputs *in = dataset_inputs(data);
    size_t sum = 0;
    for (int i = 0; i < in->count; i++) {
        if (in->file[i].compression) return SIZE_MAX;
        sum += (size_t)in->file[i].bytes + 2;
    }
    return sum + sum / 4;
}

size_t block_source_bytes(const struct dataset *data, const struct loader_options *o)
{
    struct intake_options intake;
    intake_options(data, o, &intake);
    size_t tokens = token_cap(data, o), samples = (size_t)o->shuffle_samples, all = tokens_most(data);
    if (all < tokens) tokens = all;
    if (all < samples) samples = all;
    size_t block = tokens * sizeof(int32_t) + samples * sizeof(size_t);
    return sizeof(struct block_source) + 2 * block + ((size_t)dataset_time(data) + 1) * sizeof(int32_t) +
           (o->workers > 0 ? THREAD_BYTES : 0) + intake_bytes_most(&intake);
}
