/* os_text.c - see os_text.h. */
#include "mem/os_text.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Not file_read, which asks what kind of file it is: these are read many times a second. */
bool os_text_read(const char *folder, const char *name, struct strbuf *out)
{
    char path[4096 + 64];
    ssize_t got = -1;
    strbuf_clear(out);
    int n = snprintf(path, sizeof path, "%s%s", folder, name);
    int fd = n > 0 && n < (int)sizeof path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    if (fd < 0) return false;
    while (out->len < OS_TEXT_MAX && strbuf_reserve(out, 4096)) {
        got = read(fd, out->data + out->len, out->cap - out->len - 1);
        if (got <= 0) break;
        out->len += (size_t)got, out->data[out->len] = '\0';
    }
    close(fd);
    return got == 0;
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
