/* serve_scratch.h - chooses the folder for parameters that stream from disk when --scratch is not given.
 *
 *     char folder[MODEL_PATH];
 *     options.scratch = serve_scratch_find(dir, &spec, folder, sizeof folder);      // NULL: there is none
 *
 * Tries the cache folder, then /var/tmp: the first that is writable, on a disk and has room for all parameters. A file
 * system in memory (tmpfs) does not qualify.
 */
#pragma once

#include "model/model.h"
#include <stddef.h>

/* Creates the cache folder if necessary. Returns out, or NULL. */
const char *serve_scratch_find(const char *dir, const struct model_spec *spec, char *out, size_t size);
