/* embedded.h - data files compiled into the program.
 *
 * The build turns every data/<name>.yaml (device presets, memory profiles), data/<name>.html (pages) and data/<name>.js
 * (scripts that pages share) into a C array, so the installed program needs no data files. The texts are constant and end
 * with a NUL that `size` does not count.
 *
 *     const struct plim_data *d = embedded_find("devices");   // data/devices.yaml
 *     if (!d) return plim_fail(err, PLIM_BUG, "data/devices.yaml is not part of this build");
 *     strbuf_addn(&page, d->text, d->size);
 */
#pragma once

#include <stddef.h>

struct plim_data {
    const char *name; /* file name without its folder and ending */
    const char *text;
    size_t size; /* bytes of text, without the NUL */
};

/* All files, sorted by name; the last row has name NULL. Written by the build. */
extern const struct plim_data plim_data_table[];

/* The file of that name, or NULL when there is none. Pure. */
const struct plim_data *embedded_find(const char *name);
