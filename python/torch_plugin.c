/* torch_plugin.c - Plimsoll's allocator behind PyTorch's interface for pluggable allocators (libplimsoll_torch.so).
 *
 *     plim_torch_use(0, allocator, &hooks);               // from Python, before the first tensor on the card
 *     CUDAPluggableAllocator("libplimsoll_torch.so", "plim_torch_malloc", "plim_torch_free")
 *
 * PyTorch's functions have no argument for the caller's state, so this file has one table of devices for the process; the
 * library itself has none. Everything else goes through the public API.
 *
 * A refusal becomes torch.OutOfMemoryError: the exception of libc10 is made with that library's own constructor and thrown
 * through PyTorch's frames. Where libc10 does not have it, plim_torch_malloc returns NULL, as in a MemPool, where NULL is
 * PyTorch's own way to an OutOfMemoryError.
 *
 * Packed steps. The plug-in can record the requests of a step (plim_torch_step marks the end of each). When two steps in a row
 * made the same requests, their blocks get fixed places in one arena (plim_pack), and later steps are served from it:
 *
 *     idle --two equal steps--> packed --a request differs, or a block lives longer--> this step uses the cache
 *
 * Invariants
 *  1. A place is handed out only when every block that had an overlapping place before it in the step has been freed.
 *  2. A step begins packed only when no block of the arena is live.
 *  3. Blocks outside the arena belong to the allocator; address ranges tell them apart.
 */
#define _GNU_SOURCE
#include <plimsoll/allocator.h>
#include <plimsoll/pack.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 64 };

/* Called without any lock, on the thread that allocates. */
struct plim_torch_hooks {
    /* Names the code that allocates; the text must live as long as the process. NULL: unnamed. */
    const char *(*owner)(void);
    /* PyTorch's exception is thrown on refusal; 0: NULL is returned, for a MemPool. */
    int throws;
};

/* One request of a step. */
struct request {
    size_t bytes;
    void *stream;
    int64_t born, died; /* positions in the step's sequence of calls; died 0: not yet */
    uint64_t place;     /* offset in the arena */
    int32_t *before;    /* requests whose blocks must be free first */
    int nbefore;
    bool live;
};

struct step {
    struct request *at;
    size_t count, cap;
    int64_t clock;
    bool open; /* a block of it was not freed before its end */
};

/* Address of a live block to its request. Open addressing; sizes are powers of two. */
struct lookup {
    uint64_t *keys;
    int32_t *values;
    size_t cap, used;
};

struct device_state {
    struct plim_allocator *allocator;
    struct plim_torch_hooks hooks;
    pthread_mutex_t lock; /* guards the members below */
    bool packing;
    struct step now, last;
    struct lookup born; /* blocks of the step that is recorded */
    struct request *packed;
    size_t packed_count, next; /* the request that is expected */
    struct lookup places;      /* arena offset + 1 to the live request */
    char *arena;
    uint64_t arena_bytes;
    int64_t live, serving, steps, diverged; /* blocks of the arena; steps served packed so far; steps that differed */
    bool serves;
};

static struct device_state devices[DEVICES];

/* ---- the exception ---- */

struct source_location {
    const char *function, *file;
    uint32_t line;
};
struct std_string { /* libstdc++'s */
    char *text;
    size_t length;
    union {
        char inside[16];
        size_t capacity;
    } room;
};

static void *find(const char *library, const char *symbol)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD), *found = handle ? dlsym(handle, symbol) : NULL;
    if (handle) dlclose(handle);
    return found;
}

/* Returns only when this PyTorch has no such exception. */
static void throw_out_of_memory(const char *text)
{
    void (*construct)(void *, struct source_location, struct std_string *) =
        (void (*)(void *, struct source_location, struct std_string *))find(
            "libc10.so", "_ZN3c105ErrorC1ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE");
    void (*destroy)(void *) = (void (*)(void *))find("libc10.so", "_ZN3c105ErrorD1Ev");
    char *table = find("libc10_cuda.so", "_ZTVN3c1016OutOfMemoryErrorE");
    void *type = find("libc10_cuda.so", "_ZTIN3c1016OutOfMemoryErrorE");
    void *(*make)(size_t) = (void *(*)(size_t))find("libstdc++.so.6", "__cxa_allocate_exception");
    void (*raise)(void *, void *, void (*)(void *)) =
        (void (*)(void *, void *, void (*)(void *)))find("libstdc++.so.6", "__cxa_throw");
    if (!construct || !destroy || !table || !type || !make || !raise) return;
    struct std_string message = {.text = strdup(text), .length = strlen(text)};
    message.room.capacity = message.length;
    void *exception = make(4096); /* more than any version's object takes */
    if (!message.text || !exception) return;
    construct(exception, (struct source_location){"plim_torch_malloc", "plimsoll", 0}, &message);
    *(void **)exception = table + 2 * sizeof(void *); /* behind offset and type */
    raise(exception, type, destroy);
}

