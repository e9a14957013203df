/* node.c - looking things up in a tree, and building one.
 *
 * Children are an array inside the document's bump. A map with more than INDEX_FROM children is followed, in
 * the same allocation, by an open-addressing index of uint32_t slots (child number + 1, 0 is free); its size
 * follows from the count alone, so a node needs no field for it. The hash starts from the array's address,
 * which differs from run to run, so that no file can be made to collide on purpose.
 */
#include "base/node.h"
#include "base/node_build.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { INDEX_FROM = 8 };

static size_t index_slots(size_t count)
{
    size_t slots = 1;
    if (count <= INDEX_FROM) return 0;
    while (slots < 2 * count) slots *= 2;
    return slots;
}

static uint32_t *index_of(const struct node *items, size_t count)
{
    return (uint32_t *)(void *)(uintptr_t)(items + count);
}

static uint64_t hash(uint64_t h, const char *key, size_t len)
{
    for (; len; key += 8) {
        uint64_t word = 0;
        size_t n = len < 8 ? len : 8;
        memcpy(&word, key, n);
        h = (h ^ word ^ (uint64_t)len << 56) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
        len -= n;
    }
    return h ^ h >> 32;
}

static bool same_key(const struct node *node, const char *key, size_t len)
{
    return node->key_len == len && memcmp(node->key, key, len) == 0;
}

/* The slot that holds the key, or the free slot where it would go. */
static uint32_t *index_find(const struct node *items, size_t count, const char *key, size_t len)
{
    uint32_t *slots = index_of(items, count);
    size_t mask = index_slots(count) - 1;
    size_t at = (size_t)hash((uint64_t)(uintptr_t)items >> 4, key, len) & mask;
    while (slots[at] && !same_key(&items[slots[at] - 1], key, len)) at = (at + 1) & mask;
    return &slots[at];
}

const struct node *node_get_n(const struct node *map, const char *key, size_t len)
{
    if (!map || map->kind != NODE_MAP) return NULL;
    const struct node *items = map->as.list.items;
    size_t count = map->as.list.count;
    if (index_slots(count)) {
        uint32_t slot = *index_find(items, count, key, len);
        return slot ? &items[slot - 1] : NULL;
    }
    for (size_t i = 0; i < count; i++)
        if (same_key(&items[i], key, len)) return &items[i];
    return NULL;
}

const struct node *node_get(const struct node *map, const char *key)
{
    return node_get_n(map, key, strlen(key));
}

const struct node *node_path(const struct node *root, const char *path)
{
    for (;;) {
        size_t len = strcspn(path, ".");
        root = node_get_n(root, path, len);
        if (!root || path[len] == '\0') return root;
        path += len + 1;
    }
}

size_t node_count(const struct node *node)
{
    return node && (node->kind == NODE_LIST || node->kind == NODE_MAP) ? node->as.list.count : 0;
}

const struct node *node_item(const struct node *node, size_t index)
{
    return index < node_count(node) ? &node->as.list.items[index] : NULL;
}

bool node_bool(const struct node *node, bool fallback)
{
    return node && node->kind == NODE_BOOL ? node->as.boolean : fallback;
}

bool node_is_whole(const struct node *node, int64_t *out)
{
    if (!node) return false;
    if (node->kind == NODE_INT) {
        *out = node->as.integer;
        return true;
    }
    /* Beyond 2^53 a double's "whole number" is an accident of rounding, not what was written. */
    if (node->kind != NODE_FLOAT || !(fabs(node->as.real) <= 9007199254740992.0)) return false;
    if (node->as.real != trunc(node->as.real)) return false;
    *out = (int64_t)node->as.real;
    return true;
}

int64_t node_int(const struct node *node, int64_t fallback)
{
    int64_t value;
    return node_is_whole(node, &value) ? value : fallback;
}

double node_float(const struct node *node, double fallback)
{
    if (!node) return fallback;
    if (node->kind == NODE_INT) return (double)node->as.integer;
    return node->kind == NODE_FLOAT ? node->as.real : fallback;
}

const char *node_string(const struct node *node, const char *fallback)
{
    return node && node->kind == NODE_STRING ? node->as.string.text : fallback;
}

const char *node_kind_name(enum node_kind kind)
{
    static const char *const names[] = {
        [NODE_NULL] = "null",    [NODE_BOOL] = "true or false", [NODE_INT] = "whole number",
        [NODE_FLOAT] = "number", [NODE_STRING] = "text",        [NODE_LIST] = "list",
        [NODE_MAP] = "map",
    };
    return names[kind];
}

void doc_free(struct doc *doc)
{
    if (!doc) return;
    struct bump store = doc->store; /* the document lives in its own store */
    free(doc->text);
    bump_free(&store);
}

/* ---- building ---- */

