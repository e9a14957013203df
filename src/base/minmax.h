/* minmax.h - the smaller and the larger of two numbers. */
#pragma once

#include <stddef.h>
#include <stdint.h>

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }

static inline size_t min_size(size_t a, size_t b) { return a < b ? a : b; }

static inline size_t max_size(size_t a, size_t b) { return a > b ? a : b; }
