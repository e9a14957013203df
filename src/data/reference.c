/* reference.c - see reference.h.
 *
 * The file: a header; the entries, each followed by its tokens; the table, a power of two of places (u64): the offset of an
 * entry, or 0. An entry is at the first free place from its key on. */
#include "data/reference.h"
#include "base/hash.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct header {
    char magic[8];
    uint64_t fingerprint, entries, table, places, sum;
};
#define MAGIC "PLIMREF\n"

struct reference {
    int fd;
    char *path;
    struct header header;
};

static uint64_t sum_of(const struct header *h) { return hash64(h, offsetof(struct header, sum), 1); }

static uint64_t bytes_of(const struct reference_entry *e)
{
    return sizeof *e + (uint64_t)e->count * sizeof(int32_t);
}

enum plim_status reference_begin(struct reference_writer *w, const char *path, uint64_t fingerprint,
                                 struct plim_error *err)
{
    *w = (struct reference_writer){.fingerprint = fingerprint, .end = sizeof(struct header)};
    return file_atomic_begin(&w->file, path, err);
}

enum plim_status reference_add(struct reference_writer *w, const struct reference_entry *entry,
                               const int32_t *tokens, struct plim_error *err)
{
    struct reference_entry e; /* without undefined bytes at its end */
    memset(&e, 0, sizeof e);
    e.key = entry->key, e.count = entry->count;
    memcpy(e.logp, entry->logp, sizeof e.logp);
    const char *path = w->file.temp;
    enum plim_status status = file_pwrite_full(w->file.fd, &e, sizeof e, w->end, path, err);
    if (status == PLIM_OK && e.count)
        status = file_pwrite_full(w->file.fd, tokens, (size_t)e.count * sizeof *tokens, w->end + sizeof e,
                                  path, err);
    w->end += bytes_of(&e), w->entries++;
    return status;
}

/* The place of a key in the table: that of its entry, or a free one. */
static enum plim_status find_place(int fd, const struct header *h, uint64_t key, const char *path,
                                   uint64_t *place, uint64_t *offset, struct reference_entry *entry,
                                   struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (uint64_t i = 0; i < h->places && status == PLIM_OK; i++) {
        *place = h->table + ((key + i) & (h->places - 1)) * sizeof *offset;
        status = file_pread_full(fd, offset, sizeof *offset, *place, path, err);
        if (status != PLIM_OK || !*offset) return status;
        status = file_pread_full(fd, entry, sizeof *entry, *offset, path, err);
        if (status == PLIM_OK && entry->key == key) return PLIM_OK;
    }
    *offset = 0;
    return status;
}

static enum plim_status write_table(const struct reference_writer *w, const struct header *h,
                                    struct plim_error *err)
{
    int fd = w->file.fd;
    const char *path = w->file.temp;
    enum plim_status status = PLIM_OK;
    if (ftruncate(fd, (off_t)(h->table + h->places * sizeof(uint64_t))))
        return plim_fail(err, PLIM_IO, "%s: cannot be made larger", path);
    for (uint64_t at = sizeof *h; at < w->end && status == PLIM_OK;) {
        struct reference_entry e, there;
        uint64_t place = 0, offset = 0;
        status = file_pread_full(fd, &e, sizeof e, at, path, err);
        if (status == PLIM_OK) status = find_place(fd, h, e.key, path, &place, &offset, &there, err);
        if (status == PLIM_OK && !offset) status = file_pwrite_full(fd, &at, sizeof at, place, path, err);
        at += bytes_of(&e);
    }
    return status;
}

enum plim_status reference_commit(struct reference_writer *w, struct plim_error *err)
{
    struct header h = {
        .fingerprint = w->fingerprint, .entries = w->entries, .table = (w->end + 7) / 8 * 8, .places = 64};
    memcpy(h.magic, MAGIC, sizeof h.magic);
    while (h.places < 2 * w->entries) h.places *= 2;
    h.sum = sum_of(&h);
    enum plim_status status = write_table(w, &h, err);
    if (status == PLIM_OK) status = file_pwrite_full(w->file.fd, &h, sizeof h, 0, w->file.temp, err);
    if (status != PLIM_OK) {
        reference_abandon(w);
        return status;
    }
    return file_atomic_commit(&w->file, err);
}

void reference_abandon(struct reference_writer *w) { file_atomic_abandon(&w->file); }

enum plim_status reference_open(const char *path, uint64_t fingerprint, struct reference **out,
                                struct plim_error *err)
{
    struct reference *r = calloc(1, sizeof *r);
    if (!r || !(r->path = strdup(path))) {
        free(r);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the reference's log-probabilities");
    }
    r->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const struct header *h = &r->header;
    bool good = r->fd >= 0 && file_pread_full(r->fd, &r->header, sizeof *h, 0, path, NULL) == PLIM_OK &&
                !memcmp(h->magic, MAGIC, sizeof h->magic) && h->sum == sum_of(h) &&
                file_bytes(path) == (int64_t)(h->table + h->places * sizeof(uint64_t));
    if (good && h->fingerprint == fingerprint) return *out = r, PLIM_OK;
    reference_close(r);
    return plim_fail(err, PLIM_NOT_FOUND, "%s: has no log-probabilities of this reference and these data",
                     path);
}

void reference_close(struct reference *r)
{
    if (!r) return;
    if (r->fd >= 0) close(r->fd);
    free(r->path);
    free(r);
}

bool reference_find(const struct reference *r, uint64_t key, struct reference_entry *entry, int32_t *tokens,
                    int32_t most)
{
    uint64_t place, offset = 0;
    if (find_place(r->fd, &r->header, key, r->path, &place, &offset, entry, NULL) != PLIM_OK || !offset)
        return false;
    int32_t n = entry->count < most ? entry->count : most;
    return n < 1 || file_pread_full(r->fd, tokens, (size_t)n * sizeof *tokens, offset + sizeof *entry,
                                    r->path, NULL) == PLIM_OK;
}
