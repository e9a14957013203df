/* token_writer.c - see token_writer.h.
 *
 * Three growing files, each behind a buffer, and their counts. Finishing copies index and mask behind the tokens,
 * reads the whole once for its checksums, writes the header last and renames.
 */
#define _GNU_SOURCE
#include "data/token_writer.h"
#include "base/file.h"
#include "data/hash64.h"
#include "data/record.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#define BUFFER ((size_t)1 << 18)

enum part { PART_TOKENS, PART_INDEX, PART_MASK, PARTS };
static const char *const suffixes[PARTS] = {".part", ".part.index", ".part.mask"};

struct part_file {
    char path[4096];
    int fd;
    unsigned char *buffer;
    size_t used;
    uint64_t at; /* file offset of the buffer */
};

struct token_writer {
    char *path;
    struct token_writer_format format;
    struct token_writer_mark mark;
    uint32_t width;
    struct part_file parts[PARTS];
    unsigned char bits; /* of the mask's last byte, while it is incomplete */
};

static enum plim_status flush(struct part_file *f, struct plim_error *err)
{
    enum plim_status status = file_pwrite_full(f->fd, f->buffer, f->used, f->at, f->path, err);
    if (status == PLIM_OK) f->at += f->used, f->used = 0;
    return status;
}

static enum plim_status append(struct part_file *f, const void *bytes, size_t n, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    const unsigned char *from = bytes;
    while (n && status == PLIM_OK) {
        size_t room = BUFFER - f->used, k = n < room ? n : room;
        memcpy(f->buffer + f->used, from, k);
        f->used += k, from += k, n -= k;
        if (f->used == BUFFER) status = flush(f, err);
    }
    return status;
}

