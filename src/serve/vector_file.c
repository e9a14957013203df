/* vector_file.c - see vector_file.h. The header of a NumPy file has a fixed size and is written last, with the count. */
#include "serve/vector_file.h"
#include "base/file.h"
#include "base/strbuf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NPY_HEADER = 128 };

struct vector_file {
    enum vector_format format;
    int64_t width, count;
    bool standard;
    struct file_atomic file;
    uint64_t offset;
    struct strbuf text;
};

enum plim_status vector_file_open(const char *path, enum vector_format format, int64_t width,
                                  struct vector_file **out, struct plim_error *err)
{
    struct vector_file *f = calloc(1, sizeof *f);
    if (!f) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for vectors");
    *f = (struct vector_file){.format = format, .width = width, .standard = !path, .text = STRBUF_INIT};
    f->offset = format == VECTORS_NPY ? NPY_HEADER : 0;
    enum plim_status status = path ? file_atomic_begin(&f->file, path, err) : PLIM_OK;
    if (status == PLIM_OK)
        *out = f;
    else
        free(f);
    return status;
}

static enum plim_status write_bytes(struct vector_file *f, const void *data, size_t n, struct plim_error *err)
{
    if (f->standard) {
        if (fwrite(data, 1, n, stdout) != n || fflush(stdout))
            return plim_fail(err, PLIM_IO, "standard output: write failed");
        return PLIM_OK;
    }
    enum plim_status status = file_pwrite_full(f->file.fd, data, n, f->offset, f->file.path, err);
    f->offset += n;
    return status;
}

static void put_line(struct strbuf *out, const float *vector, int64_t width)
{
    strbuf_add(out, "{\"embedding\": [");
    for (int64_t i = 0; i < width; i++) strbuf_addf(out, i ? ", %.9g" : "%.9g", (double)vector[i]);
    strbuf_add(out, "]}\n");
}

enum plim_status vector_file_put(struct vector_file *f, const float *vectors, int64_t count,
                                 struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    f->count += count;
    if (f->format == VECTORS_NPY)
        return write_bytes(f, vectors, (size_t)(count * f->width) * sizeof *vectors, err);
    for (int64_t i = 0; i < count && status == PLIM_OK; i++) {
        strbuf_clear(&f->text);
        put_line(&f->text, vectors + i * f->width, f->width);
        status = strbuf_status(&f->text, err);
        if (status == PLIM_OK) status = write_bytes(f, f->text.data, f->text.len, err);
    }
    return status;
}

enum plim_status vector_file_text(struct vector_file *f, const char *text, size_t len, struct plim_error *err)
{
    return len ? write_bytes(f, text, len, err) : PLIM_OK;
}

static enum plim_status put_header(struct vector_file *f, struct plim_error *err)
{
    char header[NPY_HEADER];
    enum { LENGTH = NPY_HEADER - 10 };
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00", 8);
    header[8] = (char)LENGTH, header[9] = 0;
    int n = snprintf(header + 10, LENGTH, "{'descr': '<f4', 'fortran_order': False, 'shape': (%lld, %lld), }",
                     (long long)f->count, (long long)f->width);
    header[10 + n] = ' ', header[NPY_HEADER - 1] = '\n';
    return file_pwrite_full(f->file.fd, header, sizeof header, 0, f->file.path, err);
}

enum plim_status vector_file_commit(struct vector_file *f, struct plim_error *err)
{
    enum plim_status status = f->format == VECTORS_NPY ? put_header(f, err) : PLIM_OK;
    if (status == PLIM_OK && !f->standard) status = file_atomic_commit(&f->file, err);
    vector_file_abandon(f);
    return status;
}

void vector_file_abandon(struct vector_file *f)
{
    if (!f) return;
    if (!f->standard) file_atomic_abandon(&f->file);
    strbuf_release(&f->text);
    free(f);
}
