/* gguf.c - a GGUF file, believed only after it was checked. See gguf.h.
 *
 * A file is: "GGUF", version, number of tensors, number of pairs; the pairs (key, type, value); a description of each
 * tensor (name, dimensions, type, offset); padding; data. What holds once a file was opened:
 *  1. every count and length was held against the bytes that are left in the file before anything was allocated for it
 *  2. every tensor has a known block type, rows of whole blocks, and lies inside the file
 *  3. sorted by offset no two tensors overlap, and sorted by name no two are called the same
 */
#include "store/gguf.h"
#include "base/file.h"
#include "base/node_build.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct gguf {
    int fd;
    char *path;
    struct doc *doc;
    struct gguf_tensor *tensors;
    size_t count;
    struct bump names;
};

/* --- reading forward ------------------------------------------------------------------------------------------ */

struct reader {
    struct gguf *file;
    uint64_t at, size; /* of the file */
    unsigned char buffer[1 << 14];
    uint64_t begin, end; /* the part of the file in the buffer */
    struct node_build build;
    struct plim_error *err;
};

static enum plim_status bad(const struct reader *r, const char *what)
{
    return plim_fail(r->err, PLIM_BAD_INPUT, "%s: byte %" PRIu64 ": %s; the file is damaged or no GGUF file",
                     r->file->path, r->at, what);
}

/* The next n bytes. */
static enum plim_status take(struct reader *r, void *out, uint64_t n)
{
    if (n > r->size - r->at) return bad(r, "it ends too early");
    enum plim_status status = PLIM_OK;
    if (n > sizeof r->buffer) { /* long texts go where they belong at once */
        status = file_pread_full(r->file->fd, out, (size_t)n, r->at, r->file->path, r->err);
        r->at += n;
        return status;
    }
    if (r->at < r->begin || r->at + n > r->end) {
        uint64_t left = r->size - r->at;
        size_t more = left < sizeof r->buffer ? (size_t)left : sizeof r->buffer;
        r->begin = r->at, r->end = r->at + more;
        status = file_pread_full(r->file->fd, r->buffer, more, r->at, r->file->path, r->err);
    }
    if (status == PLIM_OK) memcpy(out, r->buffer + (r->at - r->begin), (size_t)n);
    r->at += n;
    return status;
}

static enum plim_status take_u32(struct reader *r, uint32_t *out) { return take(r, out, sizeof *out); }
static enum plim_status take_u64(struct reader *r, uint64_t *out) { return take(r, out, sizeof *out); }

/* --- metadata --------------------------------------------------------------------------------------------------- */

enum { KEY_MOST = 65535 };

enum value_type {
    V_U8,
    V_I8,
    V_U16,
    V_I16,
    V_U32,
    V_I32,
    V_F32,
    V_BOOL,
    V_STRING,
    V_ARRAY,
    V_U64,
    V_I64,
    V_F64,
    V_COUNT
};

/* Bytes of a value; of a text or an array the least. */
static const unsigned char value_bytes[V_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

static enum plim_status take_text(struct reader *r, const char **text, size_t *len)
{
    uint64_t n = 0;
    enum plim_status status = take_u64(r, &n);
    if (status != PLIM_OK) return status;
    if (n > r->size - r->at) return bad(r, "a text is longer than the file");
    char *copy = node_build_alloc(&r->build, (size_t)n + 1, &status, r->err);
    if (!copy) return status;
    status = take(r, copy, n);
    *text = copy, *len = (size_t)n;
    return status;
}

static enum plim_status take_number(struct reader *r, enum value_type type, struct node *out)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        float f32;
        uint64_t u64;
        int64_t i64;
        double f64;
    } v;
    enum plim_status status = take(r, &v, value_bytes[type]);
    if (status != PLIM_OK) return status;
    int64_t whole[V_COUNT] = {[V_U8] = v.u8,   [V_I8] = v.i8,   [V_U16] = v.u16,          [V_I16] = v.i16,
                              [V_U32] = v.u32, [V_I32] = v.i32, [V_U64] = (int64_t)v.u64, [V_I64] = v.i64};
    out->kind = NODE_INT, out->as.integer = whole[type];
    if (type == V_U64 && v.u64 > INT64_MAX) return bad(r, "a number is larger than 2^63");
    if (type == V_F32) out->kind = NODE_FLOAT, out->as.real = (double)v.f32;
    if (type == V_F64) out->kind = NODE_FLOAT, out->as.real = v.f64;
    if (type == V_BOOL) out->kind = NODE_BOOL, out->as.boolean = v.u8 != 0;
    return PLIM_OK;
}

static enum plim_status take_scalar(struct reader *r, uint32_t type, struct node *out)
{
    if (type != V_STRING) return take_number(r, (enum value_type)type, out);
    out->kind = NODE_STRING;
    return take_text(r, &out->as.string.text, &out->as.string.len);
}

