/* embed.h - vectors or labels of texts within a budget: rows of tokens pass through an encoder in batches of similar
 * length.
 *
 *     struct embedder *e;
 *     embedder_open(&(struct embed_room){.how = how, .budget = 256 << 20}, device, &e, &err);
 *     embedder_run(e, rows, count, vectors, &err);       // vectors [count][embedder_width(e)], in the order of rows
 *     embedder_close(e);
 *
 * The result is one vector per row. With room.labels it is the logits of the model's labels, per row or per token
 * (embedder_per_token).
 *
 * Parameters stay in the type of their files, or are quantised to blocks (model/quantise.h). Rows of one call are
 * sorted by length. A batch takes the longest remaining rows of similar length, up to the plan's tokens, and has a
 * tape of its own shape. All tapes are members of a forward family (runtime/runtime.h) over one arena, which is
 * planned for the longest rows and committed before the weights are read. A row's vector does not depend on its
 * batch, except for the rounding of sums over longer rows.
 */
#pragma once

#include "base/log.h"
#include "device/device.h"
#include "model/quantise.h"
#include "model/sentence.h"
#include "tape/pass.h"

/* Limits and options of an embedder. */
struct embed_room {
    /* Pooling and normalize; max_length is the maximum number of tokens per row, 0: the model's positions. */
    struct sentence_config how;
    int64_t rows;              /* maximum per batch; 0: as many as EMBED_TOKENS allow */
    int64_t budget;            /* bytes the process may take; 0: no limit */
    int64_t limit;             /* device memory, the limit when there is no budget; 0: unknown */
    int64_t *need;             /* out: bytes of the smallest plan if nothing fits; may be NULL */
    bool labels;               /* logits of labels instead of vectors */
    bool plan_only;            /* commits nothing: the embedder can report its plan and be closed */
    enum weights_kind weights; /* as files have them, or in blocks of 8 or 4 bits */
    const char *adapter;       /* PEFT folder that is merged into the weights; NULL: none */
    int64_t caller_bytes;      /* host memory used by the caller; counted in the plan */
    /* Multiplies fp32 as it is, never as two bf16 parts where that is faster (device/cpu/gemm.h). */
    bool exact;
    const struct log *log; /* hears of unused tensors; may be NULL */
};

/* Tokens per batch: enough to keep a CPU's cores busy and its caches warm; a GPU takes more. */
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

/* Totals over all calls of embedder_run. */
struct embed_count {
    int64_t rows, tokens, positions; /* positions: computed, padding included */
    double seconds;
};

struct embedder;
struct exec;
struct layout;

/* PLIM_NO_FIT names the missing bytes; PLIM_UNSUPPORTED: the model generates text, or has no labels. Other errors are
 * those of hf_config_load and weights_from_directory. The device is borrowed until embedder_close. */
enum plim_status embedder_open(const struct embed_room *room, struct device *device, struct embedder **out,
                               struct plim_error *err);
void embedder_close(struct embedder *e);

/* Changes the budget between two runs, and with it the size of batches. PLIM_NO_FIT: below embedder_smallest. On an
 * error the old plan stays. */
enum plim_status embedder_move(struct embedder *e, int64_t budget, struct plim_error *err);
/* Bytes of the plan with batches of one row. */
int64_t embedder_smallest(const struct embedder *e);

const struct model_spec *embedder_spec(const struct embedder *e);
const struct embed_plan *embedder_plan(const struct embedder *e);
const struct embed_count *embedder_count(const struct embedder *e);

/* Replaces exec_loop for the passes over batches, for example to measure one. */
typedef enum plim_status embed_pass(void *arg, struct exec *exec, struct plim_error *err);
void embedder_pass_by(struct embedder *e, embed_pass *pass, void *arg);
/* The pass over a batch of the longest rows. */
void embedder_largest(const struct embedder *e, const struct tape **tape, const struct layout **layout);

/* Numbers per row, or per token. */
int64_t embedder_width(const struct embedder *e);
bool embedder_per_token(const struct embedder *e);

/* out: [count][width]; per token [tokens of all rows][width], one row after the other. */
enum plim_status embedder_run(struct embedder *e, const struct embed_row *rows, int64_t count, float *out,
                              struct plim_error *err);
