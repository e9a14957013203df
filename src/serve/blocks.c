/* blocks.c - see blocks.h. */
#include "serve/blocks.h"
#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

struct block_name block_name_of(uint64_t before, const int32_t *tokens)
{
    struct block_name name = {.before = before};
    memcpy(name.tokens, tokens, sizeof name.tokens);
    name.hash = hash64(tokens, sizeof name.tokens, before ^ 0x9e3779b97f4a7c15u);
    return name;
}

/* --- lists ------------------------------------------------------------------------------------------------ */

static void list_add(struct blocks *b, struct block_list *list, int32_t id)
{
    b->block[id].older = list->newest, b->block[id].newer = -1;
    if (list->newest >= 0)
        b->block[list->newest].newer = id;
    else
        list->oldest = id;
    list->newest = id;
    list->count++;
}

static void list_remove(struct blocks *b, struct block_list *list, int32_t id)
{
    struct block *x = &b->block[id];
    if (x->older >= 0)
        b->block[x->older].newer = x->newer;
    else
        list->oldest = x->newer;
    if (x->newer >= 0)
        b->block[x->newer].older = x->older;
    else
        list->newest = x->older;
    list->count--;
}

/* --- names ------------------------------------------------------------------------------------------------ */

static int32_t *place_of(struct blocks *b, uint64_t hash)
{
    return &b->table[hash & (uint64_t)(b->places - 1)];
}

static bool same_name(const struct block_name *a, const struct block_name *b)
{
    return a->hash == b->hash && a->before == b->before && !memcmp(a->tokens, b->tokens, sizeof a->tokens);
}

static int32_t named(struct blocks *b, const struct block_name *name)
{
    int32_t id = *place_of(b, name->hash);
    while (id >= 0 && !same_name(&b->block[id].name, name)) id = b->block[id].next;
    return id;
}

static void put_name(struct blocks *b, int32_t id)
{
    int32_t *place = place_of(b, b->block[id].name.hash);
    b->block[id].next = *place, *place = id;
    b->block[id].named = true;
}

static void forget_name(struct blocks *b, int32_t id)
{
    int32_t *at = place_of(b, b->block[id].name.hash);
    while (*at != id) at = &b->block[*at].next;
    *at = b->block[id].next;
    b->block[id].named = false;
}

/* --- owners ----------------------------------------------------------------------------------------------- */

int32_t blocks_take(struct blocks *b)
{
    int32_t id = b->free.oldest;
    if (id >= 0) {
        list_remove(b, &b->free, id);
    } else if ((id = b->cached.oldest) >= 0) {
        list_remove(b, &b->cached, id);
        forget_name(b, id);
    }
    if (id >= 0) b->block[id].owners = 1;
    return id;
}

void blocks_drop(struct blocks *b, int32_t id)
{
    struct block *x = &b->block[id];
    b->shared -= x->owners == 2;
    if (--x->owners > 0) return;
    list_add(b, x->named ? &b->cached : &b->free, id);
}

int32_t blocks_find(struct blocks *b, const struct block_name *name)
{
    int32_t id = named(b, name);
    if (id < 0) return -1;
    if (b->block[id].owners++ == 0) list_remove(b, &b->cached, id);
    b->shared += b->block[id].owners == 2;
    return id;
}

void blocks_name(struct blocks *b, int32_t id, const struct block_name *name)
{
    if (b->block[id].named || named(b, name) >= 0) return;
    b->block[id].name = *name;
    put_name(b, id);
}

/* --- the pool --------------------------------------------------------------------------------------------- */

static int64_t places_for(int64_t count)
{
    int64_t places = 16;
    while (places < count) places *= 2;
    return places;
}

int64_t blocks_bytes(int64_t count)
{
    return count * (int64_t)sizeof(struct block) + places_for(count) * (int64_t)sizeof(int32_t);
}

/* Memory for so many, without names in the table; block[] keeps what it has. */
static bool make_room(struct blocks *b, int64_t count)
{
    struct block *block = b->block;
    int64_t places = places_for(count);
    int32_t *table = malloc((size_t)places * sizeof *table);
    if (!table) return false;
    if (count > b->room && !(block = realloc(b->block, (size_t)count * sizeof *block))) {
        free(table);
        return false;
    }
    free(b->table);
    if (count > b->room) b->block = block, b->room = count;
    b->table = table, b->places = places;
    for (int64_t i = 0; i < places; i++) table[i] = -1;
    return true;
}

