/* linear_q_avx512.c - products with weights in blocks with AVX-512 VNNI. See linear_q.h. */
#include "device/cpu/linear_q.h"

#if defined(__x86_64__)
#include "device/cpu/vec_base.h"
#include <immintrin.h>

VEC_PUSH("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")

#define LINEAR_Q_VNNI
#include "device/cpu/linear_q_vnni.h"

static void multiply_panel(const struct panel8 *w, const struct x8 *x, float *out)
{
    multiply_vnni(w, x, out);
}

VEC_POP

const struct linear_q_level linear_q_vnni =
    LINEAR_Q_TABLE("avx512 vnni", 1, quantise_row, LINEAR_Q_FEW, NULL, NULL);
#endif
