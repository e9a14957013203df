/* embedded.h - the data files that travel inside the program.
 *
 * Every data/<name>.yaml (device presets, memory profiles), data/<name>.html (pages) and data/<name>.js (what pages share) is
 * turned into a C array by the build, so that the installed program needs no file beside it. The texts are constant, live as long as the program and end with
 * a NUL that `size` does not count.
 *
 *     const struct plim_data *d = embedded_find("devices");   // data/devices.yaml
 *     if (!d) return plim_fail(err, PLIM_BUG, "data/devices.yaml is not part of this build");
 *     strbuf_addn(&page, d->text, d->size);
 */
#ifndef PLIM_BASE_EMBEDDED_H
#define PLIM_BASE_EMBEDDED_H

#include <stddef.h>

struct plim_data {
    const char *name; /* file name without its folder and ending */
    const char *text;
    size_t size; /* bytes of text, without the NUL */
};

/* All of them, in the order of their names; the last row has name NULL. The build writes it. */
extern const struct plim_data plim_data_table[];

/* The file of that name, or NULL when there is none. Pure. */
const struct plim_data *embedded_find(const char *name);

#endif
