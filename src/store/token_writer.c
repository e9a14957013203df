/* token_writer.c - see token_writer.h.
 *
 * Three growing files, each behind a buffer, and their counts. A buffer holds a stretch of its file from the first
 * byte to the last, whether or not some of it has been written already; that of the tokens is a chunk of the token
 * file, so that its checksum is taken where it lies when it is full. Finishing copies index and mask behind the tokens,
 * reads what was written before a stop for its checksums, writes the header last and renames.
 */
#define _GNU_SOURCE
#include "store/token_writer.h"
#include "base/file.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define WRITE_BYTES ((size_t)1 << 18) /* written at once, before they leave the cache */

enum part { PART_TOKENS, PART_INDEX, PART_MASK, PARTS };
static const char *const suffixes[PARTS] = {".part", ".part.index", ".part.mask"};
static const size_t buffer_bytes[PARTS] = {TOKEN_FILE_CHUNK, WRITE_BYTES, WRITE_BYTES};

struct part_file {
    char path[4096];
    int fd;
    unsigned char *buffer;
    size_t size, used, written; /* written <= used <= size */
    uint64_t at;                /* file offset of the buffer */
};

/* Checksums of the chunks [from, count); those before were written by a writer that was stopped. */
struct sums {
    uint64_t *sum; /* [cap], by chunk */
    uint64_t from, count, cap;
};

struct token_writer {
    char *path;
    struct token_writer_format format;
    struct token_writer_mark mark;
    uint32_t width;
    struct part_file parts[PARTS];
    struct sums sums;
    unsigned char bits; /* of the mask's last byte, while it is incomplete */
};

static enum plim_status flush(struct part_file *f, struct plim_error *err)
{
    enum plim_status status = file_pwrite_full(f->fd, f->buffer + f->written, f->used - f->written,
                                               f->at + f->written, f->path, err);
    if (status == PLIM_OK) f->written = f->used;
    return status;
}

static enum plim_status add_sum(struct token_writer *w, const struct part_file *f, struct plim_error *err)
{
    struct sums *s = &w->sums;
    if (s->count >= s->cap) {
        uint64_t cap = 2 * s->count + 64, *more = realloc(s->sum, (size_t)cap * sizeof *more);
        if (!more) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", w->path);
        s->sum = more, s->cap = cap;
    }
    s->sum[s->count] = hash64(f->buffer, f->used, s->count);
    s->count++;
    return PLIM_OK;
}

/* After something came into a buffer: when it is full, the next stretch of the file begins. */
static enum plim_status turn(struct token_writer *w, enum part p, struct plim_error *err)
{
    struct part_file *f = &w->parts[p];
    bool full = f->used == f->size;
    if (!full && f->used - f->written < WRITE_BYTES) return PLIM_OK;
    enum plim_status status = flush(f, err);
    if (status != PLIM_OK || !full) return status;
    if (p == PART_TOKENS) status = add_sum(w, f, err);
    if (status == PLIM_OK) f->at += f->size, f->used = f->written = 0;
    return status;
}

static enum plim_status append(struct token_writer *w, enum part p, const void *bytes, size_t n,
                               struct plim_error *err)
{
    struct part_file *f = &w->parts[p];
    enum plim_status status = PLIM_OK;
    const unsigned char *from = bytes;
    while (n && status == PLIM_OK) {
        size_t room = f->size - f->used, k = n < room ? n : room;
        memcpy(f->buffer + f->used, from, k);
        f->used += k, from += k, n -= k;
        status = turn(w, p, err);
    }
    return status;
}

