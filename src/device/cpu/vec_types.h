/* vec_types.h - instantiates a kernel's code for each compute type, and stops on every other type.
 *
 * A tape with another type in a compute operand is refused when it is planned (op_check). So a type without code can only be
 * our own mistake: if the type is a constant the build fails (need_compute), otherwise the program stops (VEC_TYPES).
 */
#pragma once

#include "tensor/dtype.h"

/* Never defined: the build fails if a call of it remains. */
void no_code_for_this_type(void) __attribute__((error("there is no code for this element type")));

static inline __attribute__((always_inline, unused)) void need_compute(enum dtype type)
{
    if (__builtin_constant_p(type) && !dtype_is_compute(type)) no_code_for_this_type();
}

#define VEC_TYPE_CASE(type, body)                                                                            \
    case type: {                                                                                             \
        const enum dtype T = type;                                                                           \
        body;                                                                                                \
    } break;

/* Runs `body` with T as a constant. */
#define VEC_TYPES(type, body)                                                                                \
    switch (type) {                                                                                          \
        VEC_TYPE_CASE(DT_F32, body)                                                                          \
        VEC_TYPE_CASE(DT_BF16, body)                                                                         \
        VEC_TYPE_CASE(DT_F16, body)                                                                          \
    default:                                                                                                 \
        __builtin_trap();                                                                                    \
    }
