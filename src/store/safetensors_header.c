/* safetensors_header.c - one file's header, believed only after it was checked. See safetensors_header.h.
 *
 * A file is: u64 little-endian header length N, N bytes of JSON, data. What holds once a file was accepted:
 *  1. N is at most SAFETENSORS_MAX_HEADER and the file holds at least 8 + N bytes
 *  2. every tensor has a known type, at most SAFETENSORS_MAX_DIM dimensions, and bytes = elements * size
 *  3. sorted by offset the tensors tile the data exactly: no overlap, no gap, nothing left over
 */
#include "store/safetensors_header.h"
#include "base/file.h"
#include "base/json.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Bits per element of every type the format names; ours are a subset. */
static const struct {
    const char *name;
    unsigned bits;
} type_table[] = {
    {"F32", 32},        {"BF16", 16},       {"F16", 16},    {"F64", 64},    {"I64", 64},    {"I32", 32},
    {"I16", 16},        {"I8", 8},          {"U64", 64},    {"U32", 32},    {"U16", 16},    {"U8", 8},
    {"BOOL", 8},        {"C64", 64},        {"F4", 4},      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
};

static unsigned type_bits(const char *name)
{
    for (size_t i = 0; i < sizeof type_table / sizeof type_table[0]; i++)
        if (!strcmp(type_table[i].name, name)) return type_table[i].bits;
    return 0;
}

const char *safetensors_shape_text(int ndim, const int64_t *dim, char *buf, size_t size)
{
    size_t used = (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < ndim && used < size; i++)
        used += (size_t)snprintf(buf + used, size - used, "%s%" PRId64, i ? "," : "", dim[i]);
    if (used < size) snprintf(buf + used, size - used, "]");
    return buf;
}

/* --- one tensor of a header -------------------------------------------------------------------------------
 */

/* State while one file is read. */
struct file_reader {
    struct safetensors *set;
    const char *path;
    int fd;
    uint64_t data_begin, data_bytes;
    struct plim_error *err;
};

static enum plim_status bad_tensor(const struct file_reader *f, const char *name, const char *what)
{
    return plim_fail(f->err, PLIM_BAD_INPUT, "%s: tensor '%.200s': %s", f->path, name, what);
}

static enum plim_status read_shape(const struct file_reader *f, const struct node *node, struct safetensor *t)
{
    if (!node || node->kind != NODE_LIST) return bad_tensor(f, t->name, "its shape is not a list");
    if (node_count(node) > SAFETENSORS_MAX_DIM)
        return bad_tensor(f, t->name, "it has more than 8 dimensions");
    t->ndim = (int)node_count(node);
    t->count = 1;
    for (int i = 0; i < t->ndim; i++) {
        if (!node_is_whole(node_item(node, (size_t)i), &t->dim[i]) || t->dim[i] < 0)
            return bad_tensor(f, t->name, "a dimension is no whole number from 0 on");
        if (__builtin_mul_overflow(t->count, t->dim[i], &t->count))
            return bad_tensor(f, t->name, "its shape has more elements than any file can hold");
    }
    return PLIM_OK;
}

static enum plim_status read_type(const struct file_reader *f, const struct node *node, struct safetensor *t)
{
    const char *name = node_string(node, NULL);
    unsigned bits = name ? type_bits(name) : 0;
    int64_t total_bits;
    if (!name) return bad_tensor(f, t->name, "its dtype is not a text");
    if (!bits)
        return plim_fail(f->err, PLIM_BAD_INPUT, "%s: tensor '%.200s': unknown dtype '%.40s'", f->path,
                         t->name, name);
    if (__builtin_mul_overflow(t->count, (int64_t)bits, &total_bits) || total_bits % 8)
        return bad_tensor(f, t->name, "its elements do not fill whole bytes");
    t->bytes = (uint64_t)total_bits / 8;
    t->type = dtype_from_safetensors(name);
    t->type_name = bump_copy(&f->set->store, name, strlen(name));
    return t->type_name ? PLIM_OK : plim_fail(f->err, PLIM_NO_MEMORY, "%s: out of memory", f->path);
}

static enum plim_status read_offsets(const struct file_reader *f, const struct node *node,
                                     struct safetensor *t)
{
    int64_t begin, end;
    if (!node || node->kind != NODE_LIST || node_count(node) != 2 ||
        !node_is_whole(node_item(node, 0), &begin) || !node_is_whole(node_item(node, 1), &end) || begin < 0 ||
        end < begin)
        return bad_tensor(f, t->name, "data_offsets must be two whole numbers, the first not the larger");
    if ((uint64_t)end > f->data_bytes)
        return plim_fail(f->err, PLIM_BAD_INPUT,
                         "%s: tensor '%.200s': its data end at byte %" PRId64
                         " but the file has only %" PRIu64 "; the file is truncated, fetch it again",
                         f->path, t->name, end, f->data_bytes);
    if ((uint64_t)(end - begin) != t->bytes) {
        char shape[200];
        return plim_fail(f->err, PLIM_BAD_INPUT,
                         "%s: tensor '%.200s': %s%s needs %" PRIu64
                         " bytes but its data_offsets give %" PRId64,
                         f->path, t->name, t->type_name,
                         safetensors_shape_text(t->ndim, t->dim, shape, sizeof shape), t->bytes, end - begin);
    }
    t->offset = f->data_begin + (uint64_t)begin;
    return PLIM_OK;
}

static enum plim_status push_tensor(const struct file_reader *f, const struct safetensor *t)
{
    struct safetensors *set = f->set;
    if (set->count == set->cap) {
        size_t wanted = set->cap ? set->cap * 2 : 256;
        struct safetensor *bigger = realloc(set->tensors, wanted * sizeof *bigger);
        if (!bigger) return plim_fail(f->err, PLIM_NO_MEMORY, "%s: out of memory", f->path);
        set->tensors = bigger, set->cap = wanted;
    }
    set->tensors[set->count++] = *t;
    return PLIM_OK;
}

