/* embed.h - vectors or labels of texts, inside a budget: rows of tokens go through an encoder in batches of similar length.
 *
 *     struct embedder *e;
 *     embedder_open(&(struct embed_room){.how = how, .budget = 256 << 20}, device, &e, &err);
 *     embedder_run(e, rows, count, vectors, &err);       // vectors [count][embedder_width(e)], in the order of rows
 *     embedder_close(e);
 *
 * What is read from the last hidden states is a vector of each row or, where room.labels says so, the logits of the model's
 * labels: of each row, or of each token of each row (embedder_per_token).
 *
 * Parameters stay in the type their files have, or are rounded to blocks (model/quantise.h). Rows of one call are sorted by length; a batch takes the longest that are
 * left, as many as the plan's tokens allow and are of similar length, and has a tape of its own shape. All tapes
 * are members of a forward family (runtime/runtime.h) over one arena, which is planned for the longest rows and committed
 * before the weights are read. What a row's vector is depends on nothing but the row: not on the batch it came in, beyond
 * the rounding of sums over a row that is longer.
 */
#ifndef PLIM_SERVE_EMBED_H
#define PLIM_SERVE_EMBED_H

#include "base/log.h"
#include "device/device.h"
#include "model/quantise.h"
#include "model/sentence.h"
#include "tape/pass.h"

/* What to make room for. */
struct embed_room {
    struct sentence_config
        how;        /* pooling, normalize; max_length: tokens of a row at most, 0: the model's positions */
    int64_t rows;   /* of a batch at most; 0: as many as EMBED_TOKENS allow */
    int64_t budget; /* bytes the process may take; 0: no line */
    int64_t limit;  /* bytes the device has: holds where there is no budget; 0: unknown */
    int64_t *need;  /* gets the bytes of the smallest plan where nothing fits; NULL: nobody asks */
    bool labels;    /* logits of labels instead of vectors */
    bool plan_only; /* nothing is committed: the plan can be read, and the embedder be closed */
    enum weights_kind weights; /* as files have them, or in blocks of 8 or 4 bits */
    int64_t beside;            /* bytes that the caller takes on the way, counted in the plan */
    bool
        exact; /* fp32 is multiplied as it is, not in two bf16 parts where that is faster (device/cpu/gemm.h) */
    const struct log *log; /* hears of unused tensors; NULL: nobody */
};

/* Tokens of a batch: what keeps a CPU's cores busy and its caches warm; a GPU takes more. */
#define EMBED_TOKENS     2048
#define EMBED_TOKENS_GPU 32768

/* The plan that was committed. */
struct embed_plan {
    int64_t budget, overhead, arena, total, params; /* bytes */
    int64_t time, rows;                             /* of the longest batch */
    enum precision precision;
};

struct embed_row {
    const int32_t *ids; /* below the vocabulary */
    int64_t count;      /* from 1 to the plan's time */
    int64_t second;     /* where its second segment begins; 0: it has none */
};

/* Counted over all calls of embedder_run. */
struct embed_count {
    int64_t rows, tokens, positions; /* positions: computed, padding included */
    double seconds;
};

struct embedder;
struct exec;
struct layout;

/* PLIM_NO_FIT with the bytes missing; PLIM_UNSUPPORTED for a model that writes text, or has no labels to read; the errors of hf_config_load and
 * weights_from_directory. The device is borrowed until embedder_close. */
enum plim_status embedder_open(const struct embed_room *room, struct device *device, struct embedder **out,
                               struct plim_error *err);
void embedder_close(struct embedder *e);

/* Between two runs: batches as large as another budget allows. Below embedder_smallest: PLIM_NO_FIT. On an error the old
 * plan stands. */
enum plim_status embedder_move(struct embedder *e, int64_t budget, struct plim_error *err);
/* What the plan takes with batches of one row. */
int64_t embedder_smallest(const struct embedder *e);

const struct model_spec *embedder_spec(const struct embedder *e);
const struct embed_plan *embedder_plan(const struct embedder *e);
const struct embed_count *embedder_count(const struct embedder *e);

/* Who runs the passes of batches in the stead of exec_loop, e.g. to measure one. */
typedef enum plim_status embed_pass(void *arg, struct exec *exec, struct plim_error *err);
void embedder_pass_by(struct embedder *e, embed_pass *pass, void *arg);
/* The pass over a batch of the longest rows. */
void embedder_largest(const struct embedder *e, const struct tape **tape, const struct layout **layout);

/* Numbers of a row's result, or of each token's. */
int64_t embedder_width(const struct embedder *e);
bool embedder_per_token(const struct embedder *e);

/* out: [count][width]; per token [tokens of all rows][width], one row after the other. */
enum plim_status embedder_run(struct embedder *e, const struct embed_row *rows, int64_t count, float *out,
                              struct plim_error *err);

#endif
