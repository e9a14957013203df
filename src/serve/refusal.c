/* refusal.c - see refusal.h. */
#include "serve/refusal.h"
#include "base/json.h"

#include <stdarg.h>
#include <stdio.h>

bool refuse(struct refusal *r, int status, const char *param, const char *code, const char *fmt, ...)
{
    va_list ap;
    r->status = status, r->code = code;
    snprintf(r->param, sizeof r->param, "%s", param ? param : "");
    va_start(ap, fmt);
    vsnprintf(r->message, sizeof r->message, fmt, ap);
    va_end(ap);
    return false;
}

bool refuse_error(struct refusal *r, const char *param, const struct plim_error *err)
{
    static const struct {
        enum plim_status status;
        int http;
        const char *code;
    } rows[] = {
        {PLIM_NO_FIT, 400, "context_length_exceeded"}, {PLIM_BUSY, 429, "queue_full"},
        {PLIM_BAD_INPUT, 422, "invalid_value"},        {PLIM_UNSUPPORTED, 501, "unsupported"},
        {PLIM_NO_MEMORY, 503, "out_of_memory"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == err->status)
            return refuse(r, rows[i].http, param, rows[i].code, "%s", err->text);
    return refuse(r, 500, param, "internal_error", "%s", err->text);
}

const char *refusal_type(int status)
{
    static const struct {
        int status;
        const char *type;
    } rows[] = {{401, "authentication_error"},
                {403, "permission_error"},
                {404, "not_found_error"},
                {429, "overloaded_error"},
                {503, "overloaded_error"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i].status == status) return rows[i].type;
    return status >= 500 ? "server_error" : "invalid_request_error";
}

void refusal_write(const struct refusal *r, struct strbuf *out)
{
    struct json_writer w = json_object(out, 0);
    json_begin_object(&w, "error");
    json_str(&w, "message", r->message);
    json_str(&w, "type", refusal_type(r->status));
    json_str(&w, "param", r->param[0] ? r->param : NULL);
    json_str(&w, "code", r->code);
    json_end_object(&w);
    json_end_object(&w);
}
