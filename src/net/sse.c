/* sse.c - see sse.h. */
#include "net/sse.h"

#include <string.h>

void sse_event(struct strbuf *out, const char *data, size_t len)
{
    const char *end = data + len;
    for (bool more = true; more;) {
        const char *stop = data;
        while (stop < end && *stop != '\n' && *stop != '\r') stop++;
        strbuf_add(out, "data: ");
        strbuf_addn(out, data, (size_t)(stop - data));
        strbuf_addc(out, '\n');
        more = stop < end;
        data = stop + (stop + 1 < end && stop[0] == '\r' && stop[1] == '\n' ? 2 : 1);
    }
    strbuf_addc(out, '\n');
}
