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
#include "base/minmax.h"
#include "base/threads.h"
#include "data/loader_part.h"
#include "data/record.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define STACK_BYTES  ((size_t)256 << 10)
#define THREAD_BYTES ((size_t)40 << 10)

/* Cuts records into samples. */
struct cutter {
    const struct dataset *data;
    struct intake *intake;
    struct intake_slot *slot; /* NULL: fetch the next */
    size_t record, token;     /* where in the slot */
    uint64_t skip;            /* tokens of the first record that belong to earlier samples */
    bool epoch_end, over;
    /* the window being filled, and where it begins; not for samples that are cut off */
    int32_t *window;
    size_t window_len;
    struct loader_state window_at;
};

/* How much a block takes at most, and what there is memory for: small data never fill it. */
struct caps {
    size_t tokens, token_room;
    uint64_t samples, sample_room;
};

struct block_source {
    struct loader_options options;
    struct cutter cutter;
    struct block blocks[2];
    bool full[2];
    int making, using; /* using -1: none yet */
    struct caps caps;
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
                                 .skip = c->slot->before + token,
                                 .bad = b->bad,
                                 .dropped = b->dropped};
}

/* The next slot; c->over: there is none. */
static enum plim_status next_slot(struct cutter *c, struct block *b, struct plim_error *err)
{
    enum plim_status status = intake_next(c->intake, &c->slot, err);
    c->over = status == PLIM_OK && !c->slot;
    if (!c->slot) return status;
    c->record = 0, c->token = 0;
    if (c->slot->problem[0] && !b->problem[0]) memcpy(b->problem, c->slot->problem, sizeof b->problem);
    return PLIM_OK;
}

/* Nothing is left of the slot: its last record goes on, or *file_end, or the next one's turn has come. */
static enum plim_status leave_slot(struct cutter *c, bool *file_end, struct plim_error *err)
{
    if (c->slot->failed != PLIM_OK) {
        if (err) *err = c->slot->failure;
        return c->slot->failed;
    }
    *file_end = c->slot->file_end, c->epoch_end = c->slot->epoch_end;
    intake_give_back(c->intake, c->slot);
    c->slot = NULL;
    return PLIM_OK;
}

/* Tokens that earlier samples had are passed over. */
static void pass_used(struct cutter *c, const struct intake_record *r)
{
    uint64_t n = c->skip < r->count ? c->skip : r->count;
    c->token = (size_t)n;
    c->skip = c->slot->more ? c->skip - n : 0;
}

/* The next record with something left in it; NULL at the end of a file (*file_end) or of everything. */
static enum plim_status next_record(struct cutter *c, struct block *b, const struct intake_record **out,
                                    bool *file_end, struct plim_error *err)
{
    *out = NULL, *file_end = false;
    for (;;) {
        enum plim_status status = c->slot ? PLIM_OK : next_slot(c, b, err);
        if (status != PLIM_OK || c->over) return status;
        if (c->record == c->slot->count) {
            status = leave_slot(c, file_end, err);
            if (status != PLIM_OK || *file_end) return status;
            continue;
        }
        const struct intake_record *r = &c->slot->records[c->record];
        if (c->token == 0 && !c->slot->before) b->bad += r->bad;
        if (c->token == 0) pass_used(c, r);
        if (c->token < r->count) {
            *out = r;
            return PLIM_OK;
        }
        c->token = 0;
        if (!c->slot->more)
            c->record++;
        else if ((status = intake_more(c->intake, c->slot, err)) != PLIM_OK)
            return status;
        else
            c->record = 0;
    }
}

/* Numbers of a sample, at most. */
static size_t sample_most(const struct dataset *data)
{
    return (size_t)objective_sample_most(dataset_rules(data));
}

/* Whether there is a target in it depends on no random number. */
static bool has_target(const struct cutter *c, const int32_t *tokens, size_t n)
{
    int64_t positions, targets;
    struct sample sample = {.tokens = tokens, .count = (int64_t)n};
    objective_measure(dataset_rules(c->data), &sample, &positions, &targets);
    return targets > 0;
}

static void put_sample(const struct cutter *c, struct block *b, const int32_t *tokens, size_t n,
                       const struct loader_state *at)
{
    if (!has_target(c, tokens, n)) {
        b->dropped++;
        return;
    }
    size_t from = b->samples ? b->end[b->samples - 1] : 0;
    if (!b->samples) b->start = *at;
    memcpy(b->tokens + from, tokens, n * sizeof *tokens);
    b->end[b->samples++] = from + n;
}

