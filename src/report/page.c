/* page.c - scripts and data inside a page. */
#include "report/page.h"
#include "base/embedded.h"

#include <string.h>

void page_data(struct strbuf *out, const char *name)
{
    const struct plim_data *data = embedded_find(name);
    if (data) strbuf_addn(out, data->text, data->size);
}

void page_json(struct strbuf *out, const char *id, const struct strbuf *json)
{
    out->failed |= json->failed;
    strbuf_addf(out, "<script type=\"application/json\" id=\"%s\">", id);
    for (size_t i = 0, n; i < json->len; i += n) {
        n = strcspn(json->data + i, "<");
        strbuf_addn(out, json->data + i, n);
        if (i + n < json->len) strbuf_add(out, "\\u003c"), n++;
    }
    strbuf_add(out, "</script>\n");
}
