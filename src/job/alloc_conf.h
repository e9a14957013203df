/* alloc_conf.h - the option string of PyTorch's caching allocator: "expandable_segments:True,max_split_size_mb:128".
 *
 *     struct alloc_conf conf;
 *     alloc_conf_parse("max_split_size_mb:512", &conf, &err);    // PLIM_BAD_INPUT: what is wrong with it
 *
 * Grammar and limits are PyTorch's: blanks are ignored, booleans are True and False, an unknown option is an error. A planned
 * arena has no cache to tune, so most options have no effect; only the fraction of the GPU's memory has.
 */
#ifndef PLIM_JOB_ALLOC_CONF_H
#define PLIM_JOB_ALLOC_CONF_H

#include "base/status.h"

struct alloc_conf {
    double fraction; /* per_process_memory_fraction; 0: not given */
};

enum plim_status alloc_conf_parse(const char *text, struct alloc_conf *out, struct plim_error *err);

#endif
