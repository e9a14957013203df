/* page.h - parts of a page that needs no other file: scripts and styles of data/, and data for them. */
#pragma once

#include "base/strbuf.h"

/* A file of data/ by its name without the ending (base/embedded.h); nothing when there is none. */
void page_data(struct strbuf *out, const char *name);

/* JSON as a script element with this id. A name in it cannot end the script: every < is escaped. */
void page_json(struct strbuf *out, const char *id, const struct strbuf *json);
