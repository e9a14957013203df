/* quantise.h - which weights of a tape are in blocks of few bits, and the tape that multiplies them as they are.
 *
 *     struct quantisation q;
 *     quantise_choose(&q, &(struct quantise_wish){WEIGHTS_Q8, "model/", true}, &spec, &tape, &err);   // once
 *     quantise_tape(&q, &spec, &tape);                                     // of each tape; changes linear and embed
 *     weights_load(...);                                                   // fills what the tape has (weights.h)
 *     quantise_release(&q);
 *
 * Matrices that linear and expert_linear multiply, and the table of tokens, may be in blocks. As a GGUF file has them
 * (WEIGHTS_AS_IS), where there are kernels for all its types; or rounded while they are read: WEIGHTS_Q8 makes Q8_0 of
 * them, WEIGHTS_Q4 Q4_0, and Q8_0 of the table of tokens and of what makes logits (docs/design/quantised-weights.md has the perplexities
 * behind that). Blocks are along what a product sums over: of a matrix stored [in,out] (GPT-2) along its columns. What has no
 * whole blocks there, or fewer lines than a panel, stays as it is, and so do routers.
 */
#ifndef PLIM_MODEL_QUANTISE_H
#define PLIM_MODEL_QUANTISE_H

#include "model/model.h"
#include "tape/tape.h"

enum weights_kind { WEIGHTS_AS_IS, WEIGHTS_Q8, WEIGHTS_Q4, WEIGHTS_KINDS };
#define WEIGHTS_KIND_NAMES "as-is", "q8", "q4"
const char *weights_kind_name(enum weights_kind kind);
/* WEIGHTS_KINDS: no such name. */
enum weights_kind weights_kind_parse(const char *name);

/* Block types of the parts of each parameter; 0: it is not in blocks. */
struct quantisation {
    int count;
    struct quantised_param {
        const char *label; /* static text */
        int layer;
        unsigned char type[OP_LINE_PARTS];
    } * param;
};

struct quantise_wish {
    enum weights_kind kind;
    const char *path; /* of the weights */
    bool experts;     /* the device multiplies experts in blocks */
};

/* The tape's ops read every parameter: one that none of them reads is not put in blocks. On failure there is nothing to
 * release. Errors are those of weights_files_open. */
enum plim_status quantise_choose(struct quantisation *out, const struct quantise_wish *wish,
                                 const struct model_spec *spec, const struct tape *tape,
                                 struct plim_error *err);
void quantise_release(struct quantisation *q);

/* Parameters are found by name: the tape may have fewer of them, or have them in another order. */
void quantise_tape(const struct quantisation *q, const struct model_spec *spec, struct tape *tape);

#endif
