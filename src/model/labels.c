/* labels.c - see labels.h. */
#include "model/labels.h"
#include "base/json.h"
#include "store/gguf.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* Keys are numbers in any order. */
static enum plim_status read_names(const struct node *map, const char *file, struct label_names *out,
                                   struct plim_error *err)
{
    for (size_t i = 0; i < node_count(map); i++) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        const char *name = node_string(node_get(map, key), NULL);
        if (!name)
            return plim_fail(err, PLIM_BAD_INPUT, "%s: key 'id2label': label %zu is missing or no text", file,
                             i);
        name = bump_copy(&out->store, name, strlen(name));
        if (!name || !string_list_add(&out->store, &out->list, name))
            return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for labels", file);
    }
    return PLIM_OK;
}

enum plim_status labels_load(const char *path, struct label_names *out, struct plim_error *err)
{
    STRBUF_AUTO file = STRBUF_INIT;
    struct doc *doc = NULL;
    struct stat st;
    *out = (struct label_names){0};
    if (gguf_is(path)) return PLIM_OK; /* which have no models with labels */
    strbuf_add(&file, path);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) strbuf_add(&file, "/config.json");
    enum plim_status status = strbuf_status(&file, err);
    if (status == PLIM_OK) status = json_load(strbuf_text(&file), &doc, err);
    const struct node *map = status == PLIM_OK ? node_get(&doc->root, "id2label") : NULL;
    if (map && map->kind == NODE_MAP) status = read_names(map, strbuf_text(&file), out, err);
    if (status != PLIM_OK) labels_release(out);
    doc_free(doc);
    return status;
}

void labels_release(struct label_names *names)
{
    bump_free(&names->store);
    *names = (struct label_names){0};
}
