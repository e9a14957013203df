/* quantise.h - chooses the weights that are stored as quantised blocks, and rewrites a tape to multiply blocks directly.
 *
 *     struct quantisation q;
 *     quantise_choose(&q, &(struct quantise_wish){WEIGHTS_Q8, "model/", true, true, false}, &spec, &tape, &err);   // once
 *     quantise_tape(&q, &spec, &tape);                                     // for each tape; changes linear and embed
 *     weights_load(...);                                                   // fills the tape's parameters (weights.h)
 *     quantise_release(&q);
 *
 * Candidates are the token table and the matrices of linear and expert_linear. WEIGHTS_AS_IS keeps the blocks of a GGUF
 * file if there are kernels for all its types. The others quantise on loading: WEIGHTS_Q8 to Q8_0; WEIGHTS_Q4 to Q4_0,
 * with Q8_0 for the token table and the output projection (docs/design/quantised-weights.md has the perplexities);
 * WEIGHTS_NF4 and WEIGHTS_FP4 to bitsandbytes' types, except the token table and the output projection, which stay numbers as
 * they do there. WEIGHTS_FP8 makes e4m3 numbers with a scale for each line (tensor/f8_lines.h) of the matrices of linear whose sides are
 * multiples of F8_UNIT, except the output projection, and keeps the bits of a folder that has such numbers. A file's own blocks stay what they are. Blocks
 * run along the dimension a product sums over; for a matrix stored [in,out] (GPT-2) that is its columns. A matrix without
 * whole blocks in that dimension, or with fewer lines than a panel, is not quantised; neither are routers.
 */
#pragma once

#include "model/model.h"
#include "tape/tape.h"

enum weights_kind {
    WEIGHTS_AS_IS,
    WEIGHTS_Q8,
    WEIGHTS_Q4,
    WEIGHTS_NF4,
    WEIGHTS_FP4,
    WEIGHTS_FP8,
    WEIGHTS_KINDS
};
#define WEIGHTS_KIND_NAMES_TRAIN "as-is", "q8", "q4", "nf4", "fp4" /* those that an adapter trains on */
#define WEIGHTS_KIND_NAMES       WEIGHTS_KIND_NAMES_TRAIN, "fp8"
#define WEIGHTS_KIND_CHOICE      "as-is, q8, q4, nf4, fp4 or fp8" /* for people */
const char *weights_kind_name(enum weights_kind kind);
/* Returns WEIGHTS_KINDS for an unknown name. */
enum weights_kind weights_kind_parse(const char *name);

/* Block types of each parameter's parts; 0: not in blocks. */
struct quantisation {
    int count;
    bool keep_x; /* op_attr.keep_x of the products */
    struct quantised_param {
        const char *label; /* static text */
        int layer;
        unsigned char type[OP_LINE_PARTS];
        bool f8; /* e4m3 lines instead of blocks */
    } * param;
};

struct quantise_wish {
    enum weights_kind kind;
    const char *path; /* of the weights; NULL: they are numbers */
    bool experts;     /* the device can multiply experts in blocks, */
    bool tables;      /* also of types with a table */
    bool
        train; /* a base that an adapter changes: only frozen matrices, and not the output projection, because the
                       * loss is cut into slices of linear; products do not round activations to 8 bits */
};

/* The tape must read every parameter; a parameter that no op reads is not quantised. On failure nothing needs
 * releasing. Errors are those of weights_files_open. */
enum plim_status quantise_choose(struct quantisation *out, const struct quantise_wish *wish,
                                 const struct model_spec *spec, const struct tape *tape,
                                 struct plim_error *err);
void quantise_release(struct quantisation *q);

/* Finds parameters by name: the tape may have fewer of them, or another order. */
void quantise_tape(const struct quantisation *q, const struct model_spec *spec, struct tape *tape);
