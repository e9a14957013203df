/* page.c - see page.h. */
#include "net/page.h"
#include "base/embedded.h"

void page_answer(struct http_exchange *x, const char *name, const char *type)
{
    const struct plim_data *data = embedded_find(name);
    struct strbuf out = STRBUF_INIT;
    if (data) strbuf_addn(&out, data->text, data->size);
    http_set_header(
        x, "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'self' 'unsafe-inline'; connect-src "
        "'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'");
    http_set_header(x, "X-Content-Type-Options", "nosniff");
    http_set_header(x, "Referrer-Policy", "no-referrer");
    http_set_header(x, "Cache-Control", "no-cache");
    http_answer(x, data ? 200 : 404, type, &out);
}