/* One step of samples that are cut off, or dropped, when they are too long. */
static void cut_sample(struct cutter *c, const struct intake_record *r, struct block *b)
{
    size_t most = sample_most(c->data), n = r->count < most ? r->count : most;
    struct loader_state at = place_of(c, b, r, 0);
    if (r->count > most && dataset_options(c->data)->overlong == OVERLONG_DROP)
        b->dropped++;
    else
        put_sample(c, b, c->slot->tokens.id + r->first, n, &at);
    c->token = r->count;
}

/* The end of a file, or of a record that is split: what is left is a sample, unless it has been a target already. */
static void flush_window(struct cutter *c, struct block *b)
{
    bool whole_record = dataset_options(c->data)->rows == ROWS_SAMPLES && c->window_at.skip == 0;
    if (c->window_len > 1 || (c->window_len == 1 && whole_record))
        put_sample(c, b, c->window, c->window_len, &c->window_at);
    c->window_len = 0;
}

/* One step of running text, and of samples that are split. Windows overlap by the token that is the last target of one
 * and the first input of the next. */
static void cut_window(struct cutter *c, const struct intake_record *r, struct block *b)
{
    size_t most = (size_t)dataset_time(c->data) + 1, left = r->count - c->token;
    size_t n = most - c->window_len < left ? most - c->window_len : left;
    bool ends = dataset_options(c->data)->rows == ROWS_SAMPLES && n == left && !c->slot->more;
    if (!c->window_len) c->window_at = place_of(c, b, r, c->token);
    memcpy(c->window + c->window_len, c->slot->tokens.id + r->first + c->token, n * sizeof *c->window);
    c->window_len += n, c->token += n;
    if (c->window_len == most) {
        put_sample(c, b, c->window, most, &c->window_at);
        c->window[0] = c->window[most - 1], c->window_len = 1;
        c->window_at = place_of(c, b, r, c->token - 1);
    }
    if (ends) flush_window(c, b);
}

static bool has_room(const struct block_source *s, const struct block *b)
{
    size_t next = (b->samples ? b->end[b->samples - 1] : 0) + sample_most(s->cutter.data);
    return b->samples < s->caps.samples && b->samples < s->caps.sample_room && next <= s->caps.tokens &&
           next <= s->caps.token_room;
}