/* ---- lookups ---- */

static size_t slot_of(const struct lookup *l, uint64_t key)
{
    size_t i = (size_t)((key * 0x9e3779b97f4a7c15u) >> 20) & (l->cap - 1);
    while (l->keys[i] && l->keys[i] != key) i = (i + 1) & (l->cap - 1);
    return i;
}

static bool lookup_grow(struct lookup *l)
{
    struct lookup wide = {.cap = l->cap ? 2 * l->cap : 1024};
    wide.keys = calloc(wide.cap, sizeof *wide.keys), wide.values = calloc(wide.cap, sizeof *wide.values);
    if (!wide.keys || !wide.values) return free(wide.keys), free(wide.values), false;
    for (size_t i = 0; i < l->cap; i++) {
        if (!l->keys[i]) continue;
        size_t at = slot_of(&wide, l->keys[i]);
        wide.keys[at] = l->keys[i], wide.values[at] = l->values[i], wide.used++;
    }
    free(l->keys), free(l->values);
    *l = wide;
    return true;
}

static bool lookup_put(struct lookup *l, uint64_t key, int32_t value)
{
    if (2 * l->used >= l->cap && !lookup_grow(l)) return false;
    size_t at = slot_of(l, key);
    l->used += !l->keys[at];
    l->keys[at] = key, l->values[at] = value;
    return true;
}

/* The value of a key, which stays; -1: it has none. */
static int32_t lookup_get(const struct lookup *l, uint64_t key)
{
    if (!l->cap) return -1;
    size_t at = slot_of(l, key);
    return l->keys[at] ? l->values[at] : -1;
}

static void lookup_clear(struct lookup *l)
{
    if (l->cap) memset(l->keys, 0, l->cap * sizeof *l->keys);
    l->used = 0;
}

/* ---- recording a step ---- */

static void step_clear(struct step *s) { s->count = 0, s->clock = 0, s->open = false; }

static void note_malloc(struct device_state *d, size_t bytes, void *stream, void *block)
{
    struct step *s = &d->now;
    if (s->count == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4096;
        struct request *wide = realloc(s->at, cap * sizeof *wide);
        if (!wide) return (void)(s->open = true); /* this step cannot be packed */
        s->at = wide, s->cap = cap;
    }
    s->at[s->count] = (struct request){.bytes = bytes, .stream = stream, .born = ++s->clock};
    if (!lookup_put(&d->born, (uint64_t)(uintptr_t)block, (int32_t)s->count)) s->open = true;
    s->count++;
}

static void note_free(struct device_state *d, void *block)
{
    int32_t i = lookup_get(&d->born, (uint64_t)(uintptr_t)block);
    if (i < 0 || (size_t)i >= d->now.count || d->now.at[i].died) return; /* of an earlier step */
    d->now.at[i].died = ++d->now.clock;
}

/* Two steps are the same when their calls are: sizes, streams, and the order of mallocs and frees. */
static bool same_steps(const struct step *a, const struct step *b)
{
    if (a->open || b->open || !a->count || a->count != b->count) return false;
    for (size_t i = 0; i < a->count; i++) {
        const struct request *x = &a->at[i], *y = &b->at[i];
        if (x->bytes != y->bytes || x->stream != y->stream || x->born != y->born || x->died != y->died) return false;
    }
    return true;
}

/* ---- packing ---- */

static int by_birth(const void *a, const void *b)
{
    int64_t x = ((const struct request *)a)->born, y = ((const struct request *)b)->born;
    return (x > y) - (x < y);
}

enum { GAPS = 64 };

/* Parts of a place that no earlier request found so far has covered. */
struct gaps {
    uint64_t low[GAPS], high[GAPS];
    int count; /* -1: too many to follow; everything counts as uncovered */
};

/* Takes [low, high) out; returns whether any of it was uncovered. */
static bool gaps_cover(struct gaps *g, uint64_t low, uint64_t high)
{
    bool hit = g->count < 0;
    for (int i = g->count - 1; i >= 0; i--) {
        uint64_t l = g->low[i], h = g->high[i];
        if (high <= l || h <= low) continue;
        hit = true;
        g->low[i] = g->low[g->count - 1], g->high[i] = g->high[g->count - 1], g->count--;
        if (g->count > GAPS - 2) return g->count = -1, true;
        if (l < low) g->low[g->count] = l, g->high[g->count++] = low;
        if (high < h) g->low[g->count] = high, g->high[g->count++] = h;
    }
    return hit;
}

