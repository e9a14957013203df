/* weights_blocks.h - the parameters of a tape that are in blocks (quantise.h), poured line by line. Behind weights.h.
 *
 * Some panels of 16 lines are held at a time: read as the file has them, then rounded to blocks where they are numbers, and
 * laid side by side by all threads of the sink's team, each a panel. BLOCKS_HELD bytes of the file are held at most, or
 * one panel.
 */
#ifndef PLIM_MODEL_WEIGHTS_BLOCKS_H
#define PLIM_MODEL_WEIGHTS_BLOCKS_H

#include "model/weights.h"

#define BLOCKS_HELD (1 << 20)

/* Is the parameter in blocks? */
static inline bool weights_param_in_blocks(const struct tape *tape, int param)
{
    const struct tensor *t = &tape->tensors[param];
    return t->type == DT_U8 && t->owner < 0; /* an optimizer's 8-bit state has an owner */
}

/* Matrices that a parameter in blocks has: experts, or 1. */
int64_t weights_experts_in_blocks(const struct tape *tape, int param);

/* Elements [first, ..) of a parameter, whole matrices or parts of one, are this tensor of the files. Of one with several
 * experts' matrices in it: of `each` elements of the file the parameter has those from `skip` on; each 0: all. PLIM_BAD_INPUT
 * names a tensor with numbers that are none, or too large for a block. */
struct blocks_source {
    const struct weights_files *files;
    const struct safetensor *file;
    int param;
    int64_t first, skip, each;
};
enum plim_status weights_pour_blocks(const struct blocks_source *source, const struct tape *tape,
                                     const struct weights_sink *sink, struct plim_error *err);

#endif
