/* secret.c - see secret.h. */
#define _DEFAULT_SOURCE /* explicit_bzero */
#include "net/secret.h"
#include "base/file.h"
#include "base/strbuf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Zero exactly when both are the same, without a branch on what they hold. */
static unsigned differ(const char *key, size_t key_len, const char *shown, size_t len)
{
    unsigned wrong = key_len != len;
    for (size_t i = 0; i < len; i++)
        wrong |= (unsigned)(unsigned char)(key[key_len ? i % key_len : 0] ^ shown[i]);
    return wrong;
}

bool secrets_match(const struct secrets *secrets, const char *shown, size_t len)
{
    unsigned found = 0;
    if (len > SECRET_BYTES) return false;
    for (size_t i = 0; i < secrets->count; i++)
        found |= differ(secrets->key[i], strlen(secrets->key[i]), shown, len) == 0;
    return found;
}

static enum plim_status add_key(struct secrets *s, const char *path, int line, const char *text, size_t len,
                                struct plim_error *err)
{
    if (len < 8 || len > SECRET_BYTES || memchr(text, ' ', len) || memchr(text, '\t', len) ||
        memchr(text, '\0', len))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s:%d: a key is one word of 8 to %d characters; write one per line", path, line,
                         SECRET_BYTES);
    if (s->count == SECRET_MOST)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: more than %d keys", path, SECRET_MOST);
    char **more = realloc(s->key, (s->count + 1) * sizeof *more);
    if (!more) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for %zu keys", s->count + 1);
    s->key = more;
    if (!(s->key[s->count] = strndup(text, len)))
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for %zu keys", s->count + 1);
    s->count++;
    return PLIM_OK;
}

static enum plim_status read_keys(struct secrets *s, const char *path, const struct strbuf *text,
                                  struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    const char *at = strbuf_text(text), *end = at + text->len;
    for (int line = 1; at < end && status == PLIM_OK; line++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t len = (size_t)((stop ? stop : end) - at);
        size_t used = len && at[len - 1] == '\r' ? len - 1 : len;
        if (used && *at != '#') status = add_key(s, path, line, at, used, err);
        at = stop ? stop + 1 : end;
    }
    if (status == PLIM_OK && !s->count)
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: contains no key; write one per line", path);
    return status;
}

enum plim_status secrets_load(const char *path, struct secrets *out, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct stat about;
    *out = (struct secrets){0};
    enum plim_status status = file_read(path, 1 << 20, &text, err);
    if (status == PLIM_OK) status = read_keys(out, path, &text, err);
    out->open_to_others = stat(path, &about) == 0 && (about.st_mode & 077);
    if (text.data) explicit_bzero(text.data, text.cap);
    strbuf_release(&text);
    if (status != PLIM_OK) secrets_release(out);
    return status;
}

void secrets_release(struct secrets *secrets)
{
    for (size_t i = 0; i < secrets->count; i++) {
        explicit_bzero(secrets->key[i], strlen(secrets->key[i]));
        free(secrets->key[i]);
    }
    free(secrets->key);
    *secrets = (struct secrets){0};
}
