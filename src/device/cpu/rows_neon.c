/* rows_neon.c - the row functions (rows.h) compiled for Advanced SIMD. */
#include "device/cpu/rows.h"

#if defined(__aarch64__)
#define VEC_NEON
#define ROWS_TABLE rows_neon
#include "device/cpu/rows_body.h"
#endif
