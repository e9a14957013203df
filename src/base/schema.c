/* schema.c - walking a tree beside the table.
 *
 * A key is known when a row has its full dotted path; a map is descended when it is a section, that is when
 * some row's path begins with it, or when it is unknown, so that the error can name the full key. A row may be
 * given under several of its names while the values agree.
 */
#include "base/schema.h"
#include "base/schema_value.h"
#include <stdio.h>
#include <string.h>

struct reading {
    const struct schema *schema;
    const char *name;
    void *target;
    struct bump *store;
    const struct schema_listener *listener;
    struct plim_error *err;          /* of the present key */
    struct plim_error wrong;         /* the last key that is wrong; status PLIM_OK: none is */
    const struct schema_row **given; /* per row, the name it was first given under; NULL: not given */
    struct strbuf path;
};

static const struct schema_row *find_row(const struct schema *schema, const char *path)
{
    for (size_t i = 0; i < schema->count; i++)
        if (strcmp(schema->rows[i].path, path) == 0) return &schema->rows[i];
    return NULL;
}

/* Aliases are one step: a row that an alias names is no alias itself. */
static const struct schema_row *real_row(const struct schema *schema, const struct schema_row *row)
{
    return row && row->alias ? find_row(schema, row->alias) : row;
}

const struct schema_row *schema_find(const struct schema *schema, const char *path)
{
    return real_row(schema, find_row(schema, path));
}

static bool is_section(const struct schema *schema, const char *path)
{
    size_t len = strlen(path);
    for (size_t i = 0; i < schema->count; i++)
        if (strncmp(schema->rows[i].path, path, len) == 0 && schema->rows[i].path[len] == '.') return true;
    return false;
}

enum plim_status schema_unknown(const struct schema *schema, const char *where, const char *path,
                                struct plim_error *err)
{
    const char *guess = schema_guess(schema, path);
    if (guess)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: unknown key '%.200s'; did you mean '%s'?", where, path,
                         guess);
    return plim_fail(err, PLIM_BAD_INPUT, "%s: unknown key '%.200s'", where, path);
}

static void set_flag(const struct schema_row *row, void *target, bool given)
{
    if (row->flag) *(bool *)((char *)target + row->flag - 1) = given;
}

/* A key without a default that nobody gives leaves its field empty. */
static void clear_field(const struct schema_row *row, void *target)
{
    static const size_t sizes[SCHEMA_KINDS] = {[SCHEMA_BOOL] = sizeof(bool),
                                               [SCHEMA_INT] = sizeof(int),
                                               [SCHEMA_INT64] = sizeof(int64_t),
                                               [SCHEMA_FLOAT] = sizeof(double),
                                               [SCHEMA_STRING] = sizeof(const char *),
                                               [SCHEMA_ENUM] = sizeof(int),
                                               [SCHEMA_BYTES] = sizeof(uint64_t),
                                               [SCHEMA_STRING_LIST] = sizeof(struct string_list),
                                               [SCHEMA_INT_LIST] = sizeof(struct schema_ints),
                                               [SCHEMA_FLOAT_LIST] = sizeof(struct schema_floats),
                                               [SCHEMA_NODE] = sizeof(const struct node *)};
    memset((char *)target + row->offset, 0, sizes[row->kind]);
}

static enum plim_status put_default(const struct schema_row *row, void *target, struct bump *store,
                                    struct plim_error *err)
{
    struct node node;
    set_flag(row, target, false);
    if (row->alias) return PLIM_OK;
    if (!row->fallback) return clear_field(row, target), PLIM_OK;
    enum plim_status status = schema_text_node(row, row->fallback, store, &node, err);
    if (status == PLIM_OK && node.kind != NODE_NULL) status = schema_store(row, &node, target, store, err);
    return status;
}

