/* generate_seq2seq.h - text from an encoder-decoder, inside a budget: the source is read once, then one token after the other.
 *
 *     struct seq2seq *s;
 *     seq2seq_open(dir, device, &(struct seq2seq_room){.source = n, .tokens = 64, .beams = 4}, &s, &err);
 *     seq2seq_run(s, &(struct seq2seq_request){.source = ids, .count = n, .tokens = 64, ..}, &result, &err);
 *     seq2seq_close(s);
 *
 * Parameters stay in the type of their files, or are quantised to blocks (model/quantise.h). The arena holds them,
 * the source's keys and values for each decoder layer, a cache of exactly the target's positions, and the transients
 * of one pass. It is planned and committed before the weights are read. With several beams every cache has one row
 * per beam, and the answer is reported at the end, when it is certain. */
#ifndef PLIM_SERVE_GENERATE_SEQ2SEQ_H
#define PLIM_SERVE_GENERATE_SEQ2SEQ_H

#include "base/log.h"
#include "device/device.h"
#include "model/model.h"
#include "model/quantise.h"
#include "tensor/sample.h"
#include "tape/pass.h"
#include <stdatomic.h>

#define SEQ2SEQ_MAX_BEAMS 64

/* Limits and options of a seq2seq. */
struct seq2seq_room {
    int64_t source, tokens; /* of the longest source and answer, at least 1 each */
    int beams;              /* from 1 to SEQ2SEQ_MAX_BEAMS; 1: tokens are drawn */
    int64_t budget;         /* bytes the process may take; 0: no line */
    enum weights_kind weights;
    int64_t overhead;      /* host bytes outside the arena; 0: measured now */
    const struct log *log; /* hears of unused tensors; NULL: nobody */
};

/* The plan that was committed. */
struct seq2seq_plan {
    int64_t budget, arena, total; /* total: arena plus overhead on the device's ledger */
    int64_t params, cache;        /* bytes, parts of the arena */
    int64_t positions;            /* of an answer */
    enum precision precision;
};

struct seq2seq;

/* PLIM_NO_FIT with the bytes missing, PLIM_BAD_INPUT for room that makes no sense, and the errors of hf_config_load and
 * weights_from_directory. The device is borrowed until seq2seq_close. */
enum plim_status seq2seq_open(const char *dir, struct device *device, const struct seq2seq_room *room,
                              struct seq2seq **out, struct plim_error *err);
void seq2seq_close(struct seq2seq *s);

const struct model_spec *seq2seq_spec(const struct seq2seq *s);
const struct seq2seq_plan *seq2seq_plan(const struct seq2seq *s);

struct seq2seq_request {
    const int32_t *source; /* ids below the vocabulary */
    int64_t count, tokens;
    int64_t vocab; /* ids from here on have no text and are never written; 0: all may be */
    /* Used with one beam; with more, beam.h searches for the likeliest text. */
    struct sampling sampling;
    double length_penalty;                  /* of that search */
    bool (*hear)(void *arg, int32_t token); /* each token as it comes; false: stop */
    void *arg;
    atomic_int *stop; /* NULL: never */
};

enum seq2seq_stop {
    SEQ2SEQ_ENOUGH, /* as many tokens as asked for */
    SEQ2SEQ_END,    /* the model's end-of-text token, which is not handed out */
    SEQ2SEQ_ASKED,  /* *stop was set, or hear said so */
};

struct seq2seq_result {
    int64_t tokens;
    enum seq2seq_stop stop;
    double source_seconds, seconds; /* reading the source; making the tokens */
};

/* Starts from empty caches each time. */
enum plim_status seq2seq_run(struct seq2seq *s, const struct seq2seq_request *request,
                             struct seq2seq_result *result, struct plim_error *err);

#endif