/* A list of scalars; lists of lists are in no file that people have. */
static enum plim_status take_array(struct reader *r, struct node *out)
{
    uint32_t type = 0;
    uint64_t n = 0;
    size_t mark = r->build.count;
    enum plim_status status = take_u32(r, &type);
    if (status == PLIM_OK) status = take_u64(r, &n);
    if (status != PLIM_OK) return status;
    if (type >= V_COUNT || type == V_ARRAY)
        return bad(r, "a list of something that is neither number nor text");
    if (n > (r->size - r->at) / value_bytes[type]) return bad(r, "a list is longer than the file");
    for (uint64_t i = 0; i < n && status == PLIM_OK; i++) {
        struct node item = {0};
        status = take_scalar(r, type, &item);
        if (status == PLIM_OK) status = node_build_push(&r->build, &item, r->err);
    }
    return status == PLIM_OK ? node_build_close(&r->build, mark, NODE_LIST, out, r->err) : status;
}

static enum plim_status take_pair(struct reader *r)
{
    struct node value = {0};
    uint32_t type = 0;
    enum plim_status status = take_text(r, &value.key, &value.key_len);
    if (status != PLIM_OK) return status;
    if (!value.key_len || value.key_len > KEY_MOST || strlen(value.key) != value.key_len)
        return bad(r, "a key is empty, too long or has a NUL in it");
    status = take_u32(r, &type);
    if (status != PLIM_OK) return status;
    if (type >= V_COUNT) return bad(r, "a value of a type that GGUF has not got");
    status = type == V_ARRAY ? take_array(r, &value) : take_scalar(r, type, &value);
    return status == PLIM_OK ? node_build_push(&r->build, &value, r->err) : status;
}

static enum plim_status take_metadata(struct reader *r, uint64_t pairs)
{
    enum { GROWTH = 64, LEAST = 1 << 20 }; /* a tree takes so many times the bytes of its file at most */
    struct quota quota = {.most = GGUF_METADATA_MOST, .why = "the most for the metadata of a GGUF file"};
    if (r->size < (GGUF_METADATA_MOST - LEAST) / GROWTH) quota.most = r->size * GROWTH + LEAST;
    struct node root = {0};
    enum plim_status status = node_build_begin(&r->build, r->file->path, &quota, r->err);
    for (uint64_t i = 0; i < pairs && status == PLIM_OK; i++) status = take_pair(r);
    if (status == PLIM_OK) status = node_build_close(&r->build, 0, NODE_MAP, &root, r->err);
    if (status == PLIM_OK) r->build.doc->root = root;
    r->file->doc = node_build_end(&r->build, status);
    return status;
}

/* --- tensors ---------------------------------------------------------------------------------------------------- */

static enum plim_status bad_tensor(const struct reader *r, const char *name, const char *what)
{
    return plim_fail(r->err, PLIM_BAD_INPUT, "%s: tensor '%.200s': %s", r->file->path, name, what);
}

static enum plim_status take_name(struct reader *r, struct gguf_tensor *t)
{
    enum { NAME_MOST = 1024 };
    char name[NAME_MOST + 1];
    uint64_t n = 0;
    enum plim_status status = take_u64(r, &n);
    if (status == PLIM_OK && (n == 0 || n > NAME_MOST)) return bad(r, "a tensor's name is empty or too long");
    if (status == PLIM_OK) status = take(r, name, n);
    if (status != PLIM_OK) return status;
    if (memchr(name, 0, (size_t)n)) return bad(r, "a tensor's name has a NUL in it");
    t->name = bump_copy(&r->file->names, name, (size_t)n);
    return t->name ? PLIM_OK : plim_fail(r->err, PLIM_NO_MEMORY, "%s: out of memory", r->file->path);
}

static enum plim_status take_shape(struct reader *r, struct gguf_tensor *t)
{
    uint32_t ndim = 0;
    enum plim_status status = take_u32(r, &ndim);
    if (status == PLIM_OK && ndim > GGUF_MAX_DIM)
        return bad_tensor(r, t->name, "it has more than 4 dimensions");
    t->count = 1, t->ndim = (int)ndim;
    for (int i = t->ndim - 1; i >= 0 && status == PLIM_OK; i--) {
        uint64_t n = 0;
        status = take_u64(r, &n);
        if (status == PLIM_OK && (n > INT64_MAX || __builtin_mul_overflow(t->count, (int64_t)n, &t->count)))
            return bad_tensor(r, t->name, "its shape has more elements than any file can hold");
        t->dim[i] = (int64_t)n;
    }
    return status;
}

