/* byte_stream.c - see byte_stream.h. One function per compression that turns input bytes into output bytes. */
#include "data/byte_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#define IN_BYTES 65536
/* Frames with a larger window (zstd --long, --ultra -22) are refused: the window is memory that is planned. */
#define ZSTD_WINDOW_LOG 23

struct byte_stream {
    const char *path;
    int fd;
    enum compression kind;
    unsigned char *in; /* [IN_BYTES], compressed kinds only */
    size_t in_at, in_len;
    bool in_end;   /* the file is read to its end */
    bool finished; /* a member or frame ended and nothing of the next has been read */
    z_stream z;
    bool z_open;
    ZSTD_DStream *zstd;
    struct sheet *sheet; /* NULL: the bytes are given as they are */
};

size_t byte_stream_bytes_most(const struct input_file *file)
{
    static const size_t most[] = {[COMPRESSION_NONE] = sizeof(struct byte_stream),
                                  [COMPRESSION_GZIP] = sizeof(struct byte_stream) + IN_BYTES + (48 << 10),
                                  [COMPRESSION_ZSTD] = sizeof(struct byte_stream) + IN_BYTES +
                                                       ((size_t)1 << ZSTD_WINDOW_LOG) + (512 << 10)};
    return most[file->compression] + (form_is_sheet(file->form) ? sheet_bytes_most(file) : 0);
}

size_t byte_stream_sheet_bytes(const struct byte_stream *s)
{
    return s->sheet ? sheet_bytes_of(s->sheet) : 0;
}

static enum plim_status damaged(const struct byte_stream *s, const char *what, struct plim_error *err)
{
    return plim_fail(err, PLIM_BAD_INPUT, "%s: the compressed data are damaged: %s; get the file again",
                     s->path, what);
}

static enum plim_status open_inflater(struct byte_stream *s, struct plim_error *err)
{
    s->in = malloc(IN_BYTES);
    if (s->kind == COMPRESSION_GZIP) s->z_open = s->in && inflateInit2(&s->z, 15 + 16) == Z_OK;
    if (s->kind == COMPRESSION_ZSTD) {
        s->zstd = ZSTD_createDStream();
        if (s->zstd && ZSTD_isError(ZSTD_DCtx_setParameter(s->zstd, ZSTD_d_windowLogMax, ZSTD_WINDOW_LOG)))
            return plim_fail(err, PLIM_BUG, "zstd does not know its window parameter");
    }
    if (!s->in || (!s->z_open && !s->zstd))
        return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for decompression", s->path);
    s->finished = true;
    return PLIM_OK;
}

static enum plim_status read_raw(void *arg, void *buf, size_t n, size_t *got, struct plim_error *err);

enum plim_status byte_stream_open(const struct input_file *file, const struct sheet_want *want,
                                  struct byte_stream **out, struct plim_error *err)
{
    struct byte_stream *s = calloc(1, sizeof *s);
    if (!s) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", file->path);
    s->path = file->path, s->kind = file->compression;
    s->fd = open(s->path, O_RDONLY | O_CLOEXEC);
    enum plim_status status = PLIM_OK;
    if (s->fd < 0)
        status = plim_fail(err, PLIM_IO, "%s: cannot open the data file: %s", s->path, strerror(errno));
    else
        posix_fadvise(s->fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    if (status == PLIM_OK && s->kind != COMPRESSION_NONE) status = open_inflater(s, err);
    if (status == PLIM_OK && form_is_sheet(file->form))
        status = sheet_open(file, (struct sheet_source){read_raw, s}, want, &s->sheet, err);
    if (status != PLIM_OK) {
        byte_stream_close(s);
        return status;
    }
    *out = s;
    return PLIM_OK;
}

void byte_stream_close(struct byte_stream *s)
{
    if (!s) return;
    sheet_close(s->sheet);
    if (s->z_open) inflateEnd(&s->z);
    ZSTD_freeDStream(s->zstd);
    if (s->fd >= 0) close(s->fd);
    free(s->in);
    free(s);
}

static enum plim_status read_some(struct byte_stream *s, void *buf, size_t n, size_t *got,
                                  struct plim_error *err)
{
    ssize_t r;
    do r = read(s->fd, buf, n);
    while (r < 0 && errno == EINTR);
    if (r < 0) return plim_fail(err, PLIM_IO, "%s: cannot read: %s", s->path, strerror(errno));
    *got = (size_t)r;
    return PLIM_OK;
}

static enum plim_status refill(struct byte_stream *s, struct plim_error *err)
{
    if (s->in_at < s->in_len || s->in_end) return PLIM_OK;
    enum plim_status status = read_some(s, s->in, IN_BYTES, &s->in_len, err);
    s->in_at = 0;
    if (status != PLIM_OK) s->in_len = 0;
    s->in_end = s->in_len == 0;
    return status;
}

static enum plim_status inflate_gzip(struct byte_stream *s, unsigned char *out, size_t n, size_t *got,
                                     struct plim_error *err)
{
    if (s->finished && inflateReset(&s->z) != Z_OK) return damaged(s, "reset", err);
    s->finished = false;
    s->z.next_in = s->in + s->in_at, s->z.avail_in = (uInt)(s->in_len - s->in_at);
    s->z.next_out = out, s->z.avail_out = (uInt)n;
    int rc = inflate(&s->z, Z_NO_FLUSH);
    *got = n - s->z.avail_out;
    s->in_at = s->in_len - s->z.avail_in;
    s->finished = rc == Z_STREAM_END;
    if (rc == Z_MEM_ERROR) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", s->path);
    if (rc != Z_OK && rc != Z_STREAM_END && rc != Z_BUF_ERROR)
        return damaged(s, s->z.msg ? s->z.msg : "not gzip", err);
    return PLIM_OK;
}

static enum plim_status inflate_zstd(struct byte_stream *s, unsigned char *out, size_t n, size_t *got,
                                     struct plim_error *err)
{
    ZSTD_inBuffer in = {s->in, s->in_len, s->in_at};
    ZSTD_outBuffer to = {out, n, 0};
    size_t rc = ZSTD_decompressStream(s->zstd, &to, &in);
    *got = to.pos;
    s->in_at = in.pos;
    s->finished = rc == 0;
    if (ZSTD_isError(rc) && ZSTD_getErrorCode(rc) == ZSTD_error_frameParameter_windowTooLarge)
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: was compressed with a window above %d MiB; compress it again without --long or --ultra",
            s->path, 1 << (ZSTD_WINDOW_LOG - 20));
    return ZSTD_isError(rc) ? damaged(s, ZSTD_getErrorName(rc), err) : PLIM_OK;
}

