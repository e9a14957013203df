/* pjrt_slots.c - see pjrt_slots.h. */
#include "device/pjrt/pjrt_slots.h"
#include "base/minmax.h"
#include "device/device.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SMALL = 1 << 16 }; /* below this, pages are not given back */

#define LEAST_ADDRESSES ((size_t)8 << 20)

static size_t shape_bytes(const struct pjrt_shape *shape)
{
    size_t n = dtype_size(shape->type);
    for (int i = 0; i < shape->ndim; i++) n *= (size_t)shape->dim[i];
    return n;
}

static bool same_shape(const struct pjrt_shape *a, const struct pjrt_shape *b)
{
    return a->type == b->type && a->ndim == b->ndim &&
           (!a->ndim || !memcmp(a->dim, b->dim, (size_t)a->ndim * sizeof *a->dim));
}

static void *reserve(size_t bytes)
{
    return mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

enum plim_status slots_open(struct pjrt_slots *s, struct pjrt *pjrt, size_t most, struct ledger *ledger,
                            struct plim_error *err)
{
    /* Addresses cost nothing, but some processes have few of them (sanitizers, ulimit -v): then fewer will do. */
    void *base = reserve(most);
    while (base == MAP_FAILED && most / 2 >= LEAST_ADDRESSES) base = reserve(most /= 2);
    if (base == MAP_FAILED)
        return plim_fail(
            err, PLIM_NO_MEMORY,
            "the system gives this process too few addresses for an arena; raise its limit (ulimit -v)");
    *s = (struct pjrt_slots){.pjrt = pjrt, .base = base, .most = most, .ledger = ledger};
    return PLIM_OK;
}

static void forget(struct pjrt_slot *slot, struct pjrt *p)
{
    pjrt_drop(p, slot->buffer);
    slot->buffer = NULL, slot->copied = false, slot->written = 0;
}

void slots_close(struct pjrt_slots *s)
{
    for (int i = 0; i < s->count; i++) forget(&s->slots[i], s->pjrt);
    if (s->base) munmap(s->base, s->most);
    if (s->committed) ledger_release(s->ledger, DEVICE_LEDGER_ARENA, s->committed);
    free(s->slots);
    *s = (struct pjrt_slots){0};
}

/* Gives whole pages inside [offset, offset + bytes) back to the system; they read as zero afterwards. */
static void give_back(struct pjrt_slots *s, size_t offset, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), begin = (offset + page - 1) / page * page;
    size_t end = (offset + bytes) / page * page;
    if (end > begin) madvise(s->base + begin, end - begin, MADV_DONTNEED);
}

