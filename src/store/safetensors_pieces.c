/* safetensors_pieces.c - a folder of pieces as a set of whole tensors, and the index that says what they are. See
 * safetensors.h.
 *
 * What holds once a folder was accepted: the pieces of a tensor, in the order of the files, have one type and as many elements
 * as its shape says; every tensor of the index is there, and no other.
 */
#include "base/json.h"
#include "store/safetensors_header.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_FILES 65536

void safetensors_piece_name(int file, int files, char name[64])
{
    snprintf(name, 64, "piece-%05d-of-%05d.safetensors", file + 1, files);
}

enum plim_status safetensors_write_pieces_index(const char *dir, int files,
                                                const struct safetensors_entry *entries, size_t count,
                                                struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT, path = STRBUF_INIT;
    struct json_writer j;
    char name[64];
    json_writer_init(&j, &text, 0);
    json_begin_object(&j, NULL);
    json_begin_array(&j, "files");
    for (int i = 0; i < files; i++) {
        safetensors_piece_name(i, files, name);
        json_str(&j, NULL, name);
    }
    json_end_array(&j);
    json_begin_object(&j, "tensors");
    for (size_t i = 0; i < count; i++) {
        json_begin_array(&j, entries[i].name);
        for (int d = 0; d < entries[i].ndim; d++) json_int(&j, NULL, entries[i].dim[d]);
        json_end_array(&j);
    }
    json_end_object(&j);
    json_end_object(&j);
    strbuf_addc(&text, '\n');
    strbuf_addf(&path, "%s/" SAFETENSORS_PIECES, dir);
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = strbuf_status(&path, err);
    if (status == PLIM_OK) status = file_write_atomic(path.data, text.data, text.len, err);
    strbuf_release(&text);
    strbuf_release(&path);
    return status;
}

/* --- reading ------------------------------------------------------------------------------------------------ */

/* A tensor's name and the file that has it, in the order of the index. */
struct part {
    struct safetensor t;
    int file;
};

static int by_name_and_file(const void *a, const void *b)
{
    const struct part *x = a, *y = b;
    int order = strcmp(x->t.name, y->t.name);
    return order ? order : x->file - y->file;
}

static enum plim_status add_files(struct safetensors *set, const char *dir, const char *index,
                                  const struct node *files, size_t *ends, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i < node_count(files) && status == PLIM_OK; i++) {
        const char *name = node_string(node_item(files, i), "");
        if (!*name || strchr(name, '/') || !strcmp(name, ".."))
            return plim_fail(err, PLIM_BAD_INPUT, "%s: expected names of files beside it", index);
        const char *path = safetensors_join_path(&set->store, dir, name);
        status = path ? safetensors_add_file(set, path, err)
                      : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", index);
        ends[i] = set->count;
    }
    return status;
}

static enum plim_status read_shape(const char *index, const struct node *shape, struct safetensor *t,
                                   struct plim_error *err)
{
    bool good = shape && shape->kind == NODE_LIST && node_count(shape) <= SAFETENSORS_MAX_DIM;
    t->ndim = good ? (int)node_count(shape) : 0;
    t->count = 1;
    for (int i = 0; i < t->ndim && good; i++)
        good = node_is_whole(node_item(shape, (size_t)i), &t->dim[i]) && t->dim[i] >= 0 &&
               !__builtin_mul_overflow(t->count, t->dim[i], &t->count);
    if (good) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "%s: tensor '%.200s': no shape that it can have", index, t->name);
}

/* Parts [0, n) are those of one tensor. */
static enum plim_status join(struct safetensors *set, const char *index, const struct node *shapes,
                             const struct part *parts, size_t n, struct safetensor *out,
                             struct plim_error *err)
{
    *out = parts[0].t;
    struct safetensor_piece *pieces = bump_alloc(&set->store, n * sizeof *pieces);
    if (!pieces) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", index);
    enum plim_status status = read_shape(index, node_get(shapes, out->name), out, err);
    int64_t count = 0;
    out->bytes = 0, out->pieces = pieces, out->npieces = (int)n;
    for (size_t i = 0; i < n && status == PLIM_OK; i++) {
        const struct safetensor *t = &parts[i].t;
        pieces[i] = (struct safetensor_piece){t->path, t->offset, count, t->count};
        count += t->count, out->bytes += t->bytes;
        if (strcmp(t->type_name, out->type_name))
            status = plim_fail(err, PLIM_BAD_INPUT, "%s: tensor '%.200s': %s in one file, %s in another",
                               index, t->name, out->type_name, t->type_name);
    }
    if (status == PLIM_OK && count != out->count)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "%s: tensor '%.200s': its pieces have %" PRId64 " elements, its shape %" PRId64
                           "; fetch the files again",
                           index, out->name, count, out->count);
    return status;
}

/* The tensors of all files become whole ones. */
static enum plim_status join_all(struct safetensors *set, const char *index, const struct node *shapes,
                                 const size_t *ends, struct plim_error *err)
{
    struct part *parts = malloc((set->count + 1) * sizeof *parts);
    if (!parts) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", index);
    enum plim_status status = PLIM_OK;
    size_t count = set->count, whole = 0;
    for (size_t i = 0, file = 0; i < count; i++) {
        while (i >= ends[file]) file++;
        parts[i] = (struct part){set->tensors[i], (int)file};
    }
    qsort(parts, count, sizeof *parts, by_name_and_file);
    for (size_t i = 0, end; i < count && status == PLIM_OK; i = end) {
        for (end = i + 1; end < count && !strcmp(parts[end].t.name, parts[i].t.name);) end++;
        status = join(set, index, shapes, parts + i, end - i, &set->tensors[whole++], err);
    }
    free(parts);
    set->count = whole;
    if (status == PLIM_OK && whole != node_count(shapes))
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: names %zu tensors, its files have %zu; fetch them again",
                           index, node_count(shapes), whole);
    return status;
}

enum plim_status safetensors_add_pieces(struct safetensors *set, const char *dir, const char *index,
                                        struct plim_error *err)
{
    struct doc *doc = NULL;
    size_t *ends = NULL;
    enum plim_status status = json_load(index, &doc, err);
    if (status != PLIM_OK) return status;
    const struct node *files = node_get(&doc->root, "files"), *shapes = node_get(&doc->root, "tensors");
    if (!files || files->kind != NODE_LIST || !node_count(files) || node_count(files) > MOST_FILES ||
        !shapes || shapes->kind != NODE_MAP) {
        status = plim_fail(err, PLIM_BAD_INPUT, "%s: needs a list 'files' and a map 'tensors'", index);
        goto out;
    }
    ends = calloc(node_count(files), sizeof *ends);
    status = ends ? add_files(set, dir, index, files, ends, err)
                  : plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", index);
    if (status == PLIM_OK) status = join_all(set, index, shapes, ends, err);
out:
    free(ends);
    doc_free(doc);
    return status;
}
