/* manifest.c - see manifest.h. */
#include "train/manifest.h"
#include "base/checksum.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME         "manifest.json"
#define MANIFEST_MAX (16 << 20)

void manifest_add(struct manifest_files *files, const char *name, uint64_t bytes, uint64_t checksum)
{
    if (files->count == files->cap) {
        int cap = files->cap ? 2 * files->cap : 16;
        struct manifest_file *more = realloc(files->file, (size_t)cap * sizeof *more);
        files->failed |= !more;
        if (!more) return;
        files->file = more, files->cap = cap;
    }
    struct manifest_file *f = &files->file[files->count++];
    *f = (struct manifest_file){.bytes = bytes, .checksum = checksum};
    snprintf(f->name, sizeof f->name, "%s", name);
}

void manifest_files_release(struct manifest_files *files)
{
    free(files->file);
    *files = (struct manifest_files){0};
}

enum plim_status manifest_add_file(struct manifest_files *files, const char *dir, const char *name,
                                   struct plim_error *err)
{
    char path[720];
    uint64_t checksum, bytes;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!file_exists(path)) return PLIM_OK;
    enum plim_status status = checksum_file(path, &checksum, &bytes, err);
    if (status == PLIM_OK) manifest_add(files, name, bytes, checksum);
    return status;
}

static void put_hex(struct json_writer *w, const char *key, uint64_t value)
{
    char text[17];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    json_str(w, key, text);
}

static void put_files(struct json_writer *w, const struct manifest_files *files)
{
    json_begin_object(w, "files");
    for (int i = 0; i < files->count; i++) {
        json_begin_object(w, files->file[i].name);
        json_uint(w, "bytes", files->file[i].bytes);
        put_hex(w, "checksum", files->file[i].checksum);
        json_end_object(w);
    }
    json_end_object(w);
}

enum plim_status manifest_write(const char *dir, const struct manifest_about *about,
                                const struct manifest_files *files, struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    char path[720];
    if (files->failed) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for the manifest", dir);
    struct json_writer w = json_object(&text, 2);
    json_int(&w, "format", MANIFEST_FORMAT);
    json_int(&w, "step", about->step);
    if (about->now)
        json_int(&w, "now", about->now);
    else
        json_null(&w, "now");
    json_str(&w, "machine", about->machine);
    json_begin_object(&w, "knobs");
    knobs_json(&w, about->knobs);
    json_end_object(&w);
    json_node(&w, "run", about->run);
    put_files(&w, files);
    put_hex(&w, "checksum", hash64(text.data, text.len, 0));
    json_end_object(&w);
    strbuf_addc(&text, '\n');
    snprintf(path, sizeof path, "%s/" NAME, dir);
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text.data, text.len, err);
    return status;
}

/* --- reading ---------------------------------------------------------------------------------------------- */

static enum plim_status damaged(const char *path, struct plim_error *err)
{
    return plim_fail(err, PLIM_BAD_INPUT, "%s: damaged: its checksum does not match", path);
}

/* Where the last key and the comma before it begin. */
static size_t sealed_bytes(const struct strbuf *text)
{
    static const char key[] = "\"checksum\"";
    size_t at = text->len;
    while (at > 0 && (text->len - at < sizeof key - 1 || memcmp(text->data + at, key, sizeof key - 1))) at--;
    while (at > 0 && strchr(" \n,", text->data[at - 1])) at--;
    return at;
}

enum plim_status manifest_read(const char *dir, struct doc **out, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    char path[720], seal[17];
    *out = NULL;
    snprintf(path, sizeof path, "%s/" NAME, dir);
    if (!file_exists(path)) return PLIM_OK;
    enum plim_status status = file_read(path, MANIFEST_MAX, &text, err);
    if (status == PLIM_OK) {
        struct plim_error why;
        snprintf(seal, sizeof seal, "%016" PRIx64, hash64(text.data, sealed_bytes(&text), 0));
        bool ends = text.len >= 3 && !memcmp(text.data + text.len - 3, "\n}\n", 3);
        if (!ends || json_parse(text.data, text.len, path, out, &why) != PLIM_OK ||
            strcmp(node_string(node_get(&(*out)->root, "checksum"), ""), seal))
            status = damaged(path, err);
        else if (node_int(node_get(&(*out)->root, "format"), 0) != MANIFEST_FORMAT)
            status =
                plim_fail(err, PLIM_BAD_INPUT,
                          "%s: is of format %lld, this program reads %d; use the version that wrote it", path,
                          (long long)node_int(node_get(&(*out)->root, "format"), 0), MANIFEST_FORMAT);
    }
    strbuf_release(&text);
    if (status != PLIM_OK) doc_free(*out), *out = NULL;
    return status;
}

/* trainer.json is small and says which step it is. */
static unsigned parts_of(const char *name)
{
    if (!strcmp(name, "trainer.json")) return MANIFEST_WEIGHTS | MANIFEST_STATE;
    return strncmp(name, "state/", 6) ? MANIFEST_WEIGHTS : MANIFEST_STATE;
}

static enum plim_status check_file(const char *dir, const struct node *entry, struct plim_error *err)
{
    char path[720], found[17];
    uint64_t checksum, bytes;
    int64_t wanted = node_int(node_get(entry, "bytes"), -1);
    snprintf(path, sizeof path, "%s/%s", dir, entry->key);
    if (!file_exists(path)) return plim_fail(err, PLIM_BAD_INPUT, "%s: damaged: it is missing", path);
    enum plim_status status = checksum_file(path, &checksum, &bytes, err);
    if (status != PLIM_OK) return status;
    if ((int64_t)bytes != wanted)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: damaged: it has %lld bytes and was saved with %lld", path,
                         (long long)bytes, (long long)wanted);
    snprintf(found, sizeof found, "%016" PRIx64, checksum);
    return strcmp(found, node_string(node_get(entry, "checksum"), "")) ? damaged(path, err) : PLIM_OK;
}

/* A name below the checkpoint's folder: nothing else is a checkpoint's file. */
static bool is_below(const char *name)
{
    return *name && *name != '/' && strlen(name) < MANIFEST_NAME && !strstr(name, "..");
}

enum plim_status manifest_check(const char *dir, const struct doc *manifest, unsigned parts, int rank,
                                int ranks, struct plim_error *err)
{
    const struct node *files = node_get(&manifest->root, "files");
    enum plim_status status = PLIM_OK;
    if (!files || files->kind != NODE_MAP)
        return plim_fail(err, PLIM_BAD_INPUT, "%s/" NAME ": damaged: it lists no files", dir);
    for (size_t i = 0; i < node_count(files) && status == PLIM_OK; i++) {
        const struct node *entry = node_item(files, i);
        if (!is_below(entry->key))
            status = plim_fail(err, PLIM_BAD_INPUT,
                               "%s/" NAME ": damaged: '%.60s' is no file of a checkpoint", dir, entry->key);
        else if (parts & parts_of(entry->key) && i % (size_t)ranks == (size_t)rank)
            status = check_file(dir, entry, err);
    }
    return status;
}
