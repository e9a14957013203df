/* http_check.c - requests that two programs could read differently are refused.
 *
 * A proxy in front of the server and the server must agree where a request ends, or a client can hide a second one in it.
 * The library takes some heads that others read in another way; what they could differ about is a reason to refuse here.
 */
#include "net/http_part.h"

#include <string.h>
#include <strings.h>

struct heads {
    int lengths, codings, hosts;
    const char *why; /* NULL: nothing is wrong */
};

/* A character of a header's name (RFC 9110, token). */
static bool is_token(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_name(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (!is_token((unsigned char)text[i])) return false;
    return len > 0;
}

static bool is_length(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (text[i] < '0' || text[i] > '9') return false;
    return len > 0 && len < 20;
}

static bool has_control(const char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)text[i] < ' ' && text[i] != '\t') return true;
    return false;
}

static enum MHD_Result look_at(void *arg, enum MHD_ValueKind, const char *key, size_t key_len,
                               const char *value, size_t value_len)
{
    struct heads *h = arg;
    if (!is_name(key, key_len)) h->why = "a header's name has a character that no name has";
    if (value && has_control(value, value_len)) h->why = "a header's value has a control character";
    if (!strcasecmp(key, MHD_HTTP_HEADER_CONTENT_LENGTH)) {
        h->lengths++;
        if (!value || !is_length(value, value_len)) h->why = "Content-Length is not a number";
    }
    if (!strcasecmp(key, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        h->codings++;
        if (!value || strcasecmp(value, "chunked")) h->why = "Transfer-Encoding: only chunked is taken";
    }
    h->hosts += !strcasecmp(key, MHD_HTTP_HEADER_HOST);
    return MHD_YES;
}

const char *http_check_head(struct http_exchange *x, const char *version)
{
    struct heads h = {0};
    x->http->mhd.values(x->connection, MHD_HEADER_KIND, look_at, &h);
    x->chunked = h.codings > 0;
    if (x->peer->bad_path) return "the path has bytes that no path has";
    if (h.why) return h.why;
    if (h.lengths > 1) return "more than one Content-Length";
    if (h.codings > 1) return "more than one Transfer-Encoding";
    if (h.hosts > 1) return "more than one Host";
    if (h.lengths && h.codings) return "Content-Length and Transfer-Encoding in one request";
    if (h.codings && !strcmp(version, MHD_HTTP_VERSION_1_0)) return "Transfer-Encoding in HTTP/1.0";
    return NULL;
}

static int digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

bool http_path_is_sound(const char *uri)
{
    for (const char *at = uri; *at; at++) {
        if ((unsigned char)*at <= ' ' || *at == 0x7f) return false;
        if (*at != '%') continue;
        int high = digit(at[1]), low = high < 0 ? -1 : digit(at[2]);
        if (low < 0 || high * 16 + low < ' ' || high * 16 + low == 0x7f) return false;
    }
    return true;
}
