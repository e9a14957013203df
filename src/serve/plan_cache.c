/* plan_cache.c - see plan_cache.h. */
#include "serve/plan_cache.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- the key ----------------------------------------------------------------------------------------------- */

static void add_file(struct strbuf *out, const char *path, const char *name)
{
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) return;
    strbuf_addf(out, " %s %lld %lld.%09ld", name, (long long)st.st_size, (long long)st.st_mtim.tv_sec,
                st.st_mtim.tv_nsec);
}

/* Adds the model's identity: its files by name, size and time. */
static void add_model(struct strbuf *out, const char *model)
{
    struct dirent **names;
    int n = scandir(model, &names, NULL, alphasort);
    if (n < 0) add_file(out, model, model);
    for (int i = 0; i < n; i++) {
        STRBUF_AUTO path = STRBUF_INIT;
        strbuf_addf(&path, "%s/%s", model, names[i]->d_name);
        add_file(out, strbuf_text(&path), names[i]->d_name);
        free(names[i]);
    }
    if (n >= 0) free(names);
}

void plan_key_make(struct plan_key *key, const char *model, const struct device *device,
                   const struct engine_options *o)
{
    const struct device_facts *facts = &device->facts;
    key->context = device->context;
    key->text = (struct strbuf)STRBUF_INIT;
    strbuf_addf(&key->text, "plimsoll %s; %s, %zu bytes, %d threads; ", PLIMSOLL_VERSION, facts->name,
                facts->memory_bytes, facts->threads);
    strbuf_addf(&key->text, "budget %lld %lld, context %lld, parallel %d, step %lld, queue %d, vocab %lld, ",
                (long long)o->budget, (long long)o->host_budget, (long long)o->max_context, o->parallel,
                (long long)o->step_tokens, o->queue, (long long)o->vocab);
    strbuf_addf(&key->text, "type %d %d, overhead %lld, beside %lld, window %lld, rung %d, %d%d%d%d%d;",
                (int)o->kv_type, (int)o->weights, (long long)o->overhead, (long long)o->caller_bytes,
                (long long)o->window, (int)o->first_rung, o->allow_kv8, o->allow_window, o->stream, o->exact,
                o->mixed);
    strbuf_addf(&key->text, "dtype %d, scratch %d%d;", o->dtype_given ? (int)o->dtype : -1,
                o->scratch != NULL, o->stream_last);
    strbuf_addf(&key->text, "adapters %d %d %d %d;", o->adapter_count, o->adapter_slots, o->adapter_rank,
                o->adapter_images);
    add_model(&key->text, model);
}

void plan_key_release(struct plan_key *key) { strbuf_release(&key->text); }

/* Both stay empty when there is no place for a cache. */
static void name_file(const struct plan_key *key, const char *kind, struct strbuf *folder,
                      struct strbuf *path)
{
    if (key->text.failed || !context_cache(key->context, folder)) return;
    strbuf_addf(path, "%s/%s-%016llx.json", strbuf_text(folder), kind,
                (unsigned long long)hash_text(strbuf_text(&key->text)));
}

/* --- the file ---------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t offset;
    int64_t least;
} numbers[] = {{"overhead", offsetof(struct kept_plan, overhead), 1},
               {"step", offsetof(struct kept_plan, offer.step), 1},
               {"parallel", offsetof(struct kept_plan, offer.requests), 1},
               {"context", offsetof(struct kept_plan, offer.context), 1},
               {"window", offsetof(struct kept_plan, offer.window), 0},
               {"share", offsetof(struct kept_plan, offer.share), 0},
               {"coded", offsetof(struct kept_plan, coded), 0}};
enum { NUMBERS = sizeof numbers / sizeof *numbers };

bool plan_cache_load(const struct plan_key *key, struct kept_plan *out)
{
    STRBUF_AUTO folder = STRBUF_INIT, path = STRBUF_INIT;
    struct doc *doc = NULL;
    bool good = false;
    *out = (struct kept_plan){0};
    name_file(key, "serve", &folder, &path);
    if (path.len && json_load(strbuf_text(&path), &doc, NULL) == PLIM_OK) {
        good = !strcmp(node_string(node_get(&doc->root, "key"), ""), strbuf_text(&key->text));
        for (int i = 0; i < NUMBERS; i++) {
            int64_t *value = (int64_t *)(void *)((char *)out + numbers[i].offset);
            good = good && node_is_whole(node_get(&doc->root, numbers[i].name), value) &&
                   *value >= numbers[i].least;
        }
        doc_free(doc);
    }
    return good;
}

/* Replaces the file of that kind; the object in `text` is whole. */
static void save(const struct plan_key *key, const char *kind, struct strbuf *text)
{
    STRBUF_AUTO folder = STRBUF_INIT, path = STRBUF_INIT;
    name_file(key, kind, &folder, &path);
    strbuf_addc(text, '\n');
    if (path.len && !text->failed && file_make_dirs(strbuf_text(&folder), NULL) == PLIM_OK)
        file_write_atomic(strbuf_text(&path), text->data, text->len, NULL);
    strbuf_release(text);
}

void plan_cache_save(const struct plan_key *key, const struct kept_plan *plan)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w = json_object(&text, 2);
    json_str(&w, "key", strbuf_text(&key->text));
    for (int i = 0; i < NUMBERS; i++)
        json_int(&w, numbers[i].name,
                 *(const int64_t *)(const void *)((const char *)plan + numbers[i].offset));
    json_end_object(&w);
    save(key, "serve", &text);
}

/* --- rungs ------------------------------------------------------------------------------------------------- */

static bool read_rung(const struct doc *doc, const struct plan_key *key, struct kept_rung *out)
{
    const char *name = node_string(node_get(&doc->root, "rung"), "");
    snprintf(out->name, sizeof out->name, "%s", name);
    return !strcmp(node_string(node_get(&doc->root, "key"), ""), strbuf_text(&key->text)) &&
           !strcmp(out->name, name) && node_is_whole(node_get(&doc->root, "free"), &out->free);
}

bool rung_cache_load(const struct plan_key *key, struct kept_rung *out, struct strbuf *file, bool *damaged)
{
    struct strbuf folder = STRBUF_INIT;
    struct doc *doc = NULL;
    *out = (struct kept_rung){0};
    name_file(key, "rung", &folder, file);
    strbuf_release(&folder);
    *damaged = false;
    if (!file->len || !file_exists(strbuf_text(file))) return false;
    bool good = json_load(strbuf_text(file), &doc, NULL) == PLIM_OK && read_rung(doc, key, out);
    doc_free(doc);
    *damaged = !good;
    return good;
}

void rung_cache_save(const struct plan_key *key, const struct kept_rung *rung)
{
    struct strbuf text = STRBUF_INIT;
    struct json_writer w = json_object(&text, 2);
    json_str(&w, "key", strbuf_text(&key->text));
    json_str(&w, "rung", rung->name);
    json_int(&w, "free", rung->free);
    json_end_object(&w);
    save(key, "rung", &text);
}

void rung_cache_forget(const struct plan_key *key)
{
    STRBUF_AUTO folder = STRBUF_INIT, path = STRBUF_INIT;
    name_file(key, "rung", &folder, &path);
    if (path.len) unlink(strbuf_text(&path));
}