/* The earlier requests that must be free before a place is handed out (invariant 1): going back in time, those that cover a
 * part of it which no later one covers. Older ones were free when these were handed out. */
static bool find_before(struct request *all, size_t count)
{
    int32_t *found = malloc(count * sizeof *found);
    bool good = found != NULL;
    for (size_t i = 0; i < count && good; i++) {
        struct request *r = &all[i];
        struct gaps gaps = {{r->place}, {r->place + r->bytes}, 1};
        int n = 0;
        for (size_t j = i; j-- > 0 && gaps.count;)
            if (all[j].place < r->place + r->bytes && r->place < all[j].place + all[j].bytes &&
                gaps_cover(&gaps, all[j].place, all[j].place + all[j].bytes))
                found[n++] = (int32_t)j;
        r->nbefore = n;
        r->before = n ? malloc((size_t)n * sizeof *found) : NULL;
        good = !n || r->before;
        if (n && good) memcpy(r->before, found, (size_t)n * sizeof *found);
    }
    free(found);
    return good;
}

static void drop_packed(struct device_state *d)
{
    for (size_t i = 0; i < d->packed_count; i++) free(d->packed[i].before);
    free(d->packed);
    if (d->arena) plim_dealloc(d->allocator, d->arena, NULL);
    d->packed = NULL, d->packed_count = 0, d->arena = NULL, d->serves = false;
}

/* Gives the requests of d->now places in an arena. */
static bool pack_step(struct device_state *d)
{
    size_t count = d->now.count;
    struct plim_interval *items = calloc(count, sizeof *items);
    struct request *all = malloc(count * sizeof *all);
    uint64_t height = 0;
    void *arena = NULL;
    bool good = items && all;
    for (size_t i = 0; good && i < count; i++) {
        const struct request *r = &d->now.at[i];
        good = r->stream == d->now.at[0].stream; /* places are reused in the order of one stream */
        items[i] = (struct plim_interval){r->born, r->died, r->bytes, 0};
    }
    good = good && plim_pack(items, count, 512, &height, NULL) == PLIM_OK;
    for (size_t i = 0; good && i < count; i++) {
        all[i] = d->now.at[i];
        all[i].place = items[i].offset, all[i].before = NULL, all[i].live = false;
    }
    if (good) qsort(all, count, sizeof *all, by_birth);
    good = good && plim_alloc_for(d->allocator, height, NULL, "packed step", &arena, NULL) == PLIM_OK;
    free(items);
    if (!good) return free(all), false;
    d->packed = all, d->packed_count = count, d->arena = arena, d->arena_bytes = height;
    if (!find_before(all, count)) return drop_packed(d), false;
    return true;
}

/* A block of the arena for the next request, or NULL. */
static void *take_place(struct device_state *d, size_t bytes, void *stream)
{
    if (!d->serves) return NULL;
    struct request *r = d->next < d->packed_count ? &d->packed[d->next] : NULL;
    bool fits = r && r->bytes == bytes && r->stream == stream;
    for (int i = 0; fits && i < r->nbefore; i++) fits = !d->packed[r->before[i]].live;
    if (fits) fits = lookup_put(&d->places, r->place + 1, (int32_t)d->next);
    if (!fits) return d->serves = false, d->diverged++, NULL;
    r->live = true, d->live++, d->next++;
    return d->arena + r->place;
}

static bool give_place(struct device_state *d, void *block)
{
    uint64_t offset = (uint64_t)((char *)block - d->arena);
    if (!d->arena || (char *)block < d->arena || offset >= d->arena_bytes) return false;
    int32_t i = lookup_get(&d->places, offset + 1);
    if (i >= 0 && d->packed[i].live) d->packed[i].live = false, d->live--;
    return true;
}

/* ---- PyTorch's side ---- */

PLIM_API void *plim_torch_malloc(ssize_t size, int device, void *stream);
PLIM_API void plim_torch_free(void *block, size_t size, int device, void *stream);
PLIM_API void plim_torch_record_stream(void *block, void *stream);
PLIM_API void plim_torch_set_fraction(double fraction, int device);
PLIM_API void plim_torch_reset(void);
/* Makes an allocator the one of a device; NULL: none. The device has no blocks then. */
PLIM_API int plim_torch_use(int device, struct plim_allocator *allocator, const struct plim_torch_hooks *hooks);
/* Marks the end of a step. With packing on, returns 1 if the next step is served from the arena. */
PLIM_API int plim_torch_step(int device);
PLIM_API void plim_torch_set_packing(int device, int on);
struct plim_torch_packing {
    int64_t requests, arena_bytes, steps, diverged;
};
PLIM_API void plim_torch_packing(int device, struct plim_torch_packing *out);

