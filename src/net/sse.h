/* sse.h - server-sent events, as read by EventSource and streaming clients.
 *
 *     sse_event(&out, json, len);          // "data: {...}\n\n"; a line break in the data begins a new data line
 */
#pragma once

#include "base/strbuf.h"

#define SSE_TYPE "text/event-stream; charset=utf-8"

void sse_event(struct strbuf *out, const char *data, size_t len);
