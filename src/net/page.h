/* page.h - answers with a page or script built into the program; these load nothing from elsewhere.
 *
 *     page_answer(x, "watch", "text/html; charset=utf-8");        // data/watch.html
 */
#pragma once

#include "net/http.h"

/* 404 if nothing of that name is built in (base/embedded.h). */
void page_answer(struct http_exchange *x, const char *name, const char *type);