/* The first slot that ends behind `offset`. */
static int slot_at(const struct pjrt_slots *s, size_t offset)
{
    int low = 0, high = s->count;
    while (low < high) {
        int mid = (low + high) / 2;
        if (s->slots[mid].offset + s->slots[mid].bytes <= offset)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool overlaps(const struct pjrt_slots *s, int i, size_t end)
{
    return i < s->count && s->slots[i].offset < end;
}

/* The slot's bytes are in host memory afterwards as well. */
static enum plim_status fetch(struct pjrt_slots *s, struct pjrt_slot *slot, struct plim_error *err)
{
    if (!slot->buffer || slot->copied || s->pjrt->zero_copy) return PLIM_OK;
    enum plim_status status = pjrt_download(s->pjrt, slot->buffer, s->base + slot->offset, slot->bytes, err);
    slot->copied = status == PLIM_OK;
    return status;
}

static void remove_slot(struct pjrt_slots *s, int i)
{
    forget(&s->slots[i], s->pjrt);
    memmove(&s->slots[i], &s->slots[i + 1], (size_t)(--s->count - i) * sizeof *s->slots);
}

enum plim_status slots_commit(struct pjrt_slots *s, size_t bytes, struct plim_error *err)
{
    if (bytes > s->most) return plim_fail(err, PLIM_NO_MEMORY, "the arena cannot become that large");
    if (bytes > s->committed) {
        enum plim_status status = ledger_reserve(s->ledger, DEVICE_LEDGER_ARENA, bytes - s->committed, err);
        if (status != PLIM_OK) return status;
    } else if (bytes < s->committed) {
        while (s->count && s->slots[s->count - 1].offset + s->slots[s->count - 1].bytes > bytes)
            remove_slot(s, s->count - 1);
        ledger_release(s->ledger, DEVICE_LEDGER_ARENA, s->committed - bytes);
        give_back(s, bytes, s->committed - bytes);
    }
    s->committed = bytes;
    return PLIM_OK;
}

enum plim_status slots_read(struct pjrt_slots *s, size_t offset, void *host, size_t bytes,
                            struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = slot_at(s, offset); status == PLIM_OK && overlaps(s, i, offset + bytes); i++) {
        struct pjrt_slot *slot = &s->slots[i];
        bool whole = slot->offset == offset && slot->bytes == bytes;
        if (whole && slot->buffer && !slot->copied && !s->pjrt->zero_copy)
            return pjrt_download(s->pjrt, slot->buffer, host, bytes, err);
        status = fetch(s, slot, err);
    }
    if (status == PLIM_OK) memcpy(host, s->base + offset, bytes);
    return status;
}

static enum plim_status send(struct pjrt_slots *s, struct pjrt_slot *slot, struct plim_error *err)
{
    bool place = s->pjrt->zero_copy;
    enum plim_status status =
        pjrt_upload(s->pjrt, s->base + slot->offset, &slot->shape, place, &slot->buffer, err);
    if (status != PLIM_OK) return status;
    slot->written = 0, slot->copied = false;
    if (!place && slot->bytes >= SMALL) give_back(s, slot->offset, slot->bytes);
    return PLIM_OK;
}

/* Brings a slot that is about to be written back to host memory; one that is written whole needs no copy. */
static enum plim_status recall(struct pjrt_slots *s, struct pjrt_slot *slot, size_t offset, size_t bytes,
                               struct plim_error *err)
{
    bool whole = offset <= slot->offset && offset + bytes >= slot->offset + slot->bytes;
    if (!slot->buffer || s->pjrt->zero_copy) return PLIM_OK;
    enum plim_status status = whole ? PLIM_OK : fetch(s, slot, err);
    if (status == PLIM_OK) forget(slot, s->pjrt);
    return status;
}

enum plim_status slots_write(struct pjrt_slots *s, size_t offset, const void *host, size_t bytes,
                             struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    int first = slot_at(s, offset);
    for (int i = first; status == PLIM_OK && overlaps(s, i, offset + bytes); i++)
        status = recall(s, &s->slots[i], offset, bytes, err);
    if (status != PLIM_OK) return status;
    memcpy(s->base + offset, host, bytes);
    struct pjrt_slot *slot = overlaps(s, first, offset + bytes) ? &s->slots[first] : NULL;
    if (!slot || slot->buffer || s->pjrt->zero_copy || slot->offset + slot->written != offset) return PLIM_OK;
    slot->written += min_size(bytes, slot->bytes - slot->written);
    return slot->written == slot->bytes && slot->bytes >= SMALL ? send(s, slot, err) : PLIM_OK;
}

/* Ends what overlaps, with its bytes in host memory. */
static enum plim_status clear(struct pjrt_slots *s, size_t offset, size_t bytes, struct plim_error *err)
{
    int i = slot_at(s, offset);
    while (overlaps(s, i, offset + bytes)) {
        enum plim_status status = fetch(s, &s->slots[i], err);
        if (status != PLIM_OK) return status;
        remove_slot(s, i);
    }
    return PLIM_OK;
}

static struct pjrt_slot *find(struct pjrt_slots *s, size_t offset, const struct pjrt_shape *shape)
{
    int i = slot_at(s, offset);
    bool here = i < s->count && s->slots[i].offset == offset && same_shape(&s->slots[i].shape, shape);
    return here ? &s->slots[i] : NULL;
}

enum plim_status slots_declare(struct pjrt_slots *s, size_t offset, const struct pjrt_shape *shape,
                               struct plim_error *err)
{
    size_t bytes = shape_bytes(shape);
    if (!bytes || find(s, offset, shape)) return PLIM_OK;
    enum plim_status status = clear(s, offset, bytes, err);
    if (status != PLIM_OK) return status;
    if (s->count == s->room) {
        int room = s->room ? 2 * s->room : 256;
        struct pjrt_slot *more = realloc(s->slots, (size_t)room * sizeof *more);
        if (!more) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the arena's slots");
        s->slots = more, s->room = room;
    }
    int i = slot_at(s, offset);
    memmove(&s->slots[i + 1], &s->slots[i], (size_t)(s->count++ - i) * sizeof *s->slots);
    s->slots[i] = (struct pjrt_slot){.offset = offset, .bytes = bytes, .shape = *shape};
    return PLIM_OK;
}

enum plim_status slots_buffer(struct pjrt_slots *s, size_t offset, const struct pjrt_shape *shape,
                              struct pjrt_buffer **out, struct plim_error *err)
{
    enum plim_status status = slots_declare(s, offset, shape, err);
    struct pjrt_slot *slot = status == PLIM_OK ? find(s, offset, shape) : NULL;
    if (slot && !slot->buffer) status = send(s, slot, err);
    *out = slot ? slot->buffer : NULL;
    return status;
}

enum plim_status slots_replace(struct pjrt_slots *s, size_t offset, const struct pjrt_shape *shape,
                               struct pjrt_buffer *buffer, struct plim_error *err)
{
    enum plim_status status = slots_declare(s, offset, shape, err);
    struct pjrt_slot *slot = status == PLIM_OK ? find(s, offset, shape) : NULL;
    bool elsewhere = slot && s->pjrt->zero_copy && pjrt_address(s->pjrt, buffer) != s->base + offset;
    if (slot) forget(slot, s->pjrt);
    if (elsewhere) status = pjrt_download(s->pjrt, buffer, s->base + offset, slot->bytes, err);
    if (slot && !elsewhere)
        slot->buffer = buffer;
    else
        pjrt_drop(s->pjrt, buffer);
    return status;
}
