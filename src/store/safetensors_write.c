/* safetensors_write.c - one file or several, all complete before any has its name. See safetensors.h.
 *
 * Entries are dealt to shards once, at the beginning, in order; `last[s]` is one past shard s's last entry.
 * The caller pours all data in order, and the writer moves on to the next file when one is full.
 */
#include "base/json.h"
#include "store/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t entry_bytes(const struct safetensors_entry *e)
{
    uint64_t n = dtype_size(e->type);
    for (int i = 0; i < e->ndim; i++) n *= (uint64_t)e->dim[i];
    return n;
}

static void shard_file(const struct safetensors_writer *w, size_t shard, char name[64])
{
    if (w->name[0])
        memcpy(name, w->name, 64);
    else if (w->shards == 1)
        snprintf(name, 64, "model.safetensors");
    else
        snprintf(name, 64, "model-%05zu-of-%05zu.safetensors", shard + 1, w->shards);
}

static enum plim_status shard_path(const struct safetensors_writer *w, const char *file, struct strbuf *out,
                                   struct plim_error *err)
{
    strbuf_addf(out, "%s/%s", w->dir, file);
    return strbuf_status(out, err);
}

/* Fills last[] and total. */
static void deal(struct safetensors_writer *w, uint64_t shard_bytes)
{
    uint64_t filled = 0;
    w->shards = 1;
    for (size_t i = 0; i < w->count; i++) {
        uint64_t n = entry_bytes(&w->entries[i]);
        if (filled > 0 && n > 0 && filled + n > shard_bytes) {
            w->last[w->shards - 1] = i;
            w->shards++;
            filled = 0;
        }
        filled += n;
        w->total += n;
    }
    w->last[w->shards - 1] = w->count;
}

static size_t shard_first(const struct safetensors_writer *w, size_t shard)
{
    return shard ? w->last[shard - 1] : 0;
}

static uint64_t write_entries(const struct safetensors_writer *w, struct strbuf *out)
{
    struct json_writer j;
    uint64_t at = 0;
    json_writer_init(&j, out, 0);
    json_begin_object(&j, NULL);
    json_begin_object(&j, "__metadata__");
    json_str(&j, "format", "pt");
    json_end_object(&j);
    for (size_t i = shard_first(w, w->shard); i < w->last[w->shard]; i++) {
        const struct safetensors_entry *e = &w->entries[i];
        json_begin_object(&j, e->name);
        json_str(&j, "dtype", dtype_safetensors(e->type));
        json_begin_array(&j, "shape");
        for (int d = 0; d < e->ndim; d++) json_int(&j, NULL, e->dim[d]);
        json_end_array(&j);
        json_begin_array(&j, "data_offsets");
        json_uint(&j, NULL, at);
        json_uint(&j, NULL, at += entry_bytes(e));
        json_end_array(&j);
        json_end_object(&j);
    }
    json_end_object(&j);
    return at;
}

/* Length, JSON, and blanks until the data begin at a multiple of 8. Returns the data bytes that follow. */
static uint64_t write_header(const struct safetensors_writer *w, struct strbuf *out)
{
    strbuf_pad(out, 0, 8);
    uint64_t data = write_entries(w, out);
    strbuf_pad(out, ' ', (8 - out->len % 8) % 8);
    if (out->failed) return 0;
    uint64_t len = out->len - 8;
    for (int i = 0; i < 8; i++) out->data[i] = (char)(unsigned char)(len >> (8 * i));
    return data;
}

static enum plim_status begin_shard(struct safetensors_writer *w, struct plim_error *err)
{
    struct strbuf path = STRBUF_INIT, header = STRBUF_INIT;
    struct file_atomic *f = &w->files[w->shard];
    char name[64];
    shard_file(w, w->shard, name);
    uint64_t data = write_header(w, &header);
    enum plim_status status = strbuf_status(&header, err);
    if (status == PLIM_OK) status = shard_path(w, name, &path, err);
    if (status == PLIM_OK) status = file_atomic_begin(f, strbuf_text(&path), err);
    if (status == PLIM_OK) {
        status = file_pwrite_full(f->fd, header.data, header.len, 0, f->temp, err);
        checksum_begin(&w->sum, 0);
        checksum_add(&w->sum, header.data, header.len);
        w->at = header.len;
        w->end = header.len + data;
    }
    strbuf_release(&header);
    strbuf_release(&path);
    return status;
}

/* Leave full shards (an empty one is full at once) until one wants data or none is left. */
static enum plim_status advance(struct safetensors_writer *w, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && w->shard < w->shards && w->at == w->end)
        if (++w->shard < w->shards) status = begin_shard(w, err);
    return status;
}