static enum plim_status open_part(struct token_writer *w, enum part p, uint64_t keep, struct plim_error *err)
{
    struct part_file *f = &w->parts[p];
    snprintf(f->path, sizeof f->path, "%s%s", w->path, suffixes[p]);
    f->size = buffer_bytes[p];
    f->buffer = malloc(f->size);
    if (!f->buffer) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", w->path);
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->fd < 0) return plim_fail(err, PLIM_IO, "%s: cannot write: %s", f->path, strerror(errno));
    if (p == PART_TOKENS && flock(f->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: another run is writing it; wait for that one, or give another output", f->path);
    off_t have = lseek(f->fd, 0, SEEK_END);
    if (have < 0 || (uint64_t)have < keep)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: is shorter than its journal says; start over with --no-resume", f->path);
    if (ftruncate(f->fd, (off_t)keep))
        return plim_fail(err, PLIM_IO, "%s: cannot cut: %s", f->path, strerror(errno));
    f->at = keep;
    return PLIM_OK;
}

/* Removes the part file of an earlier writer with another format. */
static void remove_part(const char *path, enum part p)
{
    char name[4096];
    snprintf(name, sizeof name, "%s%s", path, suffixes[p]);
    unlink(name);
}

static enum plim_status open_tokens(struct token_writer *w, bool anew, struct plim_error *err)
{
    struct part_file *f = &w->parts[PART_TOKENS];
    uint64_t bytes = w->mark.tokens * w->width;
    enum plim_status status = open_part(w, PART_TOKENS, anew ? 0 : TOKEN_FILE_HEADER + bytes, err);
    if (status != PLIM_OK) return status;
    w->sums.from = w->sums.count = bytes / TOKEN_FILE_CHUNK;
    f->at = TOKEN_FILE_HEADER + w->sums.from * TOKEN_FILE_CHUNK;
    f->used = f->written = (size_t)(bytes % TOKEN_FILE_CHUNK);
    static const char blank[TOKEN_FILE_HEADER];
    return anew ? file_pwrite_full(f->fd, blank, sizeof blank, 0, f->path, err)
                : file_pread_full(f->fd, f->buffer, f->used, f->at, f->path, err);
}

static enum plim_status open_mask(struct token_writer *w, struct plim_error *err)
{
    struct part_file *f = &w->parts[PART_MASK];
    uint64_t tokens = w->mark.tokens;
    enum plim_status status = open_part(w, PART_MASK, (tokens + 7) / 8, err);
    if (status != PLIM_OK || tokens % 8 == 0) return status;
    status = file_pread_full(f->fd, &w->bits, 1, --f->at, f->path, err);
    w->bits &= (unsigned char)((1u << tokens % 8) - 1);
    return status;
}

enum plim_status token_writer_open(const char *path, const struct token_writer_format *format,
                                   const struct token_writer_mark *mark, struct token_writer **out,
                                   struct plim_error *err)
{
    struct token_writer *w = calloc(1, sizeof *w);
    if (!w) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    for (int p = 0; p < PARTS; p++) w->parts[p].fd = -1;
    enum plim_status status = PLIM_OK;
    if (strlen(path) > 4000)
        status = plim_fail(err, PLIM_BAD_INPUT, "%.200s...: the path is too long", path);
    else if (!(w->path = strdup(path)))
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    if (status == PLIM_OK) status = file_refuse_special(path, err);
    w->format = *format;
    w->width = format->vocab_size <= 65536 ? 2 : 4;
    if (mark) w->mark = *mark;
    if (status == PLIM_OK) status = open_tokens(w, !mark, err);
    if (status == PLIM_OK) status = open_part(w, PART_INDEX, 8 * w->mark.samples, err);
    if (status == PLIM_OK && !format->mask) remove_part(path, PART_MASK);
    if (status == PLIM_OK && format->mask) status = open_mask(w, err);
    if (status != PLIM_OK) {
        token_writer_close(w);
        return status;
    }
    *out = w;
    return PLIM_OK;
}

void token_writer_close(struct token_writer *w)
{
    if (!w) return;
    for (int p = 0; p < PARTS; p++) {
        if (w->parts[p].fd >= 0) close(w->parts[p].fd);
        free(w->parts[p].buffer);
    }
    free(w->sums.sum);
    free(w->path);
    free(w);
}

bool token_writer_has_parts(const char *path)
{
    char name[4096];
    snprintf(name, sizeof name, "%s%s", path, suffixes[PART_TOKENS]);
    return file_exists(name);
}

static enum plim_status put_mask(struct token_writer *w, const int32_t *tokens, size_t n,
                                 struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    uint64_t at = w->mark.tokens;
    for (size_t i = 0; i < n && status == PLIM_OK; i++, at++) {
        w->bits |= (unsigned char)(token_is_target(tokens[i]) << at % 8);
        if (at % 8 != 7) continue;
        status = append(w, PART_MASK, &w->bits, 1, err);
        w->bits = 0;
    }
    return status;
}

/* Two loops, so that each has one width. */
static void store_tokens(unsigned char *restrict to, uint32_t width, const int32_t *restrict tokens, size_t n)
{
    if (width == 2) {
        for (size_t i = 0; i < n; i++) {
            uint16_t narrow = (uint16_t)token_id(tokens[i]);
            memcpy(to + 2 * i, &narrow, 2);
        }
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint32_t wide = (uint32_t)token_id(tokens[i]);
        memcpy(to + 4 * i, &wide, 4);
    }
}

enum plim_status token_writer_put(struct token_writer *w, const int32_t *tokens, size_t n,
                                  struct plim_error *err)
{
    struct part_file *f = &w->parts[PART_TOKENS];
    enum plim_status status = w->format.mask ? put_mask(w, tokens, n, err) : PLIM_OK;
    for (size_t i = 0; i < n && status == PLIM_OK;) {
        size_t room = (f->size - f->used) / w->width, k = n - i < room ? n - i : room;
        store_tokens(f->buffer + f->used, w->width, tokens + i, k);
        i += k, f->used += k * w->width;
        status = turn(w, PART_TOKENS, err);
    }
    w->mark.tokens += n;
    return status;
}

enum plim_status token_writer_end_sample(struct token_writer *w, struct plim_error *err)
{
    struct token_writer_mark *m = &w->mark;
    uint64_t start = m->sample_start, n = m->tokens - start;
    if (!n) return PLIM_OK;
    if (n > m->longest) m->longest = n;
    m->samples++, m->sample_start = m->tokens;
    return append(w, PART_INDEX, &start, sizeof start, err);
}

enum plim_status token_writer_sync(struct token_writer *w, struct token_writer_mark *mark,
                                   struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int p = 0; p < PARTS && status == PLIM_OK; p++) {
        struct part_file *f = &w->parts[p];
        if (f->fd < 0) continue;
        status = flush(f, err);
        if (status == PLIM_OK && p == PART_MASK && w->mark.tokens % 8)
            status = file_pwrite_full(f->fd, &w->bits, 1, f->at + f->used, f->path, err);
        if (status == PLIM_OK && fdatasync(f->fd))
            status = plim_fail(err, PLIM_IO, "%s: cannot write: %s", f->path, strerror(errno));
    }
    *mark = w->mark;
    return status;
}

