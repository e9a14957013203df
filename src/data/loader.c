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
    int64_t targets;
    int64_t sample;         /* its last one; where there are groups, its only one */
    uint64_t epoch;         /* of that */
    int32_t length, number; /* length: positions that it needs; number: in the order of the data */
    int32_t used, source;   /* positions in use, a source's too; of a source */
};

/* Extent of a row. */
struct extent {
    int64_t positions, targets, source;
    uint64_t epoch; /* of its first sample */
};

enum { ROWS_MOST = 2 }; /* of a sample */

/* Feeds that a stream's window stores for its rows. */
static unsigned stored_feeds(const struct dataset *data)
{
    return objective_row(dataset_rules(data)->objective)->feeds | 1u << FEED_LENGTHS;
}

/* Arrays for so many samples. */
static struct rows stored_shape(const struct dataset *data, int64_t samples)
{
    const struct objective_rules *r = dataset_rules(data);
    return (struct rows){
        .count = samples * objective_row(r->objective)->rows, .time = r->time, .source_time = r->source_time};
}

/* One sample as the cursor sees it. */
struct view {
    struct sample sample; /* its tokens are NULL when it was only measured */
    int64_t positions, targets, source;
    bool none; /* the epoch is over */
};

/* Positions that a row needs: where it has a source, so many that the same share of a source's positions is enough for
 * that. Rows of like lengths are then alike on both sides. */
static int64_t length_of(const struct loader *l, int64_t positions, int64_t source)
{
    const struct objective_rules *r = dataset_rules(l->data);
    int64_t beside = source ? (source * r->time + r->source_time - 1) / r->source_time : 0;
    return positions > beside ? positions : beside;
}

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

/* Rows that a window of `rows` for each rank is made of here: all ranks', where they are dealt out after sorting. */
static int64_t rows_here(const struct loader_options *o, int64_t rows)
{
    return o->sorted && o->ranks > 1 ? rows * o->ranks : rows;
}

