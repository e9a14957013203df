/* token_file.c - reading; see token_file.h.
 *
 * Invariants
 *  1. Sections lie in the order header, tokens, mask, index, sums, and each is exactly as long as the header's
 *     counts make it; a header that says otherwise is refused before anything else is believed.
 *  2. No byte of a section is used before its chunk has been checked against its sum.
 *  3. The file's size is asked for before each access: a file cut off while it is in use is an error, not a signal.
 */
#define _GNU_SOURCE
#include "store/token_file.h"
#include "base/file.h"
#include "mem/os.h"
#include "base/hash.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(struct token_file_header) == TOKEN_FILE_HEADER, "the header is 256 bytes");

/* A fault may bring in pages around the one that was asked for. */
#define FAULT_AROUND 65536

struct token_file {
    char *path;
    int fd;
    struct token_file_header h;
    const unsigned char *map;
    uint64_t *sums;
    unsigned char *checked; /* a bit per chunk */
    uint64_t chunks;
    size_t resident; /* bytes touched since pages were given back, at most */
};

uint64_t token_file_header_hash(const struct token_file_header *h)
{
    return hash64(h, offsetof(struct token_file_header, header_hash), TOKEN_FILE_VERSION);
}

const struct token_file_header *token_file_header(const struct token_file *f) { return &f->h; }

static uint64_t chunks_of(uint64_t bytes) { return (bytes + TOKEN_FILE_CHUNK - 1) / TOKEN_FILE_CHUNK; }

size_t token_file_bytes_most(uint64_t file_bytes)
{
    return sizeof(struct token_file) + 256 + (size_t)chunks_of(file_bytes) * 9;
}

size_t token_file_working(uint64_t file_bytes)
{
    const uint64_t most = TOKEN_FILE_RESIDENT + 2 * TOKEN_FILE_CHUNK;
    return (size_t)(file_bytes < most ? os_page_round(file_bytes) : most);
}

static enum plim_status damaged(const struct token_file *f, const char *what, struct plim_error *err)
{
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: the token file is damaged: %s; make it again with plimsoll tokenize", f->path,
                     what);
}

static uint64_t round8(uint64_t n) { return (n + 7) & ~(uint64_t)7; }

/* Invariant 1. Counts are bounded by the file's size first, so that nothing here can overflow. */
static enum plim_status check_header(const struct token_file *f, uint64_t size, struct plim_error *err)
{
    const struct token_file_header *h = &f->h;
    if (memcmp(h->magic, TOKEN_FILE_MAGIC, 8))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is not a token file; make one with plimsoll tokenize",
                         f->path);
    if (h->version != TOKEN_FILE_VERSION)
        return plim_fail(err, PLIM_UNSUPPORTED, "%s: version %u of the format; this program reads %u",
                         f->path, h->version, TOKEN_FILE_VERSION);
    if (h->header_hash != token_file_header_hash(h)) return damaged(f, "the header's checksum is wrong", err);
    if (h->file_bytes != size)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: the token file is damaged: it has %llu bytes instead of %llu", f->path,
                         (unsigned long long)size, (unsigned long long)h->file_bytes);
    bool sane = h->header_bytes == TOKEN_FILE_HEADER && (h->width == 2 || h->width == 4) &&
                h->tokens <= size / h->width && h->samples < size / 8 && h->vocab_size >= 1 &&
                h->vocab_size <= (h->width == 2 ? 65536u : (uint64_t)INT32_MAX);
    uint64_t mask = TOKEN_FILE_HEADER + round8(h->tokens * h->width);
    uint64_t index = h->flags & TOKEN_FILE_MASK ? mask + round8((h->tokens + 7) / 8) : mask;
    if (!sane || h->mask_at != (h->flags & TOKEN_FILE_MASK ? mask : 0) || h->index_at != index ||
        h->sums_at != index + 8 * (h->samples + 1) ||
        size != h->sums_at + 8 * chunks_of(h->sums_at - TOKEN_FILE_HEADER))
        return damaged(f, "the header contradicts itself", err);
    return PLIM_OK;
}