/* The writer knows its folder, its entries and what its files are called. */
static enum plim_status begin(struct safetensors_writer *w, uint64_t shard_bytes, struct plim_error *err)
{
    const char *dir = w->dir;
    w->last = calloc(w->count + 1, sizeof *w->last);
    if (!w->last) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", dir);
    deal(w, shard_bytes ? shard_bytes : SAFETENSORS_SHARD);
    w->files = calloc(w->shards, sizeof *w->files);
    if (!w->files) {
        free(w->last);
        return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", dir);
    }
    for (size_t i = 0; i < w->shards; i++) w->files[i].fd = -1;
    enum plim_status status = begin_shard(w, err);
    if (status != PLIM_OK) safetensors_writer_abandon(w);
    return status;
}

enum plim_status safetensors_writer_begin(struct safetensors_writer *w, const char *dir,
                                          const struct safetensors_entry *entries, size_t count,
                                          uint64_t shard_bytes, struct plim_error *err)
{
    *w = (struct safetensors_writer){.entries = entries, .count = count, .dir = dir};
    return begin(w, shard_bytes, err);
}

enum plim_status safetensors_file_begin(struct safetensors_writer *w, const char *dir, const char *name,
                                        const struct safetensors_entry *entries, size_t count,
                                        struct plim_error *err)
{
    *w = (struct safetensors_writer){.entries = entries, .count = count, .dir = dir};
    snprintf(w->name, sizeof w->name, "%s", name);
    return begin(w, UINT64_MAX, err);
}

enum plim_status safetensors_piece_begin(struct safetensors_writer *w, const char *dir, int file, int files,
                                         const struct safetensors_entry *entries, size_t count,
                                         struct plim_error *err)
{
    char name[sizeof w->name];
    safetensors_piece_name(file, files, name);
    return safetensors_file_begin(w, dir, name, entries, count, err);
}

enum plim_status safetensors_writer_put(struct safetensors_writer *w, const void *bytes, size_t n,
                                        struct plim_error *err)
{
    const char *from = bytes;
    enum plim_status status = PLIM_OK;
    while (n > 0 && status == PLIM_OK) {
        status = advance(w, err);
        if (status != PLIM_OK) break;
        if (w->shard == w->shards)
            return plim_fail(err, PLIM_BUG, "%s: more data than its entries hold", w->dir);
        struct file_atomic *f = &w->files[w->shard];
        size_t piece = w->end - w->at < n ? (size_t)(w->end - w->at) : n;
        status = file_pwrite_full(f->fd, from, piece, w->at, f->temp, err);
        checksum_add(&w->sum, from, piece);
        from += piece, n -= piece, w->at += piece;
    }
    return status;
}

static enum plim_status write_index(const struct safetensors_writer *w, const char *path,
                                    struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer j;
    char name[64];
    json_writer_init(&j, &text, 2);
    json_begin_object(&j, NULL);
    json_begin_object(&j, "metadata");
    json_uint(&j, "total_size", w->total);
    json_end_object(&j);
    json_begin_object(&j, "weight_map");
    for (size_t s = 0; s < w->shards; s++) {
        shard_file(w, s, name);
        for (size_t i = shard_first(w, s); i < w->last[s]; i++) json_str(&j, w->entries[i].name, name);
    }
    json_end_object(&j);
    json_end_object(&j);
    strbuf_addc(&text, '\n');
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text.data, text.len, err);
    strbuf_release(&text);
    return status;
}

/* The order of safetensors.h: old index away, shards, new index, old single file away. */
static enum plim_status finish_folder(const struct safetensors_writer *w, struct plim_error *err)
{
    struct strbuf single = STRBUF_INIT, index = STRBUF_INIT;
    enum plim_status status = shard_path(w, "model.safetensors", &single, err);
    if (status == PLIM_OK) status = shard_path(w, "model.safetensors.index.json", &index, err);
    if (status == PLIM_OK && w->shards > 1) (void)unlink(strbuf_text(&index)); /* usually not there */
    for (size_t i = 0; i < w->shards && status == PLIM_OK; i++)
        status = file_atomic_commit(&w->files[i], err);
    if (status == PLIM_OK && w->shards > 1) status = write_index(w, strbuf_text(&index), err);
    if (status == PLIM_OK && !w->name[0]) (void)unlink(strbuf_text(w->shards > 1 ? &single : &index));
    strbuf_release(&single);
    strbuf_release(&index);
    return status;
}

enum plim_status safetensors_writer_end(struct safetensors_writer *w, struct plim_error *err)
{
    enum plim_status status = advance(w, err);
    if (status == PLIM_OK && w->shard < w->shards)
        status =
            plim_fail(err, PLIM_BUG, "%s: %" PRIu64 " bytes of data are missing", w->dir, w->end - w->at);
    if (status == PLIM_OK) status = finish_folder(w, err);
    safetensors_writer_abandon(w);
    return status;
}

void safetensors_writer_abandon(struct safetensors_writer *w)
{
    for (size_t i = 0; i < w->shards; i++) file_atomic_abandon(&w->files[i]);
    free(w->files);
    free(w->last);
    w->files = NULL, w->last = NULL;
    w->shards = w->shard = 0;
}