static enum plim_status open_part(struct token_writer *w, enum part p, uint64_t keep, struct plim_error *err)
{
    struct part_file *f = &w->parts[p];
    snprintf(f->path, sizeof f->path, "%s%s", w->path, suffixes[p]);
    f->buffer = malloc(BUFFER);
    if (!f->buffer) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", w->path);
    f->fd = open(f->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (f->fd < 0) return plim_fail(err, PLIM_IO, "%s: cannot write: %s", f->path, strerror(errno));
    if (p == PART_TOKENS && flock(f->fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: another run is writing it; wait for that one, or give another output", f->path);
    off_t have = lseek(f->fd, 0, SEEK_END);
    if (have < 0 || (uint64_t)have < keep)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: is shorter than its journal says; start anew with --no-resume", f->path);
    if (ftruncate(f->fd, (off_t)keep))
        return plim_fail(err, PLIM_IO, "%s: cannot cut: %s", f->path, strerror(errno));
    f->at = keep;
    return PLIM_OK;
}

/* Of an earlier writer with another format. */
static void remove_part(const char *path, enum part p)
{
    char name[4096];
    snprintf(name, sizeof name, "%s%s", path, suffixes[p]);
    unlink(name);
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
    w->format = *format;
    w->width = format->vocab_size <= 65536 ? 2 : 4;
    if (mark) w->mark = *mark;
    const struct token_writer_mark *m = &w->mark;
    uint64_t keep = mark ? TOKEN_FILE_HEADER + m->tokens * w->width : 0;
    if (status == PLIM_OK) status = open_part(w, PART_TOKENS, keep, err);
    if (status == PLIM_OK && !mark) {
        char blank[TOKEN_FILE_HEADER] = {0};
        status = append(&w->parts[PART_TOKENS], blank, sizeof blank, err);
    }
    if (status == PLIM_OK) status = open_part(w, PART_INDEX, 8 * m->samples, err);
    if (status == PLIM_OK && !format->mask) remove_part(path, PART_MASK);
    if (status == PLIM_OK && format->mask) status = open_part(w, PART_MASK, (m->tokens + 7) / 8, err);
    if (status == PLIM_OK && format->mask && m->tokens % 8) {
        struct part_file *f = &w->parts[PART_MASK];
        status = file_pread_full(f->fd, &w->bits, 1, --f->at, f->path, err);
        w->bits &= (unsigned char)((1u << m->tokens % 8) - 1);
    }
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
        status = append(&w->parts[PART_MASK], &w->bits, 1, err);
        w->bits = 0;
    }
    return status;
}

enum plim_status token_writer_put(struct token_writer *w, const int32_t *tokens, size_t n,
                                  struct plim_error *err)
{
    struct part_file *f = &w->parts[PART_TOKENS];
    enum plim_status status = w->format.mask ? put_mask(w, tokens, n, err) : PLIM_OK;
    for (size_t i = 0; i < n && status == PLIM_OK;) {
        size_t room = (BUFFER - f->used) / w->width, k = n - i < room ? n - i : room;
        unsigned char *to = f->buffer + f->used;
        for (size_t j = 0; j < k; j++) {
            uint32_t wide = (uint32_t)token_id(tokens[i + j]);
            uint16_t narrow = (uint16_t)wide;
            if (w->width == 2)
                memcpy(to + 2 * j, &narrow, 2);
            else
                memcpy(to + 4 * j, &wide, 4);
        }
        i += k, f->used += k * w->width;
        if (f->used == BUFFER) status = flush(f, err);
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
    return append(&w->parts[PART_INDEX], &start, sizeof start, err);
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
            status = file_pwrite_full(f->fd, &w->bits, 1, f->at, f->path, err);
        if (status == PLIM_OK && fdatasync(f->fd))
            status = plim_fail(err, PLIM_IO, "%s: cannot write: %s", f->path, strerror(errno));
    }
    *mark = w->mark;
    return status;
}

/* --- finishing --- */

static enum plim_status pad8(struct part_file *f, struct plim_error *err)
{
    static const char zeros[8];
    uint64_t at = f->at + f->used;
    return append(f, zeros, (size_t)(-at & 7), err);
}

static enum plim_status append_part(struct part_file *to, struct part_file *from, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (uint64_t at = 0; at < from->at && status == PLIM_OK;) {
        size_t n = from->at - at < BUFFER ? (size_t)(from->at - at) : BUFFER;
        status = file_pread_full(from->fd, from->buffer, n, at, from->path, err);
        if (status == PLIM_OK) status = append(to, from->buffer, n, err);
        at += n;
    }
    return status;
}

/* One checksum per chunk of what is written so far; the table goes behind it. */
static enum plim_status append_sums(struct part_file *f, struct token_file_header *h, struct plim_error *err)
{
    uint64_t chunks = (h->sums_at - TOKEN_FILE_HEADER + TOKEN_FILE_CHUNK - 1) / TOKEN_FILE_CHUNK;
    uint64_t *sums = malloc((size_t)chunks * 8 + 8);
    unsigned char *chunk = malloc(TOKEN_FILE_CHUNK);
    enum plim_status status = flush(f, err);
    if (!sums || !chunk) status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", f->path);
    for (uint64_t c = 0; c < chunks && status == PLIM_OK; c++) {
        uint64_t from = TOKEN_FILE_HEADER + c * TOKEN_FILE_CHUNK, left = h->sums_at - from;
        size_t n = (size_t)(left < TOKEN_FILE_CHUNK ? left : TOKEN_FILE_CHUNK);
        status = file_pread_full(f->fd, chunk, n, from, f->path, err);
        sums[c] = hash64(chunk, n, c);
    }
    if (status == PLIM_OK) h->sums_hash = hash64(sums, (size_t)chunks * 8, 0);
    if (status == PLIM_OK) status = append(f, sums, (size_t)chunks * 8, err);
    if (status == PLIM_OK) status = flush(f, err);
    h->file_bytes = f->at;
    free(chunk);
    free(sums);
    return status;
}

static enum plim_status append_sections(struct token_writer *w, struct token_file_header *h,
                                        struct plim_error *err)
{
    struct part_file *f = &w->parts[PART_TOKENS];
    enum plim_status status = pad8(f, err);
    if (status == PLIM_OK && w->format.mask) {
        struct part_file *mask = &w->parts[PART_MASK];
        h->mask_at = f->at + f->used;
        status = append_part(f, mask, err);
        if (status == PLIM_OK && w->mark.tokens % 8) status = append(f, &w->bits, 1, err);
        if (status == PLIM_OK) status = pad8(f, err);
    }
    h->index_at = f->at + f->used;
    if (status == PLIM_OK) status = append_part(f, &w->parts[PART_INDEX], err);
    if (status == PLIM_OK) status = append(f, &w->mark.tokens, 8, err);
    h->sums_at = f->at + f->used;
    return status == PLIM_OK ? append_sums(f, h, err) : status;
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
