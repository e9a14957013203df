/* os_text.c - see os_text.h. */
#include "mem/os_text.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool os_text_read(const char *folder, const char *name, struct strbuf *out)
{
    char path[4096 + 64];
    strbuf_clear(out);
    int n = snprintf(path, sizeof path, "%s%s", folder, name);
    return n > 0 && n < (int)sizeof path && file_read(path, OS_TEXT_MAX, out, NULL) == PLIM_OK;
}

bool os_text_find(const struct strbuf *text, const char *key, uint64_t *out)
{
    size_t len = strlen(key);
    for (const char *line = strbuf_text(text); *line;) {
        if (strncmp(line, key, len) == 0) {
            char *end;
            *out = strtoull(line + len, &end, 10);
            return end != line + len;
        }
        line += strcspn(line, "\n");
        if (*line) line++;
    }
    return false;
}

bool os_text_number(const char *folder, const char *name, uint64_t *out)
{
    struct strbuf text = STRBUF_INIT;
    bool found = os_text_read(folder, name, &text) && os_text_find(&text, "", out);
    strbuf_release(&text);
    return found;
}
