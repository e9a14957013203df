/* pretokenize.h - data files become one token file, in parallel, and can go on after a stop.
 *
 *     struct pretokenize_options options = {.data = {...}, .codec = &codec, .out = "corpus.tok", .workers = 4};
 *     pretokenize(&options, &result, &err);
 *
 * The result depends on the data and the options alone: not on the number of workers, nor on how often the work was
 * interrupted. While it is under way there are OUT.part and OUT.part.journal; the journal says how far it has come
 * and for which data and options. With `resume` a matching journal is continued.
 */
#ifndef PLIM_DATA_PRETOKENIZE_H
#define PLIM_DATA_PRETOKENIZE_H

#include "data/dataset.h"
#include <stdatomic.h>

struct pretokenize_progress {
    uint64_t bytes, total_bytes; /* of the files as they lie on disk */
    uint64_t tokens, samples, bad;
};

struct pretokenize_options {
    struct data_options data; /* paths, format, fields, skip_bad, marks */
    const struct codec *codec;
    const char *out;
    int workers, prefetch;
    size_t max_line;
    bool resume;
    atomic_int *stop;                                                     /* NULL: never */
    void (*hear)(void *arg, const struct pretokenize_progress *progress); /* now and then; may be NULL */
    void *arg;
};

struct pretokenize_result {
    struct pretokenize_progress progress;
    uint64_t resumed_tokens; /* there from before */
    uint64_t input_bytes;    /* read now, decompressed */
    char problem[256];       /* the first bad record */
};

/* PLIM_INTERRUPTED when *stop was set: the journal is up to date. */
enum plim_status pretokenize(const struct pretokenize_options *options, struct pretokenize_result *result,
                             struct plim_error *err);

#endif
