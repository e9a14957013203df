/* loader.c - samples in their order become rows; rows become windows. See loader.h.
 *
 * `at` is the cursor: the state before the next row to be formed. Invariants
 *  1. Between two rows the cursor stands before a sample that no row has: rows never share or split one.
 *  2. A window of a stream is formed when it begins and kept until it is filled; one of data read by index is only
 *     measured, and formed again row by row. Either way loader_fill gives the rows that loader_window counted.
 *  3. Whatever the cursor says can be reached again by loader_seek, from its numbers alone.
 */
#include "data/loader_part.h"
#include "base/hash.h"
#include "data/order.h"
#include "data/record.h"

#include <stdlib.h>
#include <string.h>

struct loader {
    struct dataset *data;
    struct loader_options options;
    struct loader_state at;
    bool indexed, finished;      /* finished: `once` is done */
    int empty_epochs;            /* gone by without a row */
    int32_t *sample;             /* [T + 1], by index */
    int64_t sample_number;       /* of the one that was looked at last */
    struct block_source *source; /* NULL: by index */
    bool started;
    struct block *block; /* NULL: the next is not there yet */
    uint64_t block_key;
    char problem[256];
    struct loader_group group; /* with options.grouped */
    /* the window */
    struct loader_state window_start, window_end;
    int64_t window_left, window_rows;
    struct window_row *rows; /* in the order in which they are filled */
    int32_t *lengths;        /* the same */
    int64_t rows_cap;
    struct rows stored; /* streams: its rows */
    int32_t *memory;    /* of those */
    size_t memory_cap;
};

/* One row of the window. */
struct window_row {
    struct loader_state at; /* where it is formed */
    int64_t sample;         /* its last one; where there are groups, its only one */
    int32_t length, number; /* number: in the order of the data */
};

/* What a window of a stream keeps of its rows. */
#define STORED (1u << FEED_IDS | 1u << FEED_POS | 1u << FEED_TARGETS | 1u << FEED_LENGTHS)

/* One sample as the cursor sees it. */
struct view {
    const int32_t *tokens; /* NULL when only measured */
    int64_t length, targets;
    bool none; /* the epoch is over */
};

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the data loader");
}

static enum plim_status make_room_for_rows(struct loader *l, int64_t rows, struct plim_error *err)
{
    if (rows <= l->rows_cap) return PLIM_OK;
    free(l->rows), free(l->lengths);
    l->rows = calloc((size_t)rows, sizeof *l->rows), l->lengths = calloc((size_t)rows, sizeof *l->lengths);
    l->rows_cap = l->rows && l->lengths ? rows : 0;
    return l->rows_cap ? PLIM_OK : no_memory(err);
}

static enum plim_status make_room(struct loader *l, int64_t rows, struct plim_error *err)
{
    enum plim_status status = make_room_for_rows(l, rows, err);
    if (status != PLIM_OK) return status;
    struct rows shape = {.count = rows, .time = dataset_time(l->data)};
    size_t want = (size_t)rows_place(&shape, STORED, NULL);
    if (l->indexed) return PLIM_OK;
    if (want > l->memory_cap) {
        free(l->memory);
        l->memory = malloc(want * sizeof *l->memory), l->memory_cap = 0;
        if (!l->memory) return no_memory(err);
        memset(l->memory, 0, want * sizeof *l->memory);
        l->memory_cap = want;
    }
    rows_place(&shape, STORED, l->memory);
    l->stored = shape;
    return PLIM_OK;
}

static int64_t group_window(const struct loader_options *o)
{
    return o->window_rows * (o->ranks < 1 ? 1 : o->ranks);
}

/* The most that are in one order: of an epoch, or of a block. */
static int64_t group_samples(const struct dataset *data, const struct loader_options *o)
{
    int64_t samples = dataset_samples(data);
    return samples ? samples : o->shuffle_samples;
}