enum plim_status schema_defaults(const struct schema *schema, void *target, struct bump *store,
                                 struct plim_error *err)
{
    for (size_t i = 0; i < schema->count; i++) {
        enum plim_status status = put_default(&schema->rows[i], target, store, err);
        if (status == PLIM_NO_MEMORY) return status;
        if (status != PLIM_OK) {
            plim_error_prefix(err, "default of key '%s'", schema->rows[i].path);
            if (err) err->status = PLIM_BUG;
            return PLIM_BUG;
        }
    }
    return PLIM_OK;
}

/* Store one given value; null means "not given": back to the default. */
static enum plim_status apply(const struct schema *schema, const struct schema_row *named, const char *where,
                              const struct node *node, void *target, struct bump *store,
                              const struct schema_listener *listener, struct plim_error *err)
{
    const struct schema_row *row = real_row(schema, named);
    if (!row) return plim_fail(err, PLIM_BUG, "key '%s' is an alias of nothing", named->path);
    enum plim_status status = node->kind == NODE_NULL ? put_default(row, target, store, err)
                                                      : schema_store(row, node, target, store, err);
    if (status != PLIM_OK) {
        plim_error_prefix(err, "%s: key '%s'", where, named->path);
        return status;
    }
    if (node->kind != NODE_NULL) set_flag(row, target, true);
    if (listener && listener->given)
        listener->given(listener->arg, node->kind == NODE_NULL ? NULL : where, row, named->path);
    const char *note = named->note ? named->note : row->note;
    if (note && listener && listener->say) listener->say(listener->arg, where, named->path, note);
    return PLIM_OK;
}

/* A row under a second name: the value must be the one it has. */
static enum plim_status read_again(struct reading *r, const struct schema_row *named, const char *where,
                                   const struct node *node)
{
    const struct schema_row *row = real_row(r->schema, named), *first = r->given[row - r->schema->rows];
    struct strbuf before = STRBUF_INIT, after = STRBUF_INIT;
    schema_exact(row, r->target, &before);
    enum plim_status status = apply(r->schema, named, where, node, r->target, r->store, r->listener, r->err);
    schema_exact(row, r->target, &after);
    if (status == PLIM_OK) status = strbuf_status(&before, r->err);
    if (status == PLIM_OK) status = strbuf_status(&after, r->err);
    if (status == PLIM_OK && strcmp(strbuf_text(&before), strbuf_text(&after)) != 0)
        status =
            plim_fail(r->err, PLIM_BAD_INPUT, "%s: key '%s' is %s, but '%s', which means the same, is %s",
                      where, named->path, strbuf_text(&after), first->path, strbuf_text(&before));
    strbuf_release(&before);
    strbuf_release(&after);
    return status;
}

static enum plim_status read_value(struct reading *r, const struct schema_row *named, const struct node *node)
{
    char where[512];
    const struct schema_row *row = real_row(r->schema, named);
    snprintf(where, sizeof where, "%.400s:%d", r->name, node->line);
    if (row && r->given[row - r->schema->rows])
        return node->kind == NODE_NULL ? PLIM_OK : read_again(r, named, where, node);
    if (row && node->kind != NODE_NULL) r->given[row - r->schema->rows] = named;
    return apply(r->schema, named, where, node, r->target, r->store, r->listener, r->err);
}

static enum plim_status read_map(struct reading *r, const struct node *map, bool known);

/* The child whose full key is r->path. */
static enum plim_status read_child(struct reading *r, const struct node *child)
{
    const char *path = strbuf_text(&r->path);
    const struct schema_row *row = find_row(r->schema, path);
    bool section = is_section(r->schema, path);
    if (r->listener && r->listener->foreign && r->listener->foreign(path, child)) return PLIM_OK;
    if (row && !(section && child->kind == NODE_MAP)) return read_value(r, row, child);
    if (child->kind == NODE_MAP && (section || node_count(child) > 0)) return read_map(r, child, section);
    if (section && child->kind == NODE_NULL) return PLIM_OK;
    char where[512];
    snprintf(where, sizeof where, "%.400s:%d", r->name, child->line);
    if (section)
        return plim_fail(r->err, PLIM_BAD_INPUT,
                         "%s: key '%.200s': expected a section with keys of its own, found a %s", where, path,
                         node_kind_name(child->kind));
    return schema_unknown(r->schema, where, path, r->err);
}