static enum plim_status load_sums(struct token_file *f, struct plim_error *err)
{
    f->chunks = chunks_of(f->h.sums_at - TOKEN_FILE_HEADER);
    f->sums = malloc((size_t)f->chunks * 8 + 8);
    f->checked = calloc((size_t)f->chunks / 8 + 1, 1);
    if (!f->sums || !f->checked) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", f->path);
    memcpy(f->sums, f->map + f->h.sums_at, (size_t)f->chunks * 8);
    if (hash64(f->sums, (size_t)f->chunks * 8, 0) != f->h.sums_hash)
        return damaged(f, "the checksum table is wrong", err);
    return PLIM_OK;
}

static enum plim_status open_map(struct token_file *f, struct plim_error *err)
{
    struct stat st;
    if (fstat(f->fd, &st)) return plim_fail(err, PLIM_IO, "%s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode) || st.st_size < (off_t)TOKEN_FILE_HEADER ||
        pread(f->fd, &f->h, sizeof f->h, 0) != (ssize_t)sizeof f->h)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: is not a token file: too short; make one with plimsoll tokenize", f->path);
    enum plim_status status = check_header(f, (uint64_t)st.st_size, err);
    if (status != PLIM_OK) return status;
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, f->fd, 0);
    if (map == MAP_FAILED)
        return plim_fail(err, PLIM_NO_MEMORY, "%s: cannot map: %s", f->path, strerror(errno));
    f->map = map;
    return load_sums(f, err);
}

enum plim_status token_file_open(const char *path, struct token_file **out, struct plim_error *err)
{
    struct token_file *f = calloc(1, sizeof *f);
    if (!f || !(f->path = strdup(path))) {
        free(f);
        return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    }
    enum plim_status status = file_open(path, &f->fd, err);
    if (status == PLIM_OK) status = open_map(f, err);
    if (status != PLIM_OK) {
        token_file_close(f);
        return status;
    }
    *out = f;
    return PLIM_OK;
}

void token_file_close(struct token_file *f)
{
    if (!f) return;
    if (f->map) munmap((void *)f->map, (size_t)f->h.file_bytes);
    if (f->fd >= 0) close(f->fd);
    free(f->sums);
    free(f->checked);
    free(f->path);
    free(f);
}

static void give_back_pages(struct token_file *f)
{
    madvise((void *)f->map, (size_t)f->h.file_bytes, MADV_DONTNEED);
    f->resident = 0;
}

void token_file_rest(struct token_file *f)
{
    if (f->resident) give_back_pages(f);
}

static void touch(struct token_file *f, size_t bytes)
{
    if (f->resident + bytes + FAULT_AROUND > TOKEN_FILE_RESIDENT) give_back_pages(f);
    f->resident += bytes + FAULT_AROUND;
}

static enum plim_status check_chunk(struct token_file *f, uint64_t chunk, struct plim_error *err)
{
    uint64_t from = TOKEN_FILE_HEADER + chunk * TOKEN_FILE_CHUNK, left = f->h.sums_at - from;
    size_t n = (size_t)(left < TOKEN_FILE_CHUNK ? left : TOKEN_FILE_CHUNK);
    touch(f, n);
    if (hash64(f->map + from, n, chunk) != f->sums[chunk])
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "%s: the token file is damaged: bytes %llu to %llu do not match their checksum; make it "
            "again with plimsoll tokenize",
            f->path, (unsigned long long)from, (unsigned long long)(from + n - 1));
    f->checked[chunk / 8] |= (unsigned char)(1u << chunk % 8);
    return PLIM_OK;
}

