/* cpu_model.h - what this machine's processor is called and how large its last-level cache is. */
#ifndef PLIM_DEVICE_CPU_CPU_MODEL_H
#define PLIM_DEVICE_CPU_CPU_MODEL_H

#include <stddef.h>

/* "AMD EPYC 7763 64-Core Processor", "Neoverse-V1", ... or "cpu" when the system does not say. Returns buf.
 */
const char *cpu_model_name(char *buf, size_t size);

/* Bytes of the largest cache of the first processor, 0 when the system does not say. */
size_t cpu_cache_bytes(void);

#endif
