/* weights_blocks.h - fills the parameters that are in blocks (quantise.h), line by line. Internal to weights.h.
 *
 * Works on a few panels of 16 lines at a time. It reads them as the file has them, quantises numbers to blocks, and
 * interleaves the lines; the threads of the sink's team take one panel each. It holds at most BLOCKS_HELD bytes of the
 * file, or one panel.
 */
#pragma once

#include "model/weights.h"

#define BLOCKS_HELD (1 << 20)

/* True if the parameter is in blocks. */
static inline bool weights_param_in_blocks(const struct tape *tape, int param)
{
    const struct tensor *t = &tape->tensors[param];
    return t->type == DT_U8 && t->owner < 0; /* an optimizer's 8-bit state has an owner */
}

/* The format of its bytes, as the op has it that reads it. */
const struct op_attr *weights_blocks_format(const struct tape *tape, int param);

/* Number of matrices in such a parameter: its experts, or 1. */
int64_t weights_experts_in_blocks(const struct tape *tape, int param);

/* Says which tensor of the files fills elements [first, ..) of a parameter: whole matrices or parts of one.
 * If the tensor holds several experts' matrices, the parameter takes, of every `each` elements, those from
 * `skip` on; each 0: all. PLIM_BAD_INPUT names a tensor with NaNs, infinities or numbers too large for a
 * block. */
struct blocks_source {
    const struct weights_files *files;
    const struct safetensor *file;
    int param;
    int64_t first, skip, each;
};
/* Fills a parameter of e4m3 lines, which `op` reads (weights_f8.c); otherwise as weights_pour_blocks. */
enum plim_status weights_pour_f8(const struct blocks_source *source, const struct tape *tape,
                                 const struct op *op, const struct weights_sink *sink,
                                 struct plim_error *err);

/* Lines as weights_files_read_lines leaves them. */
struct weights_raw {
    const char *bytes;
    enum dtype numbers;
    bool turned;
    int64_t held, k;
};
/* Line `at` as fp32. */
void weights_widen_line(const struct weights_raw *raw, int64_t at, float *wide);

enum plim_status weights_pour_blocks(const struct blocks_source *source, const struct tape *tape,
                                     const struct weights_sink *sink, struct plim_error *err);