/* A wrong key is told when the next one comes; the last is the caller's error. */
static void tell_wrong(const struct reading *r)
{
    const struct schema_listener *l = r->listener;
    if (r->wrong.status != PLIM_OK && l && l->wrong) l->wrong(l->arg, r->wrong.text);
}

/* An unknown section is reported once, by its first key. */
static enum plim_status read_map(struct reading *r, const struct node *map, bool known)
{
    size_t before = r->path.len;
    for (size_t i = 0; i < node_count(map); i++) {
        const struct node *child = node_item(map, i);
        if (before) strbuf_addc(&r->path, '.');
        strbuf_add(&r->path, child->key);
        enum plim_status status = strbuf_status(&r->path, r->err);
        if (status == PLIM_OK) status = read_child(r, child);
        if (status == PLIM_BAD_INPUT && known) {
            tell_wrong(r);
            r->wrong = *r->err;
            status = PLIM_OK;
        }
        if (status != PLIM_OK) return status;
        strbuf_truncate(&r->path, before);
    }
    return PLIM_OK;
}

enum plim_status schema_read(const struct schema *schema, const struct node *root, const char *name,
                             void *target, struct bump *store, const struct schema_listener *listener,
                             struct plim_error *err)
{
    if (root->kind == NODE_NULL) return PLIM_OK;
    if (root->kind != NODE_MAP)
        return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: expected keys and values, found a %s", name, root->line,
                         node_kind_name(root->kind));
    struct plim_error present = {0};
    struct reading r = {.schema = schema,
                        .name = name,
                        .target = target,
                        .store = store,
                        .listener = listener,
                        .err = &present,
                        .given = bump_alloc(store, schema->count * sizeof *r.given)};
    if (!r.given) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    enum plim_status status = read_map(&r, root, true);
    strbuf_release(&r.path);
    if (status == PLIM_OK && r.wrong.status != PLIM_OK) status = PLIM_BAD_INPUT, present = r.wrong;
    if (status != PLIM_OK && err) *err = present;
    return status;
}

enum plim_status schema_set_from(const struct schema *schema, const char *where, const char *path,
                                 const char *value, void *target, struct bump *store,
                                 const struct schema_listener *listener, struct plim_error *err)
{
    const struct schema_row *named = find_row(schema, path), *row = real_row(schema, named);
    struct node node;
    if (!named) return schema_unknown(schema, where, path, err);
    if (!row) return plim_fail(err, PLIM_BUG, "key '%s' is an alias of nothing", path);
    enum plim_status status = schema_text_node(row, value, store, &node, err);
    if (status != PLIM_OK) {
        plim_error_prefix(err, "%s: key '%s'", where, path);
        return status;
    }
    return apply(schema, named, where, &node, target, store, listener, err);
}

enum plim_status schema_set(const struct schema *schema, const char *path, const char *value, void *target,
                            struct bump *store, const struct schema_listener *listener,
                            struct plim_error *err)
{
    return schema_set_from(schema, "--set", path, value, target, store, listener, err);
}

enum plim_status schema_assign(const struct schema *schema, const char *assignment, void *target,
                               struct bump *store, const struct schema_listener *listener,
                               struct plim_error *err)
{
    const char *equals = strchr(assignment, '=');
    if (!equals || equals == assignment)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "--set '%.200s': expected key=value; write e.g. training.batch_size=8", assignment);
    const char *path = bump_copy(store, assignment, (size_t)(equals - assignment));
    if (!path) return plim_fail(err, PLIM_NO_MEMORY, "--set: out of memory");
    return schema_set(schema, path, equals + 1, target, store, listener, err);
}
