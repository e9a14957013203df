/* embedded.c - finding one of the embedded data files. There are a handful, so a walk along the table is the
 * whole of it; the table itself is generated (cmake/embed.cmake). */
#include "base/embedded.h"
#include <string.h>

const struct plim_data *embedded_find(const char *name)
{
    for (const struct plim_data *d = plim_data_table; d->name; d++) {
        if (strcmp(d->name, name) == 0) return d;
    }
    return NULL;
}