/* Invariants 2 and 3 for [at, at + n). */
static enum plim_status prepare(struct token_file *f, uint64_t at, size_t n, struct plim_error *err)
{
    struct stat st;
    if (n == 0) return PLIM_OK;
    if (fstat(f->fd, &st) || (uint64_t)st.st_size != f->h.file_bytes)
        return damaged(f, "its size changed while it was in use", err);
    uint64_t last = (at + n - 1 - TOKEN_FILE_HEADER) / TOKEN_FILE_CHUNK;
    for (uint64_t c = (at - TOKEN_FILE_HEADER) / TOKEN_FILE_CHUNK; c <= last; c++) {
        if (f->checked[c / 8] >> c % 8 & 1) continue;
        enum plim_status status = check_chunk(f, c, err);
        if (status != PLIM_OK) return status;
    }
    touch(f, n);
    return PLIM_OK;
}

enum plim_status token_file_sample(struct token_file *f, uint64_t i, uint64_t *first, uint64_t *count,
                                   struct plim_error *err)
{
    uint64_t pair[2], at = f->h.index_at + 8 * i;
    if (i >= f->h.samples) return plim_fail(err, PLIM_BUG, "%s: sample %llu", f->path, (unsigned long long)i);
    enum plim_status status = prepare(f, at, sizeof pair, err);
    if (status != PLIM_OK) return status;
    memcpy(pair, f->map + at, sizeof pair);
    if (pair[0] > pair[1] || pair[1] > f->h.tokens)
        return damaged(f, "the sample index is out of order", err);
    *first = pair[0], *count = pair[1] - pair[0];
    return PLIM_OK;
}

static bool is_quiet(const struct token_file *f, uint64_t token)
{
    return !(f->map[f->h.mask_at + token / 8] >> token % 8 & 1);
}

static enum plim_status prepare_mask(struct token_file *f, uint64_t first, size_t n, struct plim_error *err)
{
    if (!(f->h.flags & TOKEN_FILE_MASK) || !n) return PLIM_OK;
    return prepare(f, f->h.mask_at + first / 8, (size_t)((first + n - 1) / 8 - first / 8 + 1), err);
}

enum plim_status token_file_read(struct token_file *f, uint64_t first, size_t n, int32_t *out,
                                 struct plim_error *err)
{
    uint32_t most = 0;
    if (first > f->h.tokens || n > f->h.tokens - first)
        return plim_fail(err, PLIM_BUG, "%s: tokens beyond the end", f->path);
    const unsigned char *p = f->map + TOKEN_FILE_HEADER + first * f->h.width;
    enum plim_status status = prepare(f, TOKEN_FILE_HEADER + first * f->h.width, n * f->h.width, err);
    if (status != PLIM_OK) return status;
    for (size_t i = 0; i < n; i++) {
        uint16_t narrow;
        uint32_t wide;
        if (f->h.width == 2)
            memcpy(&narrow, p + 2 * i, 2), wide = narrow;
        else
            memcpy(&wide, p + 4 * i, 4);
        if (wide > most) most = wide;
        out[i] = (int32_t)wide;
    }
    if (n && most >= f->h.vocab_size) return damaged(f, "a token is beyond its vocabulary", err);
    status = prepare_mask(f, first, n, err);
    if (f->h.flags & TOKEN_FILE_MASK && status == PLIM_OK)
        for (size_t i = 0; i < n; i++)
            if (is_quiet(f, first + i)) out[i] |= TOKEN_QUIET;
    return status;
}

enum plim_status token_file_targets(struct token_file *f, uint64_t first, size_t n, uint64_t *out,
                                    struct plim_error *err)
{
    *out = n;
    if (!(f->h.flags & TOKEN_FILE_MASK)) return PLIM_OK;
    enum plim_status status = prepare_mask(f, first, n, err);
    for (size_t i = 0; status == PLIM_OK && i < n; i++) *out -= is_quiet(f, first + i);
    return status;
}

void token_file_hint(const struct token_file *f, uint64_t first, uint64_t n)
{
    posix_fadvise(f->fd, (off_t)(TOKEN_FILE_HEADER + first * f->h.width), (off_t)(n * f->h.width),
                  POSIX_FADV_WILLNEED);
}

enum plim_status token_file_verify(struct token_file *f, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (uint64_t c = 0; c < f->chunks && status == PLIM_OK; c++) status = check_chunk(f, c, err);
    give_back_pages(f);
    return status;
}
