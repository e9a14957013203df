/* http_answers.h - answers that several servers give: pages and event streams; and who may ask. */
#pragma once

#include "net/http.h"

/* A page or script that is built into the program (base/embedded.h), which loads nothing from elsewhere; 404 where nothing of that
 * name is built in: page_answer(x, "watch", "text/html; charset=utf-8") gives data/watch.html. */
void page_answer(struct http_exchange *x, const char *name, const char *type);

/* Server-sent events: the text that a browser's EventSource and the streaming clients read, "data: {...}\n\n". A line break in the
 * data begins a new data line. */
#define SSE_TYPE "text/event-stream; charset=utf-8"
#define SSE_DATA "data: " /* before a line of data, */
#define SSE_END  "\n\n"   /* and behind the last one */
void sse_event(struct strbuf *out, const char *data, size_t len);

/* Is a browser's header Host an address, or localhost, with or without a port? A page from elsewhere can make a name of its own point
 * here and so reach a server that listens at the loopback (DNS rebinding): only a name that others cannot bend is answered. */
bool host_is_address(const char *host);