enum plim_status loader_open(struct dataset *data, const struct loader_options *options, struct loader **out,
                             struct plim_error *err)
{
    struct loader *l = calloc(1, sizeof *l);
    if (!l) return no_memory(err);
    l->data = data, l->options = *options;
    if (dataset_options(data)->packing) l->options.grouped = false; /* its rows are all long */
    l->indexed = dataset_samples(data) > 0;
    if (l->options.ranks < 1) l->options.ranks = 1;
    if (l->options.shuffle_samples < 1) l->options.shuffle_samples = 1;
    l->sample = malloc(((size_t)dataset_time(data) + 1) * sizeof *l->sample);
    enum plim_status status = l->sample ? make_room(l, options->window_rows, err) : no_memory(err);
    if (status == PLIM_OK && !l->indexed) status = block_source_open(data, &l->options, &l->source, err);
    if (status == PLIM_OK && l->options.grouped)
        status =
            loader_group_open(&l->group, group_window(&l->options), group_samples(data, &l->options), err);
    if (status != PLIM_OK) {
        loader_close(l);
        return status;
    }
    *out = l;
    return PLIM_OK;
}

static void stop_source(struct loader *l)
{
    block_source_rest(l->source);
    l->started = false, l->block = NULL;
}

void loader_close(struct loader *l)
{
    if (!l) return;
    block_source_close(l->source);
    loader_group_close(&l->group);
    free(l->rows);
    free(l->lengths);
    free(l->memory);
    free(l->sample);
    free(l);
}

int64_t loader_time(const struct loader *l) { return dataset_time(l->data); }
uint64_t loader_seed(const struct loader *l) { return l->options.seed; }
void loader_set_seed(struct loader *l, uint64_t seed)
{
    l->options.seed = seed, l->group.made = false;
    if (l->source) block_source_set_seed(l->source, seed);
}

/* --- the cursor, by index --- */

static enum plim_status measure_indexed(void *arg, int64_t i, int64_t *length, struct plim_error *err)
{
    struct loader *l = arg;
    int64_t targets;
    enum plim_status status = dataset_measure(l->data, i, length, &targets, err);
    if (targets < 1) *length = 0;
    return status;
}

static enum plim_status measure_in_block(void *arg, int64_t i, int64_t *length, struct plim_error *err)
{
    const struct block *b = ((struct loader *)arg)->block;
    (void)err;
    *length = (int64_t)(b->end[i] - (i ? b->end[i - 1] : 0));
    return PLIM_OK;
}

/* The sample at the cursor, of n that are in one order; -1: none is there. */
static enum plim_status sample_here(struct loader *l, uint64_t key, uint64_t n, int64_t *out,
                                    struct plim_error *err)
{
    const struct loader_options *o = &l->options;
    if (o->grouped)
        return loader_group_sample(&l->group, o, key, l->at.index, n,
                                   l->indexed ? measure_indexed : measure_in_block, l, out, err);
    *out = (int64_t)(o->in_order ? l->at.index : order_sample(o->seed, key, l->at.index, n));
    return PLIM_OK;
}

static enum plim_status peek_indexed(struct loader *l, bool want_tokens, struct view *v,
                                     struct plim_error *err)
{
    uint64_t n = (uint64_t)dataset_samples(l->data);
    for (; l->at.index < n; l->at.index++, l->at.dropped++) {
        int64_t i;
        enum plim_status status = sample_here(l, l->at.epoch, n, &i, err);
        if (status != PLIM_OK) return status;
        if (i < 0) continue;
        l->sample_number = i;
        status = want_tokens ? dataset_sample(l->data, i, l->sample, &v->length, &v->targets, err)
                             : dataset_measure(l->data, i, &v->length, &v->targets, err);
        v->tokens = want_tokens ? l->sample : NULL;
        if (status != PLIM_OK || v->targets > 0) return status;
        if (l->options.stop && *l->options.stop)
            return plim_fail(err, PLIM_INTERRUPTED, "reading was stopped");
    }
    v->none = true;
    return PLIM_OK;
}

/* --- the cursor, over blocks --- */

/* Counts that lie before the cursor are its own from now on: a block made again from there does not meet them. */
static void take_counts(struct loader *l, uint64_t bad, uint64_t dropped)
{
    l->at.bad += bad, l->at.dropped += dropped;
    l->block->bad -= bad, l->block->dropped -= dropped;
}

/* Without a sample it says that the epoch is over, and the cursor stands before the next one: a packed row may have
 * looked for more and end here. */
