/* http_answers.c - see http_answers.h. */
#include "net/http_answers.h"
#include "base/embedded.h"

#include <arpa/inet.h>
#include <string.h>
#include <strings.h>

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

/* Nothing, or a colon and a port. */
static bool is_port(const char *text)
{
    if (!*text) return true;
    size_t digits = strspn(text + 1, "0123456789");
    return *text == ':' && digits <= 5 && !text[1 + digits];
}

bool host_is_address(const char *host)
{
    bool six = *host == '[';
    size_t len = six ? strcspn(host + 1, "]") : strcspn(host, ":");
    const char *name = host + six, *after = name + len;
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;
    if (six && *after++ != ']') return false;
    if (len >= sizeof text || !is_port(after)) return false;
    memcpy(text, name, len);
    text[len] = '\0';
    if (!six && !strcasecmp(text, "localhost")) return true;
    return inet_pton(six ? AF_INET6 : AF_INET, text, &address) == 1;
}
