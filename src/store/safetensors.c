/* safetensors.c - a set of files: opening, finding, reading. See safetensors.h.
 *
 * No descriptor stays open: a set is a sorted list of checked descriptions, and a read opens the one file it
 * needs. Names are unique in the set.
 */
#include "store/safetensors.h"
#include "base/json.h"
#include "store/safetensors_header.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_SHARDS 4096

/* --- a folder ---------------------------------------------------------------------------------------------
 */

static int by_name(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

char *safetensors_join_path(struct bump *store, const char *dir, const char *file)
{
    size_t n = strlen(dir);
    while (n > 1 && dir[n - 1] == '/') n--;
    struct strbuf sb = STRBUF_INIT;
    strbuf_addf(&sb, "%.*s/%s", (int)n, dir, file);
    char *copy = sb.failed ? NULL : bump_copy(store, sb.data, sb.len);
    strbuf_release(&sb);
    return copy;
}

/* Newest first, because neighbours in an index usually share a shard. */
static bool listed(const struct string_list *list, const char *file)
{
    for (size_t i = list->count; i-- > 0;)
        if (!strcmp(list->items[i], file)) return true;
    return false;
}

static enum plim_status add_shard(struct safetensors *set, const char *dir, const char *index,
                                  const char *file, struct string_list *shards, struct plim_error *err)
{
    if (listed(shards, file)) return PLIM_OK;
    const char *path = safetensors_join_path(&set->store, dir, file);
    if (!path || !string_list_add(&set->store, shards, file))
        return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", index);
    if (shards->count > MAX_SHARDS)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: names more than %d files", index, MAX_SHARDS);
    enum plim_status status = safetensors_add_file(set, path, err);
    if (status != PLIM_OK) plim_error_prefix(err, "shard of %s", index);
    return status;
}

/* Each file the index names, once. */
static enum plim_status add_shards(struct safetensors *set, const char *dir, const char *index,
                                   const struct node *map, struct plim_error *err)
{
    struct string_list shards = {0};
    enum plim_status status = PLIM_OK;
    if (!map || map->kind != NODE_MAP || !node_count(map))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: key 'weight_map' must be a map from tensors to files",
                         index);
    for (size_t i = 0; i < node_count(map) && status == PLIM_OK; i++) {
        const struct node *node = node_item(map, i);
        const char *file = node_string(node, NULL);
        if (!file || !*file || strchr(file, '/') || !strcmp(file, "..") ||
            strlen(file) != node->as.string.len)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s:%d: tensor '%.200s': expected the name of a file beside the index", index,
                             node->line, node->key);
        status = add_shard(set, dir, index, file, &shards, err);
    }
    return status;
}

/* Every name the index promises must be in the file it names. */
static enum plim_status check_promises(const struct safetensors *set, const char *index,
                                       const struct node *map, struct plim_error *err)
{
    for (size_t i = 0; i < node_count(map); i++) {
        const struct node *node = node_item(map, i);
        const struct safetensor *t = safetensors_find(set, node->key);
        const char *file = node_string(node, "");
        const char *slash = t ? strrchr(t->path, '/') : NULL;
        if (!t || strcmp(slash ? slash + 1 : t->path, file))
            return plim_fail(err, PLIM_BAD_INPUT,
                             "%s: tensor '%.200s' is missing from %s; fetch that file again", index,
                             node->key, file);
    }
    return PLIM_OK;
}

/* No name may occur twice. */
static enum plim_status sort_by_name(struct safetensors *set, const char *where, struct plim_error *err)
{
    if (set->count) qsort(set->tensors, set->count, sizeof *set->tensors, by_name);
    for (size_t i = 1; i < set->count; i++)
        if (!strcmp(set->tensors[i - 1].name, set->tensors[i].name))
            return plim_fail(err, PLIM_BAD_INPUT, "%s: tensor '%.200s' occurs twice, in %s and %s", where,
                             set->tensors[i].name, set->tensors[i - 1].path, set->tensors[i].path);
    return PLIM_OK;
}

