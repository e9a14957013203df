/* origin.c - see origin.h: one origin per row of job_schema. */
#include "job/origin.h"
#include "base/json.h"
#include "base/schema_value.h"
#include "base/utf8.h"
#include "base/yaml.h"
#include "job/job.h"

#include <assert.h>
#include <string.h>

const char *origin_kind_name(enum origin_kind kind)
{
    static const char *const names[ORIGIN_KINDS] = {
        [ORIGIN_DEFAULT] = "default", [ORIGIN_PRESET] = "preset",
        [ORIGIN_DOTENV] = ".env",     [ORIGIN_ENVIRONMENT] = "environment",
        [ORIGIN_FILE] = "file",       [ORIGIN_SET] = "--set",
        [ORIGIN_FLAG] = "flag"};
    return names[kind];
}

static bool is_key(const struct schema_row *row) { return !row->alias && row->kind != SCHEMA_NOTHING; }

static const struct origin by_default = {ORIGIN_DEFAULT, "default", NULL};

static const struct origin *origin_of(const struct job *job, const struct schema_row *row)
{
    const struct origin *o = &job->origins[row - job_schema.rows];
    return o->kind == ORIGIN_DEFAULT ? &by_default : o;
}

const struct origin *job_origin(const struct job *job, const char *key)
{
    const struct schema_row *row = schema_find(&job_schema, key);
    return row ? origin_of(job, row) : &by_default;
}

bool job_key_given(const struct job *job, const char *key)
{
    return job_origin(job, key)->kind > ORIGIN_PRESET;
}

bool job_given(const struct job *job, const void *field)
{
    size_t offset = (size_t)((const char *)field - (const char *)job);
    const struct schema_row *row = job_schema.rows, *end = row + job_schema.count;
    while (row < end && (row->offset != offset || !is_key(row))) row++;
    assert(row < end); /* else it is no key's */
    return row < end && origin_of(job, row)->kind > ORIGIN_PRESET;
}

const char *job_key_name(const struct job *job, const char *key)
{
    const char *name = job_origin(job, key)->name;
    return name ? name : key;
}

/* ---- noting it ---- */

static void put(struct job *job, const struct schema_row *row, struct origin origin)
{
    job->origins[row - job_schema.rows] = origin;
}

static void hear_given(void *arg, const char *where, const struct schema_row *row, const char *path)
{
    struct origin_recorder *r = arg;
    if (r->outer && r->outer->given) r->outer->given(r->outer->arg, where, row, path);
    const char *copy = where ? bump_copy(&r->job->store, where, strlen(where)) : NULL;
    const char *name = strcmp(path, row->path) ? bump_copy(&r->job->store, path, strlen(path)) : NULL;
    if (where && !copy) copy = "an unknown place"; /* out of memory: it is given all the same */
    put(r->job, row, copy ? (struct origin){r->kind, copy, name} : by_default);
}

static void hear_note(void *arg, const char *where, const char *path, const char *note)
{
    const struct origin_recorder *r = arg;
    if (r->outer && r->outer->say) r->outer->say(r->outer->arg, where, path, note);
}

static void hear_wrong(void *arg, const char *text)
{
    const struct origin_recorder *r = arg;
    if (r->outer && r->outer->wrong) r->outer->wrong(r->outer->arg, text);
}

const struct schema_listener *origin_record(struct origin_recorder *recorder, struct job *job,
                                            enum origin_kind kind, const struct schema_listener *outer)
{
    *recorder = (struct origin_recorder){
        {.say = hear_note, .arg = recorder, .given = hear_given, .wrong = hear_wrong}, job, outer, kind};
    return &recorder->listener;
}

void job_origin_set_as(struct job *job, const char *key, enum origin_kind kind, const char *where,
                       const char *name)
{
    const struct schema_row *row = schema_find(&job_schema, key);
    const char *copy = bump_copy(&job->store, where, strlen(where));
    if (name) name = bump_copy(&job->store, name, strlen(name));
    if (row && copy) put(job, row, (struct origin){kind, copy, name});
}

void job_origin_set(struct job *job, const char *key, enum origin_kind kind, const char *where)
{
    job_origin_set_as(job, key, kind, where, NULL);
}

