/* refusal.h - a refused request: the HTTP status, and the error object that clients read.
 *
 *     {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>

struct refusal {
    int status;       /* 0: nothing is wrong */
    char param[64];   /* "": none */
    const char *code; /* NULL: none */
    char message[1024];
};

/* Both return false, so that callers can write `return refuse(...)`. param and code may be NULL. */
bool refuse(struct refusal *r, int status, const char *param, const char *code, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* Converts a plim_error: PLIM_NO_FIT is 400, PLIM_BUSY 429, PLIM_BAD_INPUT 422, PLIM_UNSUPPORTED 501, others 500. */
bool refuse_error(struct refusal *r, const char *param, const struct plim_error *err);

/* Clients' name for a status: "invalid_request_error", "authentication_error", ... */
const char *refusal_type(int status);
/* The JSON text. */
void refusal_write(const struct refusal *r, struct strbuf *out);