/* --- finishing --- */

static uint64_t length(const struct part_file *f) { return f->at + f->used; }

static enum plim_status pad8(struct token_writer *w, struct plim_error *err)
{
    static const char zeros[8];
    return append(w, PART_TOKENS, zeros, (size_t)(-length(&w->parts[PART_TOKENS]) & 7), err);
}

/* Appends part p's file to the tokens. Needs the part's buffer. */
static enum plim_status append_part(struct token_writer *w, enum part p, struct plim_error *err)
{
    struct part_file *f = &w->parts[p];
    enum plim_status status = PLIM_OK;
    for (uint64_t at = 0, all = length(f); at < all && status == PLIM_OK;) {
        size_t n = all - at < f->size ? (size_t)(all - at) : f->size;
        status = file_pread_full(f->fd, f->buffer, n, at, f->path, err);
        if (status == PLIM_OK) status = append(w, PART_TOKENS, f->buffer, n, err);
        at += n;
    }
    return status;
}

/* One checksum per chunk of what is written so far; the table goes behind it. */
static enum plim_status append_sums(struct token_writer *w, struct token_file_header *h,
                                    struct plim_error *err)
{
    struct part_file *f = &w->parts[PART_TOKENS];
    struct sums *s = &w->sums;
    enum plim_status status = flush(f, err);
    if (status == PLIM_OK && f->used) status = add_sum(w, f, err);
    for (uint64_t c = 0; c < s->from && status == PLIM_OK; c++) {
        uint64_t at = TOKEN_FILE_HEADER + c * TOKEN_FILE_CHUNK;
        status = file_pread_full(f->fd, f->buffer, TOKEN_FILE_CHUNK, at, f->path, err);
        if (status == PLIM_OK) s->sum[c] = hash64(f->buffer, TOKEN_FILE_CHUNK, c);
    }
    if (status != PLIM_OK) return status;
    size_t bytes = (size_t)s->count * sizeof *s->sum;
    h->sums_hash = hash64(s->sum, bytes, 0);
    h->file_bytes = h->sums_at + bytes;
    return file_pwrite_full(f->fd, s->sum, bytes, h->sums_at, f->path, err);
}