void *plim_torch_malloc(ssize_t size, int device, void *stream)
{
    struct plim_error err = {0};
    void *block = NULL;
    struct device_state *d = device >= 0 && device < DEVICES ? &devices[device] : NULL;
    if (!d || !d->allocator || size <= 0) return NULL;
    if (d->packing) {
        pthread_mutex_lock(&d->lock);
        block = take_place(d, (size_t)size, stream);
        pthread_mutex_unlock(&d->lock);
        if (block) return block;
    }
    const char *owner = d->hooks.owner ? d->hooks.owner() : NULL;
    if (plim_alloc_for(d->allocator, (size_t)size, stream, owner, &block, &err) != PLIM_OK) {
        if (d->hooks.throws) throw_out_of_memory(err.text);
        return NULL;
    }
    if (d->packing) {
        pthread_mutex_lock(&d->lock);
        note_malloc(d, (size_t)size, stream, block);
        pthread_mutex_unlock(&d->lock);
    }
    return block;
}

void plim_torch_free(void *block, size_t size, int device, void *stream)
{
    (void)size, (void)stream;
    struct device_state *d = device >= 0 && device < DEVICES ? &devices[device] : NULL;
    if (!block || !d || !d->allocator) return;
    bool place = false;
    if (d->packing || d->arena) {
        pthread_mutex_lock(&d->lock);
        place = give_place(d, block);
        if (!place) note_free(d, block);
        pthread_mutex_unlock(&d->lock);
    }
    if (!place) plim_dealloc(d->allocator, block, NULL);
}

void plim_torch_record_stream(void *block, void *stream)
{
    for (int i = 0; i < DEVICES; i++) {
        struct device_state *d = &devices[i];
        if (!d->allocator) continue;
        bool inside = d->arena && (char *)block >= d->arena && (char *)block < d->arena + d->arena_bytes;
        if (inside) d->live++; /* a second stream: the arena is not used again */
        if (inside || plim_alloc_record_stream(d->allocator, block, stream, NULL) == PLIM_OK) return;
    }
}

void plim_torch_set_fraction(double fraction, int device)
{
    if (device >= 0 && device < DEVICES && devices[device].allocator)
        plim_allocator_set_fraction(devices[device].allocator, fraction, NULL);
}

void plim_torch_reset(void) /* torch.cuda.empty_cache() */
{
    for (int i = 0; i < DEVICES; i++)
        if (devices[i].allocator) plim_allocator_clear(devices[i].allocator, 0, NULL, NULL);
}

int plim_torch_use(int device, struct plim_allocator *allocator, const struct plim_torch_hooks *hooks)
{
    if (device < 0 || device >= DEVICES) return PLIM_BAD_INPUT;
    struct device_state *d = &devices[device];
    if (d->allocator) drop_packed(d);
    *d = (struct device_state){.allocator = allocator};
    pthread_mutex_init(&d->lock, NULL);
    if (hooks) d->hooks = *hooks;
    return PLIM_OK;
}

void plim_torch_set_packing(int device, int on)
{
    struct device_state *d = &devices[device];
    pthread_mutex_lock(&d->lock);
    d->packing = on;
    d->serves = false;
    step_clear(&d->now), step_clear(&d->last), lookup_clear(&d->born);
    pthread_mutex_unlock(&d->lock);
}

int plim_torch_step(int device)
{
    struct device_state *d = &devices[device];
    if (!d->allocator) return 0;
    plim_allocator_batch(d->allocator);
    if (!d->packing) return 0;
    pthread_mutex_lock(&d->lock);
    d->serving += d->serves && d->next == d->packed_count;
    d->steps++;
    for (size_t i = 0; i < d->now.count; i++) d->now.open |= !d->now.at[i].died;
    if (!d->packed && same_steps(&d->now, &d->last)) pack_step(d);
    struct step spare = d->last;
    d->last = d->now, d->now = spare;
    step_clear(&d->now), lookup_clear(&d->born);
    d->serves = d->packed && d->live == 0; /* invariant 2 */
    d->next = 0;
    if (d->serves) lookup_clear(&d->places);
    int serves = d->serves;
    pthread_mutex_unlock(&d->lock);
    return serves;
}

void plim_torch_packing(int device, struct plim_torch_packing *out)
{
    const struct device_state *d = &devices[device];
    *out = (struct plim_torch_packing){(int64_t)d->packed_count, (int64_t)d->arena_bytes, d->serving, d->diverged};
}