/* For so many rows of the window here. */
static enum plim_status make_room(struct loader *l, int64_t rows, struct plim_error *err)
{
    enum plim_status status = make_room_for_rows(l, rows, err);
    if (status != PLIM_OK) return status;
    struct rows shape = stored_shape(l->data, rows);
    size_t want = (size_t)rows_place(&shape, stored_feeds(l->data), NULL);
    if (l->indexed) return PLIM_OK;
    if (want > l->memory_cap) {
        free(l->memory);
        l->memory = malloc(want * sizeof *l->memory), l->memory_cap = 0;
        if (!l->memory) return no_memory(err);
        memset(l->memory, 0, want * sizeof *l->memory);
        l->memory_cap = want;
    }
    rows_place(&shape, stored_feeds(l->data), l->memory);
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
    l->sample = malloc((size_t)objective_sample_most(dataset_rules(data)) * sizeof *l->sample);
    enum plim_status status =
        l->sample ? make_room(l, rows_here(options, options->window_rows), err) : no_memory(err);
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

int loader_ranks(const struct loader *l) { return l->options.ranks; }
int64_t loader_time(const struct loader *l) { return dataset_time(l->data); }
uint64_t loader_seed(const struct loader *l) { return l->options.seed; }
void loader_set_seed(struct loader *l, uint64_t seed)
{
    l->options.seed = seed, l->group.made = false;
    if (l->source) block_source_set_seed(l->source, seed);
}

/* --- the cursor, by index --- */

static void measure(const struct loader *l, struct view *v)
{
    objective_measure(dataset_rules(l->data), &v->sample, &v->positions, &v->targets);
    v->source = objective_source(dataset_rules(l->data), &v->sample);
}

/* Sample i with its tokens. */
static enum plim_status read_sample(struct loader *l, int64_t i, uint64_t key, struct view *v,
                                    struct plim_error *err)
{
    int64_t unused;
    uint64_t place[] = {key, (uint64_t)i};
    v->sample =
        (struct sample){.tokens = l->sample, .seed = l->options.seed, .key = hash64(place, sizeof place, 0)};
    enum plim_status status = dataset_sample(l->data, i, l->sample, &v->sample.count, &unused, err);
    if (status == PLIM_OK) measure(l, v);
    return status;
}

/* The next token's targets can be counted without the tokens. */
static enum plim_status look_at(struct loader *l, int64_t i, bool want_tokens, struct view *v,
                                struct plim_error *err)
{
    int64_t length;
    if (want_tokens || dataset_rules(l->data)->objective != OBJECTIVE_NEXT_TOKEN)
        return read_sample(l, i, l->at.epoch, v, err);
    enum plim_status status = dataset_measure(l->data, i, &length, &v->targets, err);
    v->positions = length > 0 ? length - 1 : 0;
    return status;
}

/* Sample i of the block. */
static void look_in_block(const struct loader *l, int64_t i, struct view *v)
{
    const struct block *b = l->block;
    size_t from = i ? b->end[i - 1] : 0;
    uint64_t place[] = {l->block_key, (uint64_t)i};
    v->sample = (struct sample){.tokens = b->tokens + from,
                                .count = (int64_t)(b->end[i] - from),
                                .seed = l->options.seed,
                                .key = hash64(place, sizeof place, 0)};
    measure(l, v);
}

static enum plim_status measure_sample(void *arg, int64_t i, int64_t *length, struct plim_error *err)
{
    struct loader *l = arg;
    struct view v = {0};
    enum plim_status status = PLIM_OK;
    if (l->indexed)
        status = look_at(l, i, false, &v, err);
    else
        look_in_block(l, i, &v);
    *length = v.targets > 0 ? length_of(l, v.positions, v.source) : 0;
    return status;
}

/* The sample at the cursor, of n that are in one order; -1: none is there. */
static enum plim_status sample_here(struct loader *l, uint64_t key, uint64_t n, int64_t *out,
                                    struct plim_error *err)
{
    const struct loader_options *o = &l->options;
    if (o->grouped)
        return loader_group_sample(&l->group, o, key, l->at.index, n, measure_sample, l, out, err);
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
        status = look_at(l, i, want_tokens, v, err);
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
                         "the data have changed: the position to continue from no longer exists");
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
    look_in_block(l, i, v);
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

static int rows_of_sample(const struct loader *l)
{
    return objective_row(dataset_rules(l->data)->objective)->rows;
}

/* A pair's texts have lengths of their own, which objective_put has set. */
static void end_rows(const struct loader *l, const struct rows *rows, int64_t used)
{
    int count = rows_of_sample(l);
    for (int k = 0; k < count; k++) {
        bool own = count > 1 && rows[k].lengths;
        rows_pad(&rows[k], own ? *rows[k].lengths : used);
        if (rows[k].lengths && !own) *rows[k].lengths = (int32_t)used;
    }
}

/* The next row of the global order; it has no positions when there is none, or with `stays` none left in this epoch. */
static enum plim_status form_row(struct loader *l, const struct rows *rows, bool stays, struct extent *out,
                                 struct plim_error *err)
{
    int64_t used = 0, time = dataset_time(l->data);
    bool packing = dataset_options(l->data)->packing;
    enum plim_status status = PLIM_OK;
    *out = (struct extent){0};
    while (status == PLIM_OK && !l->finished) {
        struct view v;
        status = peek(l, rows->ids != NULL, &v, err);
        if (status != PLIM_OK) break;
        if (v.none) {
            if (used || stays) break;
            status = next_epoch(l, err);
            continue;
        }
        if (used && used + v.positions > time) break;
        if (rows->ids) objective_put(dataset_rules(l->data), &v.sample, rows, used);
        if (!used) out->epoch = l->at.epoch;
        used += v.positions, out->targets += v.targets, out->source += v.source;
        l->at.index++;
        if (!packing) break;
    }
    out->positions = used;
    if (status != PLIM_OK || !used) return status;
    l->empty_epochs = 0;
    l->at.rows++;
    if (rows->ids) end_rows(l, rows, used);
    return PLIM_OK;
}

/* --- windows --- */

static int longer(const void *a, const void *b)
{
    const struct window_row *x = a, *y = b;
    return x->length != y->length ? y->length - x->length : x->number - y->number;
}

/* Keeps this rank's rows out of the sorted ones. The slot's length is the longest over all ranks. */
static void deal_rows(struct loader *l, struct loader_window *out)
{
    int64_t ranks = l->options.ranks, kept = out->rows;
    out->rows = 0;
    for (int64_t i = 0; i < kept; i++) {
        if (i % ranks == 0) l->lengths[i / ranks] = l->rows[i].length;
        if (i % ranks == l->options.rank) l->rows[out->rows++] = l->rows[i];
    }
}

/* The rows of the window as they were formed become the order in which they are filled. Rows that are not sorted have one
 * length. */
static void order_rows(struct loader *l, struct loader_window *out)
{
    bool sorted = l->options.sorted;
    if (sorted) qsort(l->rows, (size_t)out->rows, sizeof *l->rows, longer);
    if (sorted && l->options.ranks > 1) {
        deal_rows(l, out);
    } else {
        for (int64_t i = 0; i < out->slots; i++)
            l->lengths[i] = i < out->rows ? l->rows[i].length : l->lengths[0];
    }
    for (int64_t i = 0; i < out->rows; i++)
        out->positions += l->rows[i].used, out->targets += l->rows[i].targets;
    out->lengths = l->lengths;
}

/* The rows of one sample, `step` apart. Those of a pair that is compared with others have no targets. */
static void place_rows(const struct loader *l, const struct rows *all, int64_t first, int64_t step,
                       struct rows out[ROWS_MOST])
{
    int count = rows_of_sample(l);
    for (int k = 0; k < count; k++) {
        out[k] = rows_from(all, first + k * step);
        if (objective_row(dataset_rules(l->data)->objective)->compares) out[k].targets = NULL;
    }
}

/* Forms the next row; when it may be this rank's it is kept. */
static enum plim_status add_row(struct loader *l, struct loader_window *out, bool *over,
                                struct plim_error *err)
{
    bool mine = out->all_rows % l->options.ranks == l->options.rank || l->options.sorted;
    bool stays = l->options.whole_epochs && out->all_rows > 0;
    struct extent has;
    struct rows rows[ROWS_MOST] = {0};
    struct window_row here = {.at = l->at, .number = (int32_t)out->rows};
    if (mine && !l->indexed) place_rows(l, &l->stored, out->rows * rows_of_sample(l), 1, rows);
    enum plim_status status = form_row(l, rows, stays, &has, err);
    *over = has.positions < 1;
    if (status != PLIM_OK || *over) return status;
    if (!out->all_rows) out->epoch = has.epoch;
    out->all_rows++, out->all_targets += has.targets;
    here.targets = has.targets;
    here.length = (int32_t)length_of(l, has.positions, has.source);
    here.used = (int32_t)(has.positions + has.source), here.source = (int32_t)has.source;
    out->all_positions += here.used;
    here.sample = l->sample_number, here.epoch = l->at.epoch;
    if (mine) l->rows[out->rows++] = here;
    return PLIM_OK;
}

enum plim_status loader_window(struct loader *l, int64_t rows, struct loader_window *out,
                               struct plim_error *err)
{
    return loader_window_of(l, rows * l->options.ranks, out, err);
}

enum plim_status loader_window_of(struct loader *l, int64_t all_rows, struct loader_window *out,
                                  struct plim_error *err)
{
    int64_t ranks = l->options.ranks, rows = (all_rows + ranks - 1) / ranks;
    *out = (struct loader_window){0};
    if (l->window_left) l->at = l->window_end;
    l->window_start = l->at;
    l->window_left = l->window_rows = 0;
    enum plim_status status = make_room(l, rows_here(&l->options, rows), err);
    bool over = false;
    for (int64_t i = 0; i < all_rows && status == PLIM_OK && !over; i++) status = add_row(l, out, &over, err);
    if (status != PLIM_OK) {
        loader_rewind(l);
        return status;
    }
    l->window_end = l->at;
    out->slots = (out->all_rows + ranks - 1) / ranks;
    order_rows(l, out);
    l->window_left = l->window_rows = out->rows;
    if (l->indexed && out->rows) l->finished = false; /* invariant 2: they are formed again */
    return PLIM_OK;
}

static enum plim_status fill_indexed(struct loader *l, const struct window_row *row, const struct rows *to,
                                     struct plim_error *err)
{
    struct extent has = {0};
    enum plim_status status;
    if (l->options.grouped) { /* a group is costly to make, and another one's row may be next */
        struct view v;
        status = read_sample(l, row->sample, row->epoch, &v, err);
        if (status == PLIM_OK) has = (struct extent){.positions = v.positions, .source = v.source};
        if (status == PLIM_OK)
            objective_put(dataset_rules(l->data), &v.sample, to, 0), end_rows(l, to, has.positions);
    } else {
        l->at = row->at;
        status = form_row(l, to, false, &has, err);
    }
    if (status == PLIM_OK && has.positions + has.source != row->used)
        return plim_fail(err, PLIM_BUG, "a row of the window is gone");
    return status;
}

static void copy_row(const struct rows *from, const struct rows *to)
{
    for (int i = 0; i < FEED_COUNT; i++) {
        size_t bytes = (size_t)rows_width(to, (enum feed_name)i) * sizeof *to->ids;
        if (!to->array[i]) continue;
        if (from->array[i])
            memcpy(to->array[i], from->array[i], bytes);
        else
            memset(to->array[i], 0, bytes);
    }
}

static void fill_stored(struct loader *l, const struct window_row *row, const struct rows *to)
{
    int count = rows_of_sample(l);
    for (int k = 0; k < count; k++) {
        struct rows from = rows_from(&l->stored, row->number * count + k);
        copy_row(&from, &to[k]);
    }
}

/* Clears the rows after n samples. A batch of pairs has the second rows in its second half. Where all are compared there is
 * one target per pair: the pair's index. */
static void end_batch(const struct loader *l, int64_t n, const struct rows *rows)
{
    int64_t half = rows->count / 2;
    if (rows_of_sample(l) == 1) {
        rows_blank(rows, n);
        return;
    }
    bool compares = objective_row(dataset_rules(l->data)->objective)->compares;
    struct rows first = *rows, second = rows_from(rows, half);
    first.count = half;
    if (compares) first.targets = second.targets = NULL;
    rows_blank(&first, n);
    rows_blank(&second, n);
    for (int64_t i = 0; i < half && rows->targets && compares; i++)
        rows->targets[i] = i < n ? (int32_t)i : -1;
}

enum plim_status loader_fill(struct loader *l, int64_t n, const struct rows *rows, struct plim_error *err)
{
    int64_t step = rows->count / rows_of_sample(l);
    if (n > l->window_left || n > step)
        return plim_fail(err, PLIM_BUG, "more rows were requested than the window or the batch has");
    for (int64_t i = 0; i < n; i++) {
        struct rows to[ROWS_MOST] = {0};
        enum plim_status status = PLIM_OK;
        const struct window_row *row = &l->rows[l->window_rows - l->window_left];
        if (row->length > rows->time || (rows->source_ids && row->source > rows->source_time))
            return plim_fail(err, PLIM_BUG, "a row is longer than its place");
        place_rows(l, rows, i, step, to);
        if (l->indexed)
            status = fill_indexed(l, row, to, err);
        else
            fill_stored(l, row, to);
        if (status != PLIM_OK) return status;
        if (--l->window_left == 0) l->at = l->window_end;
    }
    end_batch(l, n, rows);
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
                         "the data have changed: the position to continue from no longer exists");
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
    size_t row = (size_t)objective_sample_most(dataset_rules(data));
    if (o.shuffle_samples < 1) o.shuffle_samples = 1;
    size_t sum = sizeof(struct loader) + row * sizeof(int32_t) + dataset_bytes_most(data);
    if (o.ranks < 1) o.ranks = 1;
    int64_t rows = rows_here(&o, o.window_rows);
    sum += (size_t)rows * (sizeof(struct window_row) + sizeof(int32_t));
    if (o.grouped) sum += loader_group_bytes(group_window(&o), group_samples(data, &o));
    if (dataset_samples(data)) return sum;
    struct rows window = stored_shape(data, rows);
    return sum + block_source_bytes(data, &o) +
           (size_t)rows_place(&window, stored_feeds(data), NULL) * sizeof(int32_t);
}