static void enter_empty(struct loader *l)
{
    take_counts(l, l->block->bad, l->block->dropped);
    if (!l->block->epoch_end) return;
    l->at.epoch++;
    l->at.index = l->at.visit = l->at.offset = l->at.line = l->at.skip = 0;
}

static void enter_block(struct loader *l)
{
    const struct block *b = l->block;
    l->group.made = false;
    if (b->problem[0] && !l->problem[0]) memcpy(l->problem, b->problem, sizeof l->problem);
    if (!b->samples) {
        enter_empty(l);
        return;
    }
    take_counts(l, b->start.bad, b->start.dropped);
    l->at.epoch = b->start.epoch, l->at.visit = b->start.visit;
    l->at.offset = b->start.offset, l->at.line = b->start.line, l->at.skip = b->start.skip;
    uint64_t key[] = {b->start.epoch, b->start.visit, b->start.offset, b->start.skip};
    l->block_key = hash64(key, sizeof key, 0) >> 8; /* order_sample multiplies it by its rounds */
}

static enum plim_status first_block(struct loader *l, struct plim_error *err)
{
    struct loader_state from = l->at;
    enum plim_status status = PLIM_OK;
    if (!l->started) status = block_source_start(l->source, &from, err);
    if (status == PLIM_OK) l->started = true;
    if (status == PLIM_OK) status = block_source_next(l->source, &l->block, err);
    if (status != PLIM_OK) {
        l->block = NULL;
        return status;
    }
    enter_block(l);
    if (from.index > l->block->samples || (from.index && l->at.offset != from.offset))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "the data have changed: the place to go on from is not there any more");
    return PLIM_OK;
}

static enum plim_status next_block(struct loader *l, struct plim_error *err)
{
    l->at.bad += l->block->bad, l->at.dropped += l->block->dropped;
    l->at.index = 0;
    enum plim_status status = block_source_next(l->source, &l->block, err);
    if (status == PLIM_OK)
        enter_block(l);
    else
        l->block = NULL;
    return status;
}

static enum plim_status peek_stream(struct loader *l, struct view *v, struct plim_error *err)
{
    enum plim_status status = l->block ? PLIM_OK : first_block(l, err);
    while (status == PLIM_OK && l->at.index == l->block->samples) {
        if (l->block->epoch_end || l->block->over) {
            v->none = true;
            return PLIM_OK;
        }
        status = next_block(l, err);
    }
    if (status != PLIM_OK) return status;
    const struct block *b = l->block;
    int64_t i;
    status = sample_here(l, l->block_key, b->samples, &i, err);
    if (status != PLIM_OK) return status;
    size_t from = i ? b->end[i - 1] : 0;
    v->tokens = b->tokens + from, v->length = (int64_t)(b->end[i] - from), v->targets = 0;
    for (int64_t t = 1; t < v->length; t++) v->targets += token_is_target(v->tokens[t]);
    return PLIM_OK;
}

static enum plim_status peek(struct loader *l, bool want_tokens, struct view *v, struct plim_error *err)
{
    *v = (struct view){0};
    return l->indexed ? peek_indexed(l, want_tokens, v, err) : peek_stream(l, v, err);
}

/* The epoch has no sample left. */
static enum plim_status next_epoch(struct loader *l, struct plim_error *err)
{
    if (l->empty_epochs++ > 1)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: the data hold no sample with a target to learn",
                         dataset_inputs(l->data)->file[0].path);
    if (l->options.once || (!l->indexed && l->block->over)) {
        l->finished = true;
        return PLIM_OK;
    }
    if (!l->indexed) return next_block(l, err);
    l->at.epoch++, l->at.index = 0;
    return PLIM_OK;
}

/* --- rows --- */

static void put_sample(const struct rows *row, int64_t used, const struct view *v)
{
    for (int64_t t = 0; t + 1 < v->length; t++) {
        int32_t next = v->tokens[t + 1];
        row->ids[used + t] = token_id(v->tokens[t]);
        if (row->targets) row->targets[used + t] = token_is_target(next) ? next : -1;
        if (row->pos) row->pos[used + t] = (int32_t)t;
        if (row->types) row->types[used + t] = 0;
    }
}

