/* weights_blocks.h - the parameters of a tape that are in blocks (quantise.h), poured line by line. Behind weights.h.
 *
 * 16 lines are held at a time: read as the file has them, or made of numbers as they come, then laid side by side.
 */
#ifndef PLIM_MODEL_WEIGHTS_BLOCKS_H
#define PLIM_MODEL_WEIGHTS_BLOCKS_H

#include "model/weights.h"

/* Is the parameter in blocks? */
static inline bool weights_param_in_blocks(const struct tape *tape, int param)
{
    return tape->tensors[param].type == DT_U8;
}

/* Lines [first, ..) of a parameter are this tensor of the files. PLIM_BAD_INPUT names a tensor with numbers that are
 * none, or too large for a block. */
struct blocks_source {
    const struct weights_files *files;
    const struct safetensor *file;
    int param;
    int64_t first;
};
enum plim_status weights_pour_blocks(const struct blocks_source *source, const struct tape *tape,
                                     const struct weights_sink *sink, struct plim_error *err);

#endif
