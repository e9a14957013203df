/* vec_base.h - shared by the headers of the vector layer (vec.h): lane count, inlining, instruction sets.
 *
 * No file is compiled with machine flags, so code for one instruction set is between VEC_BEGIN and VEC_END, which the header
 * of that set defines with the pragmas below (or empty, if the baseline is enough). Clang enables some AArch64 intrinsics
 * only by machine flags: CMakeLists.txt sets them for files that use VEC_PUSH_ARCH.
 */
#pragma once

#include "device/cpu/vec_types.h"
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { VEC_LANES = 16 };

#define VEC_FN static inline __attribute__((always_inline, unused))

#define VEC_PRAGMA(text) _Pragma(#text)
/* Before a loop of n rounds that keeps arrays in registers; clang unrolls it by itself. */
#if defined(__clang__)
#define VEC_UNROLL(n)
#else
#define VEC_UNROLL(n) VEC_PRAGMA(GCC unroll n)
#endif
#if defined(__clang__)
#define VEC_PUSH(features)                                                                                   \
    VEC_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define VEC_POP VEC_PRAGMA(clang attribute pop)
#define VEC_PUSH_ARCH(features)
#define VEC_POP_ARCH
#else
#define VEC_PUSH(features)      VEC_PRAGMA(GCC push_options) VEC_PRAGMA(GCC target(features))
#define VEC_POP                 VEC_PRAGMA(GCC pop_options)
#define VEC_PUSH_ARCH(features) VEC_PUSH("arch=" features)
#define VEC_POP_ARCH            VEC_POP
#endif