/* The origin of a key that has its value because `from` was given. */
static struct origin follow(const struct job *job, const char *from)
{
    const struct schema_row *other = schema_find(&job_schema, from);
    struct origin o = *origin_of(job, other);
    if (!o.name) o.name = other->path;
    return o;
}

void job_origin_follow(struct job *job, const char *key, const char *from)
{
    put(job, schema_find(&job_schema, key), follow(job, from));
}

/* ---- telling it ---- */

/* Keys that have a value: given, or with a default. */
static bool has_value(const struct job *job, const struct schema_row *row)
{
    return is_key(row) && (origin_of(job, row)->kind != ORIGIN_DEFAULT || (row->fallback && *row->fallback));
}

/* "job.yaml:7", "job.yaml:7, as training.max_steps" */
static void put_where(const struct origin *o, struct strbuf *out)
{
    strbuf_add(out, o->where);
    if (o->name) strbuf_addf(out, ", as %s", o->name);
}

/* A row's value as `write` puts it, and its origin. Steps may be those that an epoch makes of them. */
static struct origin put_setting(const struct job *job, const struct job_length *length,
                                 const struct schema_row *row,
                                 void (*write)(const struct schema_row *, const void *, struct strbuf *),
                                 struct strbuf *out)
{
    static const struct job_length unknown;
    if (!length) length = &unknown;
    const struct job_training *t = &job->training;
    const struct {
        const int64_t *field, *value;
        const char *from;
        bool counts;
    } steps[] = {
        {&t->steps, &length->steps, "training.epochs", t->epochs > 0},
        {&t->eval_every, &length->eval_every, "training.eval_strategy", t->eval_strategy == EVERY_EPOCH},
        {&t->save_every, &length->save_every, "training.save_strategy", t->save_strategy == EVERY_EPOCH},
    };
    for (int i = 0; length->epoch.rows && i < 3; i++) {
        if (!steps[i].counts || (const char *)job + row->offset != (const char *)steps[i].field) continue;
        strbuf_addf(out, "%lld", (long long)*steps[i].value);
        return follow(job, steps[i].from);
    }
    write(row, job, out);
    return *origin_of(job, row);
}

void job_settings_text(const struct job *job, const struct job_length *length, bool all, struct strbuf *out)
{
    for (size_t i = 0; i < job_schema.count; i++) {
        const struct schema_row *row = &job_schema.rows[i];
        STRBUF_AUTO value = STRBUF_INIT;
        if (!has_value(job, row)) continue;
        struct origin o = put_setting(job, length, row, schema_value, &value);
        if (all || o.kind != ORIGIN_DEFAULT) {
            strbuf_addf(out, "  %-38s %-24s ", row->path, strbuf_text(&value));
            put_where(&o, out);
            strbuf_addc(out, '\n');
        }
    }
}

void job_settings_json(const struct job *job, const struct job_length *length, struct json_writer *w)
{
    json_begin_object(w, "settings");
    for (size_t i = 0; i < job_schema.count; i++) {
        const struct schema_row *row = &job_schema.rows[i];
        STRBUF_AUTO value = STRBUF_INIT;
        if (!has_value(job, row)) continue;
        struct origin o = put_setting(job, length, row, schema_exact, &value);
        json_begin_object(w, row->path);
        json_str(w, "value", strbuf_text(&value));
        json_str(w, "from", origin_kind_name(o.kind));
        if (o.kind != ORIGIN_DEFAULT) json_str(w, "where", o.where);
        if (o.name) json_str(w, "as", o.name);
        json_end_object(w);
    }
    json_end_object(w);
}

/* ---- as YAML ---- */

/* A character that YAML ends lines at, or does not have: controls of both kinds, separators, marks of byte order. */
static bool is_odd(uint32_t point)
{
    return point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x2028 || point == 0x2029 ||
           point == 0xfeff || point == 0xfffe || point == 0xffff;
}

void origin_put_comment(struct strbuf *out, const char *text, size_t len)
{
    uint32_t point;
    for (size_t at = 0, n; at < len; at += n) {
        bool good = (n = utf8_decode(text + at, len - at, &point)) > 0 && !is_odd(point);
        if (!n) n = 1;
        strbuf_addn(out, good ? text + at : " ", good ? n : 1);
    }
}

