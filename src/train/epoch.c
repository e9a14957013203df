/* epoch.c - see epoch.h. Rows are counted by a loader that takes them in order: packing aside, there are as many in any
 * order. */
#include "train/epoch.h"
#include "runtime/lengths.h"

#include <math.h>

/* Samples of a block: where a stream stands is known from block to block. */
#define BLOCK 64
/* Rows that an estimate reads. */
#define SAMPLE 1024
/* Positions of a window, and of all that an estimate reads: rows are padded, and few long ones take as long as many short. */
#define WINDOW_POSITIONS ((int64_t)1 << 20)
#define SAMPLE_POSITIONS ((int64_t)1 << 24)

/* Bytes of the files, and those before a place; 0: they say little, some are compressed. */
static double bytes_before(const struct dataset *data, uint64_t visit, uint64_t offset, double *all)
{
    const struct inputs *in = dataset_inputs(data);
    double before = (double)offset;
    *all = 0;
    for (int i = 0; i < in->count; i++) {
        if (!input_is_plain(&in->file[i])) return 0;
        if ((uint64_t)i < visit) before += (double)in->file[i].bytes;
        *all += (double)in->file[i].bytes;
    }
    return before;
}

/* The share of the data that lies before the cursor. */
static double share_done(const struct dataset *data, const struct loader *loader)
{
    struct loader_state at;
    double all = 0;
    loader_state(loader, &at);
    if (dataset_samples(data)) return (double)at.index / (double)dataset_samples(data);
    double before = bytes_before(data, at.visit, at.offset, &all);
    return all > 0 ? before / all : 0;
}

/* Positions computed for a row: with padding: longest, as many as the next length has. */
static int64_t computed(const struct job *job, const int64_t *ladder, int steps, int32_t length)
{
    int64_t positions = job->max_length;
    for (int i = 0; i < steps && job->data.padding == PADDING_LONGEST; i++)
        if (ladder[i] >= length) positions = ladder[i];
    return positions + job_source_time(job, positions);
}

static void add_window(const struct job *job, const struct loader_window *w, struct job_epoch *out)
{
    int64_t ladder[LENGTHS_LADDER];
    int steps = lengths_ladder(job->max_length, ladder);
    out->rows += w->rows, out->tokens += w->positions;
    for (int64_t i = 0; i < w->rows; i++) out->positions += computed(job, ladder, steps, w->lengths[i]);
}

/* As many rows as have so many positions, at least one and at most `most`. */
static int64_t rows_of(const struct corpus *c, int64_t positions, int64_t most)
{
    int64_t rows = positions / dataset_time(c->train);
    return rows < 1 ? 1 : rows > most ? most : rows;
}

/* Up to `most` rows; *share of the data that they are, as far as can be said. */
static enum plim_status read_rows(const struct corpus *c, struct loader *loader, int64_t most,
                                  struct job_epoch *out, double *share, struct plim_error *err)
{
    struct job_epoch known = {0};
    double last = 0;
    *out = (struct job_epoch){.exact = true}, *share = 1;
    while (out->exact) {
        struct loader_window window;
        enum plim_status status = loader_window(loader, rows_of(c, WINDOW_POSITIONS, BLOCK), &window, err);
        if (status != PLIM_OK) return status;
        if (!window.rows) return PLIM_OK;
        double done = share_done(c->train, loader); /* of a stream, before the block the cursor is in */
        if (done > last) known = *out, last = done;
        add_window(c->job, &window, out);
        if (dataset_samples(c->train)) known = *out;
        out->exact = out->rows < most;
    }
    *out = known, out->exact = false, *share = last;
    return PLIM_OK;
}

static enum plim_status measure(const struct corpus *c, int64_t most, struct job_epoch *out, double *share,
                                struct plim_error *err)
{
    const struct job_data *d = &c->job->data;
    struct loader_options options = {.in_order = true,
                                     .once = true,
                                     .prefetch = 1,
                                     .max_line = (size_t)c->sizes.at[0].max_line_bytes,
                                     .shuffle_samples = BLOCK,
                                     .shuffle_bytes = (size_t)d->shuffle_bytes,
                                     .window_rows = rows_of(c, WINDOW_POSITIONS, BLOCK),
                                     .stop = c->stop};
    struct loader *loader;
    *out = (struct job_epoch){0};
    enum plim_status status = loader_open(c->train, &options, &loader, err);
    if (status != PLIM_OK) return status;
    status = read_rows(c, loader, most, out, share, err);
    loader_close(loader);
    return status;
}

enum plim_status epoch_count(const struct corpus *c, struct job_epoch *out, struct plim_error *err)
{
    double share;
    return measure(c, INT64_MAX, out, &share, err);
}

void epoch_known(const struct corpus *c, struct job_epoch *out)
{
    int64_t time = c->job->max_length;
    *out = (struct job_epoch){.rows = c->job->data.packing ? 0 : dataset_samples(c->train)};
    out->positions = out->rows * (time + job_source_time(c->job, time));
}

enum plim_status epoch_estimate(const struct corpus *c, struct job_epoch *out, struct plim_error *err)
{
    double share = 0;
    enum plim_status status = measure(c, rows_of(c, SAMPLE_POSITIONS, SAMPLE), out, &share, err);
    if (status != PLIM_OK || share <= 0 || !out->rows) {
        *out = (struct job_epoch){0};
        return status;
    }
    out->rows = llround((double)out->rows / share);
    out->tokens = llround((double)out->tokens / share);
    out->positions = llround((double)out->positions / share);
    return PLIM_OK;
}