static enum plim_status append_sections(struct token_writer *w, struct token_file_header *h,
                                        struct plim_error *err)
{
    struct part_file *f = &w->parts[PART_TOKENS];
    enum plim_status status = pad8(w, err);
    if (status == PLIM_OK && w->format.mask) {
        h->mask_at = length(f);
        status = append_part(w, PART_MASK, err);
        if (status == PLIM_OK && w->mark.tokens % 8) status = append(w, PART_TOKENS, &w->bits, 1, err);
        if (status == PLIM_OK) status = pad8(w, err);
    }
    h->index_at = length(f);
    if (status == PLIM_OK) status = append_part(w, PART_INDEX, err);
    if (status == PLIM_OK) status = append(w, PART_TOKENS, &w->mark.tokens, 8, err);
    h->sums_at = length(f);
    return status == PLIM_OK ? append_sums(w, h, err) : status;
}

static enum plim_status take_name(struct token_writer *w, struct plim_error *err)
{
    struct part_file *f = &w->parts[PART_TOKENS];
    if (fsync(f->fd) || rename(f->path, w->path))
        return plim_fail(err, PLIM_IO, "%s: cannot finish: %s", w->path, strerror(errno));
    enum plim_status status = file_sync_parent(w->path, err);
    unlink(w->parts[PART_INDEX].path);
    if (w->format.mask) unlink(w->parts[PART_MASK].path);
    return status;
}

enum plim_status token_writer_finish(struct token_writer *w, struct plim_error *err)
{
    struct token_writer_mark mark;
    struct token_file_header h = {.magic = TOKEN_FILE_MAGIC,
                                  .version = TOKEN_FILE_VERSION,
                                  .header_bytes = TOKEN_FILE_HEADER,
                                  .width = w->width,
                                  .flags = (w->format.mask ? TOKEN_FILE_MASK : 0u) |
                                           (w->format.lines ? TOKEN_FILE_LINES : 0u),
                                  .vocab_size = (uint64_t)w->format.vocab_size,
                                  .fingerprint = w->format.fingerprint,
                                  .eos = w->format.eos};
    enum plim_status status = token_writer_end_sample(w, err);
    if (status == PLIM_OK) status = token_writer_sync(w, &mark, err);
    if (status == PLIM_OK) {
        h.tokens = mark.tokens, h.samples = mark.samples, h.longest = mark.longest;
        status = append_sections(w, &h, err);
    }
    h.header_hash = token_file_header_hash(&h);
    if (status == PLIM_OK)
        status = file_pwrite_full(w->parts[PART_TOKENS].fd, &h, sizeof h, 0, w->parts[PART_TOKENS].path, err);
    if (status == PLIM_OK) status = take_name(w, err);
    token_writer_close(w);
    return status;
}