static enum plim_status make_block(struct block_source *s, struct block *b, struct plim_error *err)
{
    struct cutter *c = &s->cutter;
    const struct data_options *o = dataset_options(c->data);
    bool windows = o->rows == ROWS_STREAM || o->overlong == OVERLONG_SPLIT, file_end;
    const struct intake_record *r;
    b->samples = b->bad = b->dropped = 0;
    b->problem[0] = 0;
    b->epoch_end = b->over = false;
    c->window_at.bad = c->window_at.dropped = 0; /* one left open began before this block */
    while (has_room(s, b)) {
        enum plim_status status = next_record(c, b, &r, &file_end, err);
        if (status != PLIM_OK) return status;
        if (r && windows) cut_window(c, r, b);
        if (r && !windows) cut_sample(c, r, b);
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

/* No more tokens than bytes, begin and end marks aside, and no more samples; what is compressed has no bound. */
static size_t tokens_most(const struct dataset *data)
{
    const struct inputs *in = dataset_inputs(data);
    size_t sum = 0;
    for (int i = 0; i < in->count; i++) {
        if (!input_is_sized(&in->file[i])) return SIZE_MAX / 16;
        sum += (size_t)in->file[i].bytes + 2;
    }
    sum += sum / 4;
    return objective_row(dataset_options(data)->objective)->two_parts ? 2 * sum
                                                                      : sum; /* labels are numbers, too */
}

static void find_caps(const struct dataset *data, const struct loader_options *o, struct caps *out)
{
    size_t row = sample_most(data), all = tokens_most(data), samples = (size_t)o->shuffle_samples;
    size_t tokens = min_size(o->shuffle_bytes / sizeof(int32_t), samples * row);
    out->tokens = tokens > row ? tokens : row;
    out->samples = samples;
    out->token_room =
        min_size(out->tokens, all + all / (row - 1) + row);        /* windows share a token with the next */
    out->sample_room = min_size(samples, out->token_room / 2 + 1); /* one has an input and a target */
}

static void intake_options(const struct dataset *data, const struct loader_options *o,
                           struct intake_options *out)
{
    dataset_intake_options(data, out);
    uint64_t pieces = intake_pieces(out->inputs);
    out->workers = pieces < (uint64_t)o->workers ? (int)pieces : o->workers, out->prefetch = o->prefetch,
    out->max_line = o->max_line;
    out->endless = !o->once, out->shuffle = !o->in_order, out->seed = o->seed;
    out->stop = o->workers > 0 ? NULL : o->stop; /* a waiting reader tells the maker */
}

static bool allocate(struct block_source *s)
{
    size_t tokens = s->caps.token_room * sizeof(int32_t), ends = s->caps.sample_room * sizeof(size_t);
    for (int i = 0; i < 2; i++) {
        struct block *b = &s->blocks[i];
        b->tokens = intake_touched(tokens), b->end = intake_touched(ends);
        if (!b->tokens || !b->end) return false;
    }
    s->cutter.window = malloc(((size_t)dataset_time(s->cutter.data) + 1) * sizeof(int32_t));
    return s->cutter.window != NULL;
}

enum plim_status block_source_open(const struct dataset *data, const struct loader_options *options,
                                   struct block_source **out, struct plim_error *err)
{
    struct intake_options intake;
    struct block_source *s = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the data loader");
    s->options = *options, s->using = -1;
    s->cutter.data = data;
    find_caps(data, options, &s->caps);
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
    intake_options(data, options, &intake);
    enum plim_status status = PLIM_OK;
    if (!allocate(s))
        status = plim_fail(err, PLIM_NO_MEMORY,
                           "out of memory for the shuffle buffer; lower "
                           "data.shuffle_buffer");
    if (status == PLIM_OK) status = intake_open(&intake, &s->cutter.intake, err);
    if (status != PLIM_OK) {
        block_source_close(s);
        return status;
    }
    *out = s;
    return PLIM_OK;
}

void block_source_set_seed(struct block_source *s, uint64_t seed) { intake_set_seed(s->cutter.intake, seed); }

enum plim_status block_source_start(struct block_source *s, const struct loader_state *from,
                                    struct plim_error *err)
{
    struct intake_place place = {from->epoch, from->visit, from->offset, from->line};
    struct cutter *c = &s->cutter;
    block_source_rest(s);
    s->using = -1, s->making = 0;
    s->full[0] = s->full[1] = s->stop = false;
    c->slot = NULL, c->skip = from->skip, c->window_len = 0;
    c->epoch_end = c->over = false;
    enum plim_status status = intake_start(c->intake, &place, err);
    if (status == PLIM_OK && s->options.workers > 0 && !start_maker(s))
        status = plim_fail(err, PLIM_NO_MEMORY, "cannot start the data loader's thread");
    return status;
}

void block_source_rest(struct block_source *s)
{
    if (!s) return;
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
    intake_stop(s->cutter.intake);
    if (s->threaded) pthread_join(s->thread, NULL);
    s->threaded = false;
    intake_rest(s->cutter.intake);
}

void block_source_close(struct block_source *s)
{
    if (!s) return;
    block_source_rest(s);
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
        const atomic_int *stop = s->options.stop;
        while (!s->full[next] && !(stop && *stop)) thread_wait(&s->changed, &s->lock, stop != NULL);
        bool there = s->full[next];
        pthread_mutex_unlock(&s->lock);
        if (!there) return plim_fail(err, PLIM_INTERRUPTED, "reading was stopped");
    }
    s->using = next;
    *out = &s->blocks[next];
    if ((*out)->status != PLIM_OK && err) *err = (*out)->err;
    return (*out)->status;
}

size_t block_source_bytes(const struct dataset *data, const struct loader_options *o)
{
    struct intake_options intake;
    struct caps caps;
    find_caps(data, o, &caps);
    intake_options(data, o, &intake);
    size_t block = caps.token_room * sizeof(int32_t) + caps.sample_room * sizeof(size_t);
    return sizeof(struct block_source) + 2 * block + ((size_t)dataset_time(data) + 1) * sizeof(int32_t) +
           (o->workers > 0 ? THREAD_BYTES : 0) + intake_bytes_most(&intake);
}