static enum plim_status read_compressed(struct byte_stream *s, unsigned char *buf, size_t n, size_t *got,
                                        struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    while (*got < n && status == PLIM_OK) {
        size_t more = 0;
        size_t want = n - *got < (1u << 30) ? n - *got : 1u << 30;
        status = refill(s, err);
        if (status != PLIM_OK) break;
        if (s->in_end && s->in_at == s->in_len && s->finished) break;
        bool starved = s->in_at == s->in_len;
        status = s->kind == COMPRESSION_GZIP ? inflate_gzip(s, buf + *got, want, &more, err)
                                             : inflate_zstd(s, buf + *got, want, &more, err);
        *got += more;
        if (status == PLIM_OK && starved && s->in_end && !more && !s->finished)
            status = damaged(s, "the file ends too early", err);
    }
    return status;
}

/* The file's bytes, decompressed. */
static enum plim_status read_raw(void *arg, void *buf, size_t n, size_t *got, struct plim_error *err)
{
    struct byte_stream *s = arg;
    *got = 0;
    if (s->kind != COMPRESSION_NONE) return read_compressed(s, buf, n, got, err);
    for (size_t more = 1; *got < n && more; *got += more) {
        enum plim_status status = read_some(s, (char *)buf + *got, n - *got, &more, err);
        if (status != PLIM_OK) return status;
    }
    return PLIM_OK;
}

enum plim_status byte_stream_read(struct byte_stream *s, void *buf, size_t n, size_t *got,
                                  struct plim_error *err)
{
    return s->sheet ? sheet_read(s->sheet, buf, n, got, err) : read_raw(s, buf, n, got, err);
}

enum plim_status byte_stream_skip(struct byte_stream *s, uint64_t offset, bool (*stopped)(void *arg),
                                  void *arg, struct plim_error *err)
{
    struct stat st;
    if (s->kind == COMPRESSION_NONE && !s->sheet) {
        if (fstat(s->fd, &st) || (uint64_t)st.st_size < offset || lseek(s->fd, (off_t)offset, SEEK_SET) < 0)
            return plim_fail(err, PLIM_BAD_INPUT, "%s: has become shorter: byte %llu is gone", s->path,
                             (unsigned long long)offset);
        return PLIM_OK;
    }
    char waste[16384];
    while (offset) {
        size_t n = offset < sizeof waste ? (size_t)offset : sizeof waste, got;
        if (stopped(arg)) return plim_fail(err, PLIM_INTERRUPTED, "reading was stopped");
        enum plim_status status = byte_stream_read(s, waste, n, &got, err);
        if (status != PLIM_OK) return status;
        if (!got)
            return plim_fail(err, PLIM_BAD_INPUT, "%s: has become shorter: %llu bytes are missing", s->path,
                             (unsigned long long)offset);
        offset -= got;
    }
    return PLIM_OK;
}
