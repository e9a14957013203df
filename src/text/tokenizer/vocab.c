/* vocab.c - token text <-> id.
 *
 * All texts lie in one pool, NUL-terminated, in the order of the file; `text` says where an id's text begins.
 * Ids may have holes: a hole's length is NO_TEXT. The way back is an open-addressing table of ids, at most half
 * full, that starts from a seed no file can know, so that no file can be made to collide on purpose.
 */
#include "text/tokenizer/bytes_hash.h"
#include "text/tokenizer/part.h"
#include <stdlib.h>

enum {
    ID_MOST = 1 << 22, /* a table of ids stays small whatever a file claims */
};
#define NO_TEXT UINT32_MAX

struct token_place {
    uint32_t start, len;
};

struct token_vocab {
    char *pool;
    struct token_place *text;
    int32_t *slots; /* id + 1; 0 is free */
    size_t pool_bytes, size, mask;
    uint64_t seed;
};

static const struct node *entry_text(const struct node *item)
{
    const struct node *text = node_item(item, 0);
    return item->kind == NODE_LIST && text && text->kind == NODE_STRING ? text : NULL;
}

/* Text and id of child `index`: a map's key and value, or a list's place. */
static enum plim_status entry_read(const struct node *all, size_t index, const char *name, const char **text,
                                   size_t *len, int64_t *id, struct plim_error *err)
{
    const struct node *item = node_item(all, index);
    if (all->kind == NODE_MAP) {
        *text = item->key, *len = item->key_len;
        if (!node_is_whole(item, id) || *id < 0 || *id >= ID_MOST)
            return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: token '%s': expected an id from 0 to %d", name,
                             item->line, item->key, ID_MOST - 1);
        return PLIM_OK;
    }
    const struct node *first = entry_text(item);
    if (!first)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: vocab: expected [text, score]", name, item->line);
    *text = first->as.string.text, *len = first->as.string.len, *id = (int64_t)index;
    return PLIM_OK;
}

static int32_t *slot_of(const struct token_vocab *v, const char *text, size_t len)
{
    size_t at = (size_t)bytes_hash(text, len, v->seed) & v->mask;
    for (; v->slots[at]; at = (at + 1) & v->mask) {
        const struct token_place *place = &v->text[v->slots[at] - 1];
        if (place->len == len && memcmp(v->pool + place->start, text, len) == 0) break;
    }
    return &v->slots[at];
}

/* How large everything will be. */
static enum plim_status measure(struct token_vocab *v, const struct node *all, const char *name,
                                struct plim_error *err)
{
    size_t count = node_count(all);
    if (count > ID_MOST)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: vocab: more than %d tokens", name, all->line, ID_MOST);
    for (size_t i = 0; i < count; i++) {
        const char *text;
        size_t len;
        int64_t id;
        enum plim_status status = entry_read(all, i, name, &text, &len, &id, err);
        if (status != PLIM_OK) return status;
        v->pool_bytes += len + 1;
        if ((size_t)id >= v->size) v->size = (size_t)id + 1;
    }
    if (v->pool_bytes > UINT32_MAX)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: vocab: more than 4 GiB of text", name, all->line);
    for (v->mask = 15; v->mask < 2 * count; v->mask = 2 * v->mask + 1) continue;
    return PLIM_OK;
}

static enum plim_status fill(struct token_vocab *v, const struct node *all, const char *name,
                             struct plim_error *err)
{
    uint32_t at = 0;
    for (size_t i = 0; i < v->size; i++) v->text[i].len = NO_TEXT;
    for (size_t i = 0; i < node_count(all); i++) {
        const char *text;
        size_t len;
        int64_t id;
        enum plim_status status = entry_read(all, i, name, &text, &len, &id, err);
        if (status != PLIM_OK) return status;
        if (v->text[id].len != NO_TEXT)
            return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: token '%s': id %lld is taken by '%s'", name,
                             node_item(all, i)->line, text, (long long)id, v->pool + v->text[id].start);
        memcpy(v->pool + at, text, len);
        v->pool[at + len] = '\0';
        v->text[id] = (struct token_place){at, (uint32_t)len};
        at += (uint32_t)len + 1;
        int32_t *slot = slot_of(v, text, len);
        if (!*slot || all->kind == NODE_LIST) *slot = (int32_t)id + 1; /* of equal texts in a list the last */
    }
    return PLIM_OK;
}

enum plim_status token_vocab_build(const struct node *map_or_list, const char *name, struct quota *quota,
                                   struct token_vocab **out, struct plim_error *err)
{
    *out = NULL;
    if (!map_or_list || (map_or_list->kind != NODE_MAP && map_or_list->kind != NODE_LIST))
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: model: expected a vocab", name,
                         map_or_list ? map_or_list->line : 1);
    struct token_vocab *v = calloc(1, sizeof *v);
    if (!v) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for the vocabulary", name);
    enum plim_status status = measure(v, map_or_list, name, err);
    if (status == PLIM_OK && !quota_take(quota, token_vocab_bytes(v))) status = quota_fail(quota, name, err);
    if (status != PLIM_OK) goto out;
    v->pool = malloc(v->pool_bytes + 1);
    v->text = malloc((v->size + 1) * sizeof *v->text);
    v->slots = calloc(v->mask + 1, sizeof *v->slots);
    v->seed = bytes_hash_mix((uint64_t)(uintptr_t)v->slots >> 4);
    if (!v->pool || !v->text || !v->slots) {
        status =
            plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for a vocabulary of %zu tokens", name, v->size);
        goto out;
    }
    status = fill(v, map_or_list, name, err);
out:
    if (status != PLIM_OK) {
        token_vocab_free(v);
        return status;
    }
    *out = v;
    return PLIM_OK;
}

void token_vocab_free(struct token_vocab *v)
{
    if (!v) return;
    free(v->pool);
    free(v->text);
    free(v->slots);
    free(v);
}

int32_t token_vocab_id(const struct token_vocab *v, const char *text, size_t len)
{
    return *slot_of(v, text, len) - 1;
}

const char *token_vocab_text(const struct token_vocab *v, int32_t id, size_t *len)
{
    if (id < 0 || (size_t)id >= v->size || v->text[id].len == NO_TEXT) return NULL;
    if (len) *len = v->text[id].len;
    return v->pool + v->text[id].start;
}

enum plim_status token_check_length(const char *text, size_t len, const char *name, struct plim_error *err)
{
    if (len <= TOKEN_BYTES_MOST) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: token '%.20s...' has %zu bytes; at most %d are read", name,
                     text, len, TOKEN_BYTES_MOST);
}

int64_t token_vocab_size(const struct token_vocab *v) { return (int64_t)v->size; }

size_t token_vocab_bytes(const struct token_vocab *v)
{
    return sizeof *v + v->pool_bytes + v->size * sizeof *v->text + (v->mask + 1) * sizeof *v->slots;
}