static void end_row(const struct rows *row, int64_t used)
{
    rows_pad(row, used);
    if (row->lengths) *row->lengths = (int32_t)used;
}

/* A row of one sample. */
static void put_row(const struct rows *row, const struct view *v)
{
    put_sample(row, 0, v);
    end_row(row, v->length - 1);
}

/* The next row of the global order; *length is 0 when there is none. */
static enum plim_status form_row(struct loader *l, const struct rows *row, int64_t *targets, int64_t *length,
                                 struct plim_error *err)
{
    int64_t used = 0, time = dataset_time(l->data);
    bool packing = dataset_options(l->data)->packing;
    enum plim_status status = PLIM_OK;
    *targets = 0;
    while (status == PLIM_OK && !l->finished) {
        struct view v;
        status = peek(l, row->ids != NULL, &v, err);
        if (status != PLIM_OK) break;
        if (v.none) {
            if (used) break;
            status = next_epoch(l, err);
            continue;
        }
        if (used && used + v.length - 1 > time) break;
        if (row->ids) put_sample(row, used, &v);
        used += v.length - 1, *targets += v.targets;
        l->at.index++;
        if (!packing) break;
    }
    *length = used;
    if (status != PLIM_OK || !used) return status;
    l->empty_epochs = 0;
    l->at.rows++;
    if (row->ids) end_row(row, used);
    return PLIM_OK;
}

/* --- windows --- */

static bool is_mine(const struct loader *l)
{
    return l->at.rows % (uint64_t)l->options.ranks == (uint64_t)l->options.rank;
}

static int longer(const void *a, const void *b)
{
    const struct window_row *x = a, *y = b;
    return x->length != y->length ? y->length - x->length : x->number - y->number;
}

/* The rows of the window as they were formed become the order in which they are filled. */
static void order_rows(struct loader *l, struct loader_window *out)
{
    if (l->options.sorted) qsort(l->rows, (size_t)out->rows, sizeof *l->rows, longer);
    for (int64_t i = 0; i < out->rows; i++)
        l->lengths[i] = l->rows[i].length, out->positions += l->rows[i].length;
    out->lengths = l->lengths;
}

/* Forms the next row; when it is this rank's it is the window's. */
static enum plim_status add_row(struct loader *l, struct loader_window *out, bool *over,
                                struct plim_error *err)
{
    bool mine = is_mine(l);
    int64_t targets, length;
    struct rows row = {0};
    struct window_row here = {.at = l->at, .number = (int32_t)out->rows};
    if (mine && !l->indexed) row = rows_from(&l->stored, out->rows);
    enum plim_status status = form_row(l, &row, &targets, &length, err);
    *over = length < 1;
    if (status != PLIM_OK || *over) return status;
    out->all_targets += targets;
    here.length = (int32_t)length, here.sample = l->sample_number;
    if (mine) l->rows[out->rows++] = here, out->targets += targets;
    return PLIM_OK;
}

enum plim_status loader_window(struct loader *l, int64_t rows, struct loader_window *out,
                               struct plim_error *err)
{
    *out = (struct loader_window){0};
    if (l->window_left) l->at = l->window_end;
    l->window_start = l->at;
    l->window_left = l->window_rows = 0;
    enum plim_status status = make_room(l, rows, err);
    bool over = false;
    for (int64_t i = 0; i < rows * l->options.ranks && status == PLIM_OK && !over; i++)
        status = add_row(l, out, &over, err);
    if (status != PLIM_OK) {
        loader_rewind(l);
        return status;
    }
    l->window_end = l->at;
    l->window_left = l->window_rows = out->rows;
    order_rows(l, out);
    if (l->indexed && out->rows) l->finished = false; /* invariant 2: they are formed again */
    return PLIM_OK;
}

static enum plim_status fill_indexed(struct loader *l, const struct window_row *row, const struct rows *to,
                                     struct plim_error *err)
{
    int64_t targets, length;
    enum plim_status status;
    if (l->options.grouped) { /* a group is costly to make, and another one's row may be next */
        struct view v = {.tokens = l->sample};
        status = dataset_sample(l->data, row->sample, l->sample, &v.length, &v.targets, err);
        length = v.length - 1;
        if (status == PLIM_OK) put_row(to, &v);
    } else {
        l->at = row->at;
        status = form_row(l, to, &targets, &length, err);
    }
    if (status == PLIM_OK && length != row->length)
        return plim_fail(err, PLIM_BUG, "a row of the window is gone");
    return status;
}