static enum plim_status open_index(struct safetensors *set, const char *dir, const char *index,
                                   struct plim_error *err)
{
    struct doc *doc = NULL;
    enum plim_status status = json_load(index, &doc, err);
    if (status != PLIM_OK) return status;
    const struct node *map = node_get(&doc->root, "weight_map");
    status = add_shards(set, dir, index, map, err);
    if (status == PLIM_OK) status = sort_by_name(set, index, err);
    if (status == PLIM_OK) status = check_promises(set, index, map, err);
    doc_free(doc);
    return status;
}

static enum plim_status open_folder(struct safetensors *set, const char *dir, struct plim_error *err)
{
    const char *single = safetensors_join_path(&set->store, dir, "model.safetensors");
    const char *index = safetensors_join_path(&set->store, dir, "model.safetensors.index.json");
    const char *pieces = safetensors_join_path(&set->store, dir, SAFETENSORS_PIECES);
    const char *pickled = safetensors_join_path(&set->store, dir, "pytorch_model.bin");
    if (!single || !index || !pieces || !pickled)
        return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", dir);
    if (file_exists(single)) {
        enum plim_status status = safetensors_add_file(set, single, err);
        return status == PLIM_OK ? sort_by_name(set, single, err) : status;
    }
    if (file_exists(index)) return open_index(set, dir, index, err);
    if (file_exists(pieces)) return safetensors_add_pieces(set, dir, pieces, err);
    if (file_exists(pickled))
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "%s: has only pytorch_model.bin, and pickled files are not supported; save the model "
            "with save_pretrained(safe_serialization=True)",
            dir);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "%s: neither model.safetensors nor model.safetensors.index.json is there", dir);
}

enum plim_status safetensors_open(const char *path, struct safetensors *set, struct plim_error *err)
{
    struct stat st;
    enum plim_status status;
    *set = (struct safetensors){.store = BUMP_INIT};
    if (stat(path, &st)) return plim_fail(err, PLIM_IO, "%s: %s", path, strerror(errno));
    if (S_ISDIR(st.st_mode)) {
        status = open_folder(set, path, err);
    } else {
        status = safetensors_add_file(set, path, err);
        if (status == PLIM_OK) status = sort_by_name(set, path, err);
    }
    if (status != PLIM_OK) safetensors_close(set);
    return status;
}

void safetensors_close(struct safetensors *set)
{
    free(set->tensors);
    bump_free(&set->store);
    *set = (struct safetensors){.store = BUMP_INIT};
}

const struct safetensor *safetensors_find(const struct safetensors *set, const char *name)
{
    struct safetensor key = {.name = name};
    return set->count ? bsearch(&key, set->tensors, set->count, sizeof key, by_name) : NULL;
}

/* --- data -------------------------------------------------------------------------------------------------
 */

struct safetensor_piece safetensor_piece_at(const struct safetensor *t, int64_t element)
{
    for (int i = 0; i < t->npieces; i++)
        if (element < t->pieces[i].first + t->pieces[i].count) return t->pieces[i];
    return (struct safetensor_piece){t->path, t->offset, 0, t->count};
}

/* Where elements of one tensor go. */
struct reading {
    const struct safetensor *t;
    enum dtype type;
    char *buffer;
    safetensors_sink *sink;
    void *arg;
};

/* Elements [first, end) of the tensor, all of them in piece p. Half the buffer holds what the file has, half what the caller
 * wants. */
static enum plim_status read_elements(const struct reading *r, int fd, const struct safetensor_piece *p,
                                      int64_t first, int64_t end, struct plim_error *err)
{
    const size_t half = SAFETENSORS_BUFFER / 2;
    const size_t from = dtype_size(r->t->type), to = dtype_size(r->type);
    const int64_t most = (int64_t)(half / (from > to ? from : to));
    enum plim_status status = PLIM_OK;
    for (; first < end && status == PLIM_OK; first += most) {
        int64_t n = end - first < most ? end - first : most;
        void *elements = r->buffer;
        uint64_t offset = p->offset + (uint64_t)(first - p->first) * from;
        status = file_pread_full(fd, r->buffer, (size_t)n * from, offset, p->path, err);
        if (status == PLIM_OK && r->type != r->t->type) {
            elements = r->buffer + half;
            dtype_convert(elements, r->type, r->buffer, r->t->type, n);
        }
        if (status == PLIM_OK) status = r->sink(r->arg, first, elements, n, err);
    }
    return status;
}

