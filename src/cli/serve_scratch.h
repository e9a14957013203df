/* serve_scratch.h - the folder for parameters that stream from disk, where --scratch names none.
 *
 *     char folder[MODEL_PATH];
 *     options.scratch = serve_scratch_find(dir, &spec, folder, sizeof folder);      // NULL: there is none
 *
 * The cache folder, else /var/tmp: the first that can be written, lies on a disk and has room for all parameters. A file
 * system in memory (tmpfs) is no place for what does not fit into memory.
 */
#ifndef PLIM_CLI_SERVE_SCRATCH_H
#define PLIM_CLI_SERVE_SCRATCH_H

#include "model/model.h"
#include <stddef.h>

/* Makes the cache folder where it is not there. Returns out, or NULL. */
const char *serve_scratch_find(const char *dir, const struct model_spec *spec, char *out, size_t size);

#endif