/* In double quotes, with escapes where a character has no place in a file. */
static void put_quoted(struct strbuf *out, const char *text, size_t len)
{
    uint32_t point;
    strbuf_addc(out, '"');
    for (size_t at = 0, n; at < len; at += n) {
        n = utf8_decode(text + at, len - at, &point);
        if (!n) n = 1, point = 0xfffd;
        if (point == '"' || point == '\\')
            strbuf_addf(out, "\\%c", (int)point);
        else if (is_odd(point) || point == 0xfffd)
            strbuf_addf(out, "\\u%04x", (unsigned)point);
        else
            strbuf_addn(out, text + at, n);
    }
    strbuf_addc(out, '"');
}

/* Without quotes where that is read as the same text. */
static void put_text(struct strbuf *out, const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./-";
    struct node node;
    size_t len = strlen(text);
    yaml_scalar(text, len, &node);
    if (len && node.kind == NODE_STRING && strspn(text, plain) == len && *text != '-')
        strbuf_add(out, text);
    else
        put_quoted(out, text, len);
}

static void put_list(struct strbuf *out, const struct string_list *list)
{
    strbuf_addc(out, '[');
    for (size_t i = 0; i < list->count; i++) {
        strbuf_add(out, i ? ", " : "");
        put_text(out, list->items[i]);
    }
    strbuf_addc(out, ']');
}

static void put_value(struct strbuf *out, const struct schema_row *row, const struct job *job)
{
    const void *field = (const char *)job + row->offset;
    if (row->kind == SCHEMA_STRING)
        put_text(out, *(const char *const *)field ? *(const char *const *)field : "");
    else if (row->kind == SCHEMA_STRING_LIST)
        put_list(out, field);
    else if (row->kind == SCHEMA_BYTES && row->names && !*(const uint64_t *)field)
        strbuf_add(out, row->names[0]);
    else
        schema_exact(row, job, out);
}

struct yaml_out {
    const struct job *job;
    bool all;
    struct strbuf *out;
};

static bool is_shown(const struct yaml_out *y, const struct schema_row *row)
{
    return has_value(y->job, row) && (y->all || origin_of(y->job, row)->kind != ORIGIN_DEFAULT);
}

static void put_line(const struct yaml_out *y, const struct schema_row *row, size_t indent, const char *name)
{
    const struct origin *o = origin_of(y->job, row);
    size_t start = y->out->len;
    strbuf_pad(y->out, ' ', indent);
    if (o->kind == ORIGIN_DEFAULT) strbuf_add(y->out, "# ");
    strbuf_addf(y->out, "%s: ", name);
    put_value(y->out, row, y->job);
    size_t width = y->out->len - start;
    strbuf_pad(y->out, ' ', width < 44 ? 44 - width : 1);
    strbuf_add(y->out, "# ");
    struct strbuf where = STRBUF_INIT;
    put_where(o, &where);
    origin_put_comment(y->out, strbuf_text(&where), where.len);
    strbuf_release(&where);
    strbuf_addc(y->out, '\n');
}

/* Is this row the first one shown whose key begins with the prefix and the next part of its own? */
static bool opens_section(const struct yaml_out *y, size_t index, size_t len)
{
    const char *path = job_schema.rows[index].path;
    for (size_t i = 0; i < index; i++)
        if (is_shown(y, &job_schema.rows[i]) && !strncmp(job_schema.rows[i].path, path, len)) return false;
    return true;
}

/* Keys whose path begins with the first `len` letters of `prefix`: their own first, then the sections below. */
static void put_section(const struct yaml_out *y, const char *prefix, size_t len, size_t indent)
{
    for (int below = 0; below < 2; below++)
        for (size_t i = 0; i < job_schema.count; i++) {
            const struct schema_row *row = &job_schema.rows[i];
            if (strncmp(row->path, prefix, len) || !is_shown(y, row)) continue;
            const char *name = row->path + len, *dot = strchr(name, '.');
            size_t whole = dot ? (size_t)(dot - row->path) + 1 : 0;
            if (!below && !dot) put_line(y, row, indent, name);
            if (!below || !dot || !opens_section(y, i, whole)) continue;
            strbuf_pad(y->out, ' ', indent);
            strbuf_addf(y->out, "%.*s:\n", (int)(dot - name), name);
            put_section(y, row->path, whole, indent + 2);
        }
}

void job_settings_yaml(const struct job *job, bool all, struct strbuf *out)
{
    struct yaml_out y = {job, all, out};
    put_section(&y, "", 0, 0);
}