static enum plim_status read_pieces(const struct reading *r, int64_t first, int64_t end,
                                    struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    while (first < end && status == PLIM_OK) {
        struct safetensor_piece p = safetensor_piece_at(r->t, first);
        int64_t here = p.first + p.count < end ? p.first + p.count : end;
        int fd = -1;
        status = safetensors_open_file(p.path, &fd, err);
        if (status == PLIM_OK) status = read_elements(r, fd, &p, first, here, err);
        if (fd >= 0) close(fd);
        first = here;
    }
    return status;
}

enum plim_status safetensors_read_part(const struct safetensors *, const struct safetensor *t,
                                       enum dtype type, int64_t first, int64_t count, safetensors_sink *sink,
                                       void *arg, struct plim_error *err)
{
    if (t->type != type && !(dtype_is_float(t->type) && dtype_is_float(type)))
        return plim_fail(err, PLIM_UNSUPPORTED, "%s: tensor '%.200s': cannot turn %s into %s", t->path,
                         t->name, t->type_name, dtype_name(type));
    struct reading r = {t, type, malloc(SAFETENSORS_BUFFER), sink, arg};
    if (!r.buffer) return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for a read buffer", t->path);
    enum plim_status status = read_pieces(&r, first, first + count, err);
    if (status == PLIM_BAD_INPUT) plim_error_prefix(err, "tensor '%.200s'", t->name);
    free(r.buffer);
    return status;
}

enum plim_status safetensors_read(const struct safetensors *set, const struct safetensor *t, enum dtype type,
                                  safetensors_sink *sink, void *arg, struct plim_error *err)
{
    return safetensors_read_part(set, t, type, 0, t->count, sink, arg, err);
}

/* A type that we cannot compute with has a size, too. */
static size_t element_bytes(const struct safetensor *t)
{
    return t->count ? t->bytes / (uint64_t)t->count : 0;
}

enum plim_status safetensors_read_raw(const struct safetensor *t, int64_t first, int64_t n, void *out,
                                      struct plim_error *err)
{
    int fd = -1;
    size_t size = element_bytes(t);
    enum plim_status status = safetensors_open_file(t->path, &fd, err);
    if (status == PLIM_OK)
        status = file_pread_full(fd, out, (size_t)n * size, t->offset + (uint64_t)first * size, t->path, err);
    if (fd >= 0) close(fd);
    return status;
}

enum plim_status safetensors_read_rows(const struct safetensor *t, const struct safetensors_rows *which,
                                       void *out, struct plim_error *err)
{
    int fd = -1;
    const size_t size = element_bytes(t), bytes = (size_t)which->n * size;
    int64_t width = t->dim[t->ndim - 1], runs = which->n == width ? 1 : which->rows;
    size_t each = runs == 1 ? bytes * (size_t)which->rows : bytes;
    char *to = out;
    enum plim_status status = safetensors_open_file(t->path, &fd, err);
    for (int64_t r = 0; r < runs && status == PLIM_OK; r++, to += each) {
        uint64_t first = (uint64_t)((which->row + r) * width + which->column);
        status = file_pread_full(fd, to, each, t->offset + first * size, t->path, err);
    }
    if (fd >= 0) close(fd);
    return status;
}

struct copy_target {
    char *out;
    size_t size;
};

static enum plim_status copy_out(void *arg, int64_t first, const void *elements, int64_t n,
                                 struct plim_error *)
{
    const struct copy_target *c = arg;
    memcpy(c->out + (size_t)first * c->size, elements, (size_t)n * c->size);
    return PLIM_OK;
}

enum plim_status safetensors_read_all(const struct safetensors *set, const struct safetensor *t,
                                      enum dtype type, void *out, struct plim_error *err)
{
    struct copy_target c = {.out = out, .size = dtype_size(type)};
    return safetensors_read(set, t, type, copy_out, &c, err);
}
