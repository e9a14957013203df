/* cache_conf.h - the option string of PyTorch's caching allocator: "expandable_segments:True,max_split_size_mb:128".
 *
 *     struct cache_conf conf;
 *     cache_conf_parse("max_split_size_mb:512", &conf, &err);    // PLIM_BAD_INPUT: what is wrong with it
 *     uint64_t bytes = cache_conf_round(&conf, 1200000);         // 1200128
 *
 * Grammar and limits are PyTorch's: blanks do not count, booleans are True and False, an unknown option is an error.
 * mem/cache.h obeys every option that concerns device memory. The pinned_* options concern PyTorch's pool of pinned host
 * memory; they are checked, and nothing here acts on them.
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

enum {
    CACHE_MIN_BLOCK = 512,         /* every block is a multiple of this                       */
    CACHE_SMALL_MAX = 1 << 20,     /* largest request that the small pool serves              */
    CACHE_SMALL_SEGMENT = 2 << 20, /* segment of the small pool; page of an expandable one    */
    CACHE_MID_MAX = 10 << 20,      /* requests below this share segments of CACHE_LARGE_SEGMENT */
    CACHE_LARGE_SEGMENT = 20 << 20,
    CACHE_LARGE_STEP = 2 << 20, /* larger segments are multiples of this */
    CACHE_DIVISIONS = 16, /* intervals of roundup_power2_divisions: 1 MiB, 2 MiB, ... 32 GiB and above */
};

#define CACHE_NO_LIMIT UINT64_MAX

struct cache_conf {
    bool async_backend;                  /* backend:cudaMallocAsync                                         */
    bool expandable;                     /* expandable_segments                                             */
    bool release_lock;                   /* release_lock_on_cudamalloc: unlocked while the backing is asked */
    uint64_t max_split;                  /* bytes; CACHE_NO_LIMIT: not given                                */
    uint64_t max_non_split_rounding;     /* bytes                                                           */
    double gc_threshold;                 /* share of the limit; 0: off                                      */
    double fraction;                     /* per_process_memory_fraction; 0: not given                       */
    uint32_t divisions[CACHE_DIVISIONS]; /* of a power of two; 0 or 1: multiples of 512                     */
};

/* PyTorch's values for an empty string. */
void cache_conf_default(struct cache_conf *out);

/* PLIM_BAD_INPUT begins with PyTorch's words for it; *out is then not to be used. */
enum plim_status cache_conf_parse(const char *text, struct cache_conf *out, struct plim_error *err);

/* The size of the block for a request of `bytes`, and of the segment that is asked for when no block fits. */
uint64_t cache_conf_round(const struct cache_conf *conf, uint64_t bytes);
uint64_t cache_segment_bytes(uint64_t rounded);