static enum plim_status take_type(struct reader *r, struct gguf_tensor *t)
{
    uint32_t number = 0;
    int64_t bytes;
    enum plim_status status = take_u32(r, &number);
    if (status != PLIM_OK) return status;
    t->type = number < BLOCK_OWN ? block_type_of(number) : NULL;
    if (!t->type)
        return plim_fail(r->err, PLIM_BAD_INPUT, "%s: tensor '%.200s': unknown type number %u", r->file->path,
                         t->name, (unsigned)number);
    int64_t row = t->ndim ? t->dim[t->ndim - 1] : 1;
    if (row % t->type->elements) return bad_tensor(r, t->name, "its rows are no whole blocks");
    if (__builtin_mul_overflow(t->count / t->type->elements, (int64_t)t->type->bytes, &bytes))
        return bad_tensor(r, t->name, "it has more bytes than any file can hold");
    t->bytes = (uint64_t)bytes;
    return take_u64(r, &t->offset);
}

static int by_offset(const void *a, const void *b)
{
    const struct gguf_tensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct gguf_tensor *)a)->name, ((const struct gguf_tensor *)b)->name);
}

/* Invariants 2 and 3; offsets become those of the file. */
static enum plim_status check_data(struct reader *r, uint64_t data)
{
    struct gguf_tensor *t = r->file->tensors;
    size_t n = r->file->count;
    if (n) qsort(t, n, sizeof *t, by_offset);
    for (size_t i = 0; i < n; i++) {
        if (t[i].offset > r->size - data || t[i].bytes > r->size - data - t[i].offset)
            return bad_tensor(r, t[i].name,
                              "its data end behind the file; the file is truncated, fetch it again");
        t[i].offset += data;
        if (i && t[i].offset < t[i - 1].offset + t[i - 1].bytes)
            return bad_tensor(r, t[i].name, "its data overlap those of another; the file is damaged");
    }
    if (n) qsort(t, n, sizeof *t, by_name);
    for (size_t i = 1; i < n; i++)
        if (!strcmp(t[i].name, t[i - 1].name)) return bad_tensor(r, t[i].name, "is there twice");
    return PLIM_OK;
}

static enum plim_status take_tensors(struct reader *r, uint64_t count)
{
    enum { LEAST = 32 }; /* bytes of a description */
    int64_t align = node_int(node_get(&r->file->doc->root, "general.alignment"), 32);
    enum plim_status status = PLIM_OK;
    if (count > GGUF_MAX_TENSORS || count > (r->size - r->at) / LEAST)
        return bad(r, "it has more tensors than can be in it");
    if (align <= 0 || align > 1 << 20 || align & (align - 1))
        return bad(r, "general.alignment is no power of two");
    r->file->tensors = calloc(count ? (size_t)count : 1, sizeof *r->file->tensors);
    if (!r->file->tensors) return plim_fail(r->err, PLIM_NO_MEMORY, "%s: out of memory", r->file->path);
    for (uint64_t i = 0; i < count && status == PLIM_OK; i++) {
        struct gguf_tensor *t = &r->file->tensors[i];
        status = take_name(r, t);
        if (status == PLIM_OK) status = take_shape(r, t);
        if (status == PLIM_OK) status = take_type(r, t);
    }
    r->file->count = (size_t)count;
    uint64_t data = (r->at + (uint64_t)align - 1) & ~((uint64_t)align - 1);
    if (status != PLIM_OK) return status;
    if (count && data > r->size) return bad(r, "it ends before its data");
    return check_data(r, data);
}

/* --- a file ------------------------------------------------------------------------------------------------------ */

static enum plim_status read_file(struct reader *r)
{
    char magic[4];
    uint32_t version = 0;
    uint64_t tensors = 0, pairs = 0;
    enum plim_status status = take(r, magic, sizeof magic);
    if (status == PLIM_OK && memcmp(magic, "GGUF", sizeof magic))
        return bad(r, "it does not begin with GGUF");
    if (status == PLIM_OK) status = take_u32(r, &version);
    if (status == PLIM_OK && version != 2 && version != 3)
        return plim_fail(r->err, PLIM_UNSUPPORTED, "%s: GGUF version %u%s; versions 2 and 3 are read",
                         r->file->path, (unsigned)version, version >> 16 ? " (a big-endian file?)" : "");
    if (status == PLIM_OK) status = take_u64(r, &tensors);
    if (status == PLIM_OK) status = take_u64(r, &pairs);
    if (status == PLIM_OK) status = take_metadata(r, pairs);
    return status == PLIM_OK ? take_tensors(r, tensors) : status;
}