static enum plim_status read_tensor(const struct file_reader *f, const struct node *node)
{
    struct safetensor t = {.path = f->path};
    t.name = bump_copy(&f->set->store, node->key, node->key_len);
    if (!t.name) return plim_fail(f->err, PLIM_NO_MEMORY, "%s: out of memory", f->path);
    if (strlen(t.name) != node->key_len || !node->key_len)
        return plim_fail(f->err, PLIM_BAD_INPUT, "%s: a tensor's name is empty or has a NUL in it", f->path);
    if (node->kind != NODE_MAP) return bad_tensor(f, t.name, "its description is not a map");
    enum plim_status status = read_shape(f, node_get(node, "shape"), &t);
    if (status == PLIM_OK) status = read_type(f, node_get(node, "dtype"), &t);
    if (status == PLIM_OK) status = read_offsets(f, node_get(node, "data_offsets"), &t);
    return status == PLIM_OK ? push_tensor(f, &t) : status;
}

/* --- one file ---------------------------------------------------------------------------------------------
 */

static int by_offset(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* empty ones first */
}

/* Invariant 3 over the tensors this file added. */
static enum plim_status check_tiling(const struct file_reader *f, size_t first)
{
    size_t n = f->set->count - first;
    struct safetensor *t = n ? f->set->tensors + first : NULL; /* an empty set has no array */
    uint64_t at = f->data_begin;
    if (n) qsort(t, n, sizeof *t, by_offset);
    for (size_t i = 0; i < n; i++) {
        if (t[i].offset < at)
            return plim_fail(f->err, PLIM_BAD_INPUT,
                             "%s: tensor '%.200s' overlaps '%.200s'; the file is damaged", f->path, t[i].name,
                             t[i - 1].name);
        if (t[i].offset > at)
            return plim_fail(f->err, PLIM_BAD_INPUT,
                             "%s: %" PRIu64
                             " bytes before tensor '%.200s' belong to no tensor; the file is damaged",
                             f->path, t[i].offset - at, t[i].name);
        at += t[i].bytes;
    }
    if (at != f->data_begin + f->data_bytes)
        return plim_fail(f->err, PLIM_BAD_INPUT,
                         "%s: %" PRIu64
                         " bytes after the last tensor belong to no tensor; the file is damaged",
                         f->path, f->data_begin + f->data_bytes - at);
    return PLIM_OK;
}

static enum plim_status read_header(struct file_reader *f, const char *text, size_t len)
{
    struct doc *doc = NULL;
    size_t first = f->set->count;
    enum plim_status status = json_parse(text, len, f->path, &doc, f->err);
    if (status != PLIM_OK) return status;
    if (doc->root.kind != NODE_MAP)
        status = plim_fail(f->err, PLIM_BAD_INPUT,
                           "%s: the header is not a map; this is not a safetensors file", f->path);
    for (size_t i = 0; i < node_count(&doc->root) && status == PLIM_OK; i++) {
        const struct node *node = node_item(&doc->root, i);
        if (!strcmp(node->key, "__metadata__")) continue;
        status = read_tensor(f, node);
    }
    if (status == PLIM_OK) status = check_tiling(f, first);
    doc_free(doc);
    return status;
}

/* Header length and file size; see invariant 1. */
static enum plim_status measure(struct file_reader *f, uint64_t *header)
{
    unsigned char raw[8];
    struct stat st;
    if (fstat(f->fd, &st)) return plim_fail(f->err, PLIM_IO, "%s: %s", f->path, strerror(errno));
    if (!S_ISREG(st.st_mode)) return plim_fail(f->err, PLIM_BAD_INPUT, "%s: is not a regular file", f->path);
    uint64_t size = (uint64_t)st.st_size;
    if (size < 8)
        return plim_fail(f->err, PLIM_BAD_INPUT, "%s: %" PRIu64 " bytes are too few for a safetensors file",
                         f->path, size);
    enum plim_status status = file_pread_full(f->fd, raw, sizeof raw, 0, f->path, f->err);
    if (status != PLIM_OK) return status;
    *header = 0;
    for (int i = 7; i >= 0; i--) *header = *header << 8 | raw[i];
    if (*header > SAFETENSORS_MAX_HEADER || *header > size - 8)
        return plim_fail(f->err, PLIM_BAD_INPUT,
                         "%s: a header of %" PRIu64 " bytes in a file of %" PRIu64
                         "; the file is truncated or no safetensors file",
                         f->path, *header, size);
    f->data_begin = 8 + *header;
    f->data_bytes = size - f->data_begin;
    return PLIM_OK;
}

enum plim_status safetensors_open_file(const char *path, int *fd, struct plim_error *err)
{
    return file_open(path, fd, err);
}

enum plim_status safetensors_add_file(struct safetensors *set, const char *path, struct plim_error *err)
{
    struct file_reader f = {.set = set, .fd = -1, .err = err};
    uint64_t header = 0;
    char *text = NULL;
    f.path = bump_copy(&set->store, path, strlen(path));
    if (!f.path) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", path);
    enum plim_status status = safetensors_open_file(path, &f.fd, err);
    if (status == PLIM_OK) status = measure(&f, &header);
    if (status != PLIM_OK) goto out;
    text = malloc(header + 1);
    if (!text) {
        status =
            plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for a header of %" PRIu64 " bytes", path, header);
        goto out;
    }
    status = file_pread_full(f.fd, text, header, 8, path, err);
    if (status == PLIM_OK) status = read_header(&f, text, header);
out:
    free(text);
    if (f.fd >= 0) close(f.fd);
    return status;
}
