/* pretokenize.h - turns data files into one token file, in parallel; an interrupted run can be resumed.
 *
 *     struct pretokenize_options options = {.data = {...}, .codec = &codec, .out = "corpus.tok", .workers = 4};
 *     pretokenize(&options, &result, &err);
 *
 * The result depends only on the data and the options, not on the number of workers or on interruptions. While it runs
 * there are OUT.part and OUT.part.journal; the journal records the progress, the data and the options. With `resume` a
 * matching journal is continued.
 */
#pragma once

#include "data/dataset.h"
#include <stdatomic.h>

struct pretokenize_progress {
    uint64_t bytes, total_bytes; /* sizes on disk */
    uint64_t tokens, samples, bad;
};

struct pretokenize_options {
    struct data_options data; /* paths, format, fields, skip_bad, marks */
    const struct codec *codec;
    const char *out;
    int workers, prefetch;
    size_t max_line;
    bool resume;
    atomic_int *stop; /* NULL: never */
    /* Called now and then; may be NULL. */
    void (*hear)(void *arg, const struct pretokenize_progress *progress);
    void *arg;
};

struct pretokenize_result {
    struct pretokenize_progress progress;
    uint64_t resumed_tokens; /* from before the interruption */
    uint64_t input_bytes;    /* read in this run, decompressed */
    char problem[256];       /* the first bad record */
};

/* PLIM_INTERRUPTED: *stop was set, and the journal is up to date. */
enum plim_status pretokenize(const struct pretokenize_options *options, struct pretokenize_result *result,
                             struct plim_error *err);