static enum plim_status measure(const struct gguf *file, uint64_t *size, struct plim_error *err)
{
    struct stat st;
    if (fstat(file->fd, &st)) return plim_fail(err, PLIM_IO, "%s: %s", file->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return plim_fail(err, PLIM_BAD_INPUT, "%s: is not a regular file", file->path);
    *size = (uint64_t)st.st_size;
    return PLIM_OK;
}

enum plim_status gguf_open(const char *path, struct gguf **out, struct plim_error *err)
{
    struct gguf *file = calloc(1, sizeof *file);
    struct reader *r = calloc(1, sizeof *r);
    enum plim_status status = PLIM_OK;
    *out = NULL;
    if (file) file->fd = -1, file->path = strdup(path);
    if (!file || !r || !file->path) status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    if (status == PLIM_OK) status = file_open(path, &file->fd, err);
    if (status == PLIM_OK) *r = (struct reader){.file = file, .err = err};
    if (status == PLIM_OK) status = measure(file, &r->size, err);
    if (status == PLIM_OK) status = read_file(r);
    free(r);
    if (status == PLIM_OK)
        *out = file;
    else
        gguf_close(file);
    return status;
}

void gguf_close(struct gguf *file)
{
    if (!file) return;
    if (file->fd >= 0) close(file->fd);
    doc_free(file->doc);
    bump_free(&file->names);
    free(file->tensors);
    free(file->path);
    free(file);
}

const char *gguf_path(const struct gguf *file) { return file->path; }

bool gguf_is(const char *path)
{
    char magic[4] = {0};
    struct stat st;
    int fd = -1;
    if (stat(path, &st) || !S_ISREG(st.st_mode) || file_open(path, &fd, NULL) != PLIM_OK) return false;
    bool is = pread(fd, magic, sizeof magic, 0) == sizeof magic && !memcmp(magic, "GGUF", sizeof magic);
    close(fd);
    return is;
}

const struct node *gguf_metadata(const struct gguf *file) { return file->doc ? &file->doc->root : NULL; }

void gguf_drop_metadata(struct gguf *file)
{
    doc_free(file->doc);
    file->doc = NULL;
}

const struct gguf_tensor *gguf_at(const struct gguf *file, size_t i)
{
    return i < file->count ? &file->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_find(const struct gguf *file, const char *name)
{
    struct gguf_tensor key = {.name = name};
    return file->count ? bsearch(&key, file->tensors, file->count, sizeof key, by_name) : NULL;
}

static enum plim_status check_readable(const struct gguf *file, const struct gguf_tensor *t,
                                       struct plim_error *err)
{
    if (t->type->read) return PLIM_OK;
    return plim_fail(
        err, PLIM_UNSUPPORTED,
        "%s: tensor '%.200s': %s is not read; F32, F16, BF16, Q8_0, Q4_0, Q4_K, Q5_K and Q6_K are",
        file->path, t->name, t->type->name);
}

enum plim_status gguf_read_blocks(const struct gguf *file, const struct gguf_tensor *t, int64_t first,
                                  int64_t n, void *out, struct plim_error *err)
{
    const struct block_type *q = t->type;
    uint64_t from = t->offset + (uint64_t)(first / q->elements) * (uint64_t)q->bytes;
    return file_pread_full(file->fd, out, (size_t)(n / q->elements) * (size_t)q->bytes, from, file->path,
                           err);
}

enum plim_status gguf_read_at(const struct gguf *file, const struct gguf_tensor *t, int64_t first, int64_t n,
                              float *out, struct plim_error *err)
{
    enum { PIECE = 4096 }; /* elements; whole blocks of every type */
    unsigned char blocks[PIECE * sizeof(float)];
    const struct block_type *q = t->type;
    enum plim_status status = check_readable(file, t, err);
    for (int64_t at = 0; at < n && status == PLIM_OK; at += PIECE) {
        int64_t whole = (n - at < PIECE ? n - at : PIECE) / q->elements;
        uint64_t from = t->offset + (uint64_t)((first + at) / q->elements) * (uint64_t)q->bytes;
        status = file_pread_full(file->fd, blocks, (size_t)whole * (size_t)q->bytes, from, file->path, err);
        if (status == PLIM_OK) q->read(blocks, out + at, whole);
    }
    return status;
}

enum plim_status gguf_read(const struct gguf *file, const struct gguf_tensor *t, enum dtype type,
                           gguf_sink *sink, void *arg, struct plim_error *err)
{
    enum { PIECE = 1 << 16 }; /* elements; whole blocks of every type */
    float *values = malloc(PIECE * sizeof *values);
    void *out = malloc(PIECE * dtype_size(type));
    enum plim_status status = check_readable(file, t, err);
    if (status == PLIM_OK && (!values || !out))
        status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", file->path);
    for (int64_t at = 0; at < t->count && status == PLIM_OK; at += PIECE) {
        int64_t n = t->count - at < PIECE ? t->count - at : PIECE;
        status = gguf_read_at(file, t, at, n, values, err);
        if (status != PLIM_OK) break;
        dtype_convert(out, type, values, DT_F32, n);
        status = sink(arg, at, out, n, err);
    }
    free(values);
    free(out);
    return status;
}
