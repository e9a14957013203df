/* cpu_model.h - the name of this machine's processor and the size of its last-level cache. */
#pragma once

#include <stddef.h>

/* "AMD EPYC 7763 64-Core Processor", "Neoverse-V1", ... or "cpu" if unknown. Returns buf. */
const char *cpu_model_name(char *buf, size_t size);

/* Bytes of the largest cache of the first processor; 0: unknown. */
size_t cpu_cache_bytes(void);
