/* runtime.h - what kernels on the CPU ask of the runtime. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Memory that a kernel may write. */
bool cuda_cpu_is_device(const void *at);
/* Shared memory that a block may have. */
size_t cuda_cpu_shared_most(void);
/* fp8 products with a scale for each line: of 9.0. */
bool cuda_cpu_has_lines(void);
/* What cudaGetLastError says next. */
void cuda_cpu_fail(int code);

#ifdef __cplusplus
}
#endif