enum plim_status node_build_begin(struct node_build *build, const char *name, struct quota *quota,
                                  struct plim_error *err)
{
    *build = (struct node_build){.quota = quota};
    struct bump store = BUMP_INIT;
    struct doc *doc = bump_alloc(&store, sizeof *doc);
    const char *copy = doc ? bump_copy(&store, name, strlen(name)) : NULL;
    bool counted = copy && quota_take(quota, store.total);
    if (!counted) {
        bump_free(&store);
        return copy ? quota_fail(quota, name, err)
                    : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    }
    doc->store = store;
    doc->name = copy;
    build->doc = doc;
    return PLIM_OK;
}

void *node_build_alloc(struct node_build *build, size_t bytes, enum plim_status *status,
                       struct plim_error *err)
{
    struct bump *store = &build->doc->store;
    size_t before = store->total;
    void *got = bump_alloc(store, bytes); /* zeroed by the system: not touched yet */
    if (!got) {
        *status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", build->doc->name);
    } else if (!quota_take(build->quota, store->total - before)) {
        *status = quota_fail(build->quota, build->doc->name, err);
        got = NULL;
    }
    return got;
}

enum plim_status node_build_push(struct node_build *build, const struct node *child, struct plim_error *err)
{
    if (build->count == build->cap) {
        size_t cap = build->cap ? build->cap * 2 : 32;
        if (!quota_take(build->quota, (cap - build->cap) * sizeof *build->stack))
            return quota_fail(build->quota, build->doc->name, err);
        struct node *stack = realloc(build->stack, cap * sizeof *stack);
        if (!stack) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", build->doc->name);
        build->stack = stack;
        build->cap = cap;
    }
    build->stack[build->count++] = *child;
    return PLIM_OK;
}

static enum plim_status duplicate(const struct doc *doc, const struct node *again, int first_line,
                                  struct plim_error *err)
{
    return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: key '%.100s' appears twice (first in line %d)", doc->name,
                     again->line, again->key, first_line);
}

/* Refuse duplicate keys; fill the index of a large map on the way. */
static enum plim_status index_fill(const struct doc *doc, const struct node *items, size_t count,
                                   struct plim_error *err)
{
    bool indexed = index_slots(count) > 0;
    for (size_t i = 0; i < count; i++) {
        if (indexed) {
            uint32_t *slot = index_find(items, count, items[i].key, items[i].key_len);
            if (*slot) return duplicate(doc, &items[i], items[*slot - 1].line, err);
            *slot = (uint32_t)(i + 1);
            continue;
        }
        for (size_t j = 0; j < i; j++)
            if (same_key(&items[j], items[i].key, items[i].key_len))
                return duplicate(doc, &items[i], items[j].line, err);
    }
    return PLIM_OK;
}

/* Where among the first `kept` of `count` children the key is; kept: nowhere. Large maps have an index, which learns it. */
static size_t find_kept(const struct node *items, size_t count, size_t kept, const struct node *child)
{
    size_t j = 0;
    if (index_slots(count)) {
        uint32_t *slot = index_find(items, count, child->key, child->key_len);
        if (!*slot) *slot = (uint32_t)(kept + 1);
        return *slot - 1;
    }
    while (j < kept && !same_key(&items[j], child->key, child->key_len)) j++;
    return j;
}

/* Later values in the places of earlier ones with their key; how many children are left. The index is empty again. */
static size_t keep_last(struct node *items, size_t count)
{
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        struct node child = items[i];
        size_t at = find_kept(items, count, kept, &child);
        kept += at == kept;
        items[at] = child;
    }
    memset(items + kept, 0, (count - kept) * sizeof *items + index_slots(count) * sizeof(uint32_t));
    return kept;
}

enum plim_status node_build_close(struct node_build *build, size_t mark, enum node_kind kind,
                                  struct node *node, struct plim_error *err)
{
    size_t count = build->count - mark;
    size_t slots = kind == NODE_MAP ? index_slots(count) : 0;
    struct node *items = NULL;
    if (count > 0) {
        if (count >= UINT32_MAX / 2)
            return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: too many entries", build->doc->name, node->line);
        enum plim_status status = PLIM_OK;
        items = node_build_alloc(build, count * sizeof *items + slots * sizeof(uint32_t), &status, err);
        if (!items) return status;
        memcpy(items, build->stack + mark, count * sizeof *items);
        if (kind == NODE_MAP && build->last_wins) count = keep_last(items, count);
    }
    build->count = mark;
    node->kind = kind;
    node->as.list.items = items;
    node->as.list.count = count;
    return kind == NODE_MAP ? index_fill(build->doc, items, count, err) : PLIM_OK;
}

struct doc *node_build_end(struct node_build *build, enum plim_status status)
{
    struct doc *doc = build->doc;
    quota_give(build->quota, build->cap * sizeof *build->stack);
    free(build->stack);
    *build = (struct node_build){0};
    if (status == PLIM_OK) return doc;
    doc_free(doc);
    return NULL;
}