static void add_free(struct blocks *b, int64_t from, int64_t end)
{
    for (int64_t i = from; i < end; i++) {
        b->block[i] = (struct block){.next = -1};
        list_add(b, &b->free, (int32_t)i);
    }
}

static const struct block_list empty = {-1, -1, 0};

enum plim_status blocks_init(struct blocks *b, int64_t count, struct plim_error *err)
{
    *b = (struct blocks){.count = count, .free = empty, .cached = empty};
    if (!make_room(b, count)) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the list of blocks");
    add_free(b, 0, count);
    return PLIM_OK;
}

void blocks_release(struct blocks *b)
{
    free(b->block);
    free(b->table);
    *b = (struct blocks){0};
}

/* Blocks from `count` on go to places before it: owned ones all, cached ones, the newest first, while there are places. */
static void move_down(struct blocks *b, int64_t count, int32_t *to)
{
    int32_t place = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = b->count - 1; i >= count; i--) {
            struct block *x = &b->block[i];
            bool moves = pass == 0 ? x->owners > 0 : x->owners == 0 && x->named;
            if (!moves) continue;
            /* Into free places first; an owned one may push out what is only cached. */
            while (place < count && (b->block[place].owners > 0 || b->block[place].named)) place++;
            int32_t target = place < count ? place : -1;
            for (int32_t c = b->cached.oldest; target < 0 && pass == 0 && c >= 0; c = b->block[c].newer)
                if (c < count && to[c] == c) target = c;
            if (target < 0) continue;
            if (b->block[target].named && b->block[target].owners == 0)
                to[target] = -1, list_remove(b, &b->cached, target);
            else
                list_remove(b, &b->free, target);
            if (x->owners == 0) list_remove(b, &b->cached, (int32_t)i);
            struct block moved = *x;
            b->block[target] = moved;
            if (moved.owners == 0) list_add(b, &b->cached, target);
            x->owners = 0, x->named = false, list_add(b, &b->free, (int32_t)i);
            to[i] = target;
        }
    }
}

enum plim_status blocks_resize(struct blocks *b, int64_t count, int32_t *to, struct plim_error *err)
{
    int64_t had = b->count, owned = had - blocks_left(b);
    if (owned > count)
        return plim_fail(err, PLIM_NO_FIT, "%lld blocks are in use, there will be %lld", (long long)owned,
                         (long long)count);
    if (!make_room(b, count > had ? count : had))
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the list of blocks");
    for (int64_t i = 0; i < had || i < count; i++) to[i] = i < had ? (int32_t)i : -1;
    if (count < had) move_down(b, count, to);
    for (int64_t i = count; i < had; i++) { /* what is still there has no place */
        struct block *x = &b->block[i];
        if (to[i] == i) to[i] = -1;
        list_remove(b, x->named ? &b->cached : &b->free, (int32_t)i);
    }
    if (count > had) add_free(b, had, count);
    b->count = count;
    for (int64_t i = 0; i < count; i++)
        if (b->block[i].named) put_name(b, (int32_t)i);
    return PLIM_OK;
}

enum plim_status blocks_check(const struct blocks *b, struct plim_error *err)
{
    int64_t owned = 0, cached = 0, free_ones = 0, shared = 0;
    struct blocks *any = (struct blocks *)(uintptr_t)b;
    for (int64_t i = 0; i < b->count; i++) {
        const struct block *x = &b->block[i];
        owned += x->owners > 0, shared += x->owners > 1;
        cached += x->owners == 0 && x->named, free_ones += x->owners == 0 && !x->named;
        if (x->owners < 0)
            return plim_fail(err, PLIM_BUG, "block %lld has %d owners", (long long)i, x->owners);
        if (x->named && named(any, &x->name) != i)
            return plim_fail(err, PLIM_BUG, "block %lld is not found by its name", (long long)i);
    }
    if (cached != b->cached.count || free_ones != b->free.count || shared != b->shared ||
        owned + cached + free_ones != b->count)
        return plim_fail(err, PLIM_BUG, "lists of blocks and their states differ");
    return PLIM_OK;
}