static void fill_stored(struct loader *l, const struct window_row *row, const struct rows *to)
{
    struct rows from = rows_from(&l->stored, row->number);
    for (int i = 0; i < FEED_COUNT; i++) {
        size_t bytes = (size_t)rows_width(to, (enum feed_name)i) * sizeof *to->ids;
        if (!to->array[i]) continue;
        if (from.array[i])
            memcpy(to->array[i], from.array[i], bytes);
        else
            memset(to->array[i], 0, bytes);
    }
}

enum plim_status loader_fill(struct loader *l, int64_t n, const struct rows *rows, struct plim_error *err)
{
    if (n > l->window_left) return plim_fail(err, PLIM_BUG, "more rows are asked for than the window has");
    for (int64_t i = 0; i < n; i++) {
        struct rows to = rows_from(rows, i);
        enum plim_status status = PLIM_OK;
        const struct window_row *row = &l->rows[l->window_rows - l->window_left];
        if (row->length > rows->time) return plim_fail(err, PLIM_BUG, "a row is longer than its place");
        if (l->indexed)
            status = fill_indexed(l, row, &to, err);
        else
            fill_stored(l, row, &to);
        if (status != PLIM_OK) return status;
        if (--l->window_left == 0) l->at = l->window_end;
    }
    rows_blank(rows, n);
    return PLIM_OK;
}

void loader_rewind(struct loader *l)
{
    if (!l->indexed) stop_source(l);
    l->at = l->window_start;
    l->window_left = 0;
    l->finished = false;
}

/* --- state --- */

void loader_state(const struct loader *l, struct loader_state *out)
{
    *out = l->window_left ? l->window_start : l->at;
}

enum plim_status loader_seek(struct loader *l, const struct loader_state *state, struct plim_error *err)
{
    bool inside = l->indexed ? state->index <= (uint64_t)dataset_samples(l->data)
                             : state->visit <= (uint64_t)dataset_inputs(l->data)->count;
    if (!inside)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "the data have changed: the place to go on from is not there any more");
    stop_source(l);
    l->at = *state;
    l->window_left = 0;
    l->finished = false;
    return PLIM_OK;
}

uint64_t loader_order(const struct loader *l)
{
    const struct loader_options *o = &l->options;
    uint64_t numbers[] = {o->seed, o->in_order, l->indexed ? 0 : (uint64_t)o->shuffle_samples,
                          l->indexed ? 0 : o->shuffle_bytes};
    uint64_t order = hash64(numbers, sizeof numbers, dataset_identity(l->data));
    if (o->grouped) order = hash64(&l->group.window, sizeof l->group.window, order);
    return order;
}

int64_t loader_plain_rows(const struct loader *l)
{
    const struct data_options *o = dataset_options(l->data);
    return o->format == DATA_TEXT && !o->packing ? dataset_samples(l->data) : 0;
}

void loader_stats(const struct loader *l, struct loader_stats *out)
{
    *out = (struct loader_stats){l->at.bad, l->at.dropped, l->problem[0] ? l->problem : NULL};
    if (l->block) out->bad += l->block->bad, out->dropped += l->block->dropped;
}

size_t loader_bytes(const struct dataset *data, const struct loader_options *options)
{
    struct loader_options o = *options;
    size_t row = (size_t)dataset_time(data) + 1;
    if (o.shuffle_samples < 1) o.shuffle_samples = 1;
    size_t sum = sizeof(struct loader) + row * sizeof(int32_t) + dataset_bytes_most(data);
    sum += (size_t)o.window_rows * (sizeof(struct window_row) + sizeof(int32_t));
    if (o.grouped) sum += loader_group_bytes(group_window(&o), group_samples(data, &o));
    if (dataset_samples(data)) return sum;
    struct rows window = {.count = o.window_rows, .time = dataset_time(data)};
    return sum + block_source_bytes(data, &o) + (size_t)rows_place(&window, STORED, NULL) * sizeof(int32_t);
}
