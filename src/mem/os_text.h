/* os_text.h - reading the small files in which Linux tells about itself.
 *
 *     os_text_read(root, "/proc/meminfo", &text) && os_text_find(&text, "MemTotal:", &kib);
 *     os_text_number(group, "/memory.max", &limit);
 */
#pragma once

#include "base/strbuf.h"
#include <stdint.h>

enum { OS_TEXT_MAX = 1 << 20 }; /* bytes of such a file */

/* The file `name` below a folder, instead of what was in `out`; false: it cannot be read. */
bool os_text_read(const char *folder, const char *name, struct strbuf *out);

/* The number after `key` at the beginning of a line. */
bool os_text_find(const struct strbuf *text, const char *key, uint64_t *out);

/* A file that holds one number; "max" and files that cannot be read are false. */
bool os_text_number(const char *folder, const char *name, uint64_t *out);
