/* linear_q_neon.c - products with weights in blocks with the dot products of AArch64 (FEAT_DotProd). See linear_q.h.
 *
 * sdot multiplies four lines by four of k with one lane of x: 16 codes of x in a register serve 4 x 4 registers of
 * a panel. linear_q_i8mm.c has the products of two rows by two lines that newer ones have. */
#include "device/cpu/linear_q.h"

#if defined(__aarch64__)
#include "device/cpu/vec_base.h"
#include <arm_neon.h>

VEC_PUSH("arch=armv8.2-a+dotprod")

#define LINEAR_Q_SDOT
#include "device/cpu/linear_q_sdot.h"

static void multiply_panel(const struct panel8 *w, const struct x8 *x, float *out)
{
    multiply_sdot(w, x, out);
}

VEC_POP

const struct linear_q_level linear_q_dotprod = LINEAR_Q_TABLE("neon sdot", {NULL});
#endif
