/* sheet_parquet.c - the rows of a Parquet file as JSON lines.
 *
 * A column at a time has its values in pages; each column that is wanted has one page in memory, and rows are put together
 * from all of them by the levels of their entries: how much of the path to a value is there (definition), and which list of
 * the path goes on with it (repetition). Invariant: between two rows every column stands at an entry of level 0, or at its end.
 * The schema's depth is bounded, and so is the recursion. */
#include "base/json.h"
#include "data/parquet_column.h"
#include "data/sheet_part.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE_FIXED ((size_t)64 << 10)

struct parquet {
    int fd;
    struct parquet_meta meta;
    struct parquet_column *column; /* [columns] */
    int columns;
    int *of_leaf; /* [leaves]: its column; -1: it is not wanted */
    int group;    /* the next one */
    int64_t rows; /* left of the present group */
    struct strbuf line;
    size_t poured;
    size_t bytes;
};

/* --- opening -------------------------------------------------------------------------------------------------------- */

static bool is_plain(const struct parquet_meta *m, const struct parquet_node *n)
{
    for (const struct parquet_node *k = n; k < m->node + n->next; k++)
        if (!k->children && (k->type == PQ_INT96 || k->type == PQ_FIXED)) return false;
    return true;
}

/* Which leaves are read: those below a wanted column. With none wanted, all that can be. */
static void choose(const struct sheet *t, struct parquet *p)
{
    const struct parquet_meta *m = &p->meta;
    for (int i = 0; i < m->leaves; i++) p->of_leaf[i] = -1;
    for (int i = 1; i < m->nodes; i = m->node[i].next) {
        const struct parquet_node *n = &m->node[i];
        bool wanted = sheet_wants(t, n->name, strlen(n->name)) >= 0 && (t->want.count || is_plain(m, n));
        for (int k = i; wanted && k < n->next; k++)
            if (!m->node[k].children) p->of_leaf[m->node[k].leaf] = p->columns++;
    }
}

static enum plim_status check_names(const struct sheet *t, const struct parquet_meta *m,
                                    struct plim_error *err)
{
    const char **names = malloc((size_t)m->nodes * sizeof *names);
    int count = 0;
    if (!names) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a table", t->path);
    for (int i = 1; i < m->nodes; i = m->node[i].next) names[count++] = m->node[i].name;
    enum plim_status status = sheet_check_names(t, names, count, err);
    free(names);
    return status;
}

static enum plim_status open_column(struct sheet *t, struct parquet *p, int node, struct plim_error *err)
{
    const struct parquet_meta *m = &p->meta;
    const struct parquet_node *n = &m->node[node];
    struct parquet_sizes sizes = {0};
    enum plim_status status = PLIM_OK;
    for (int g = 0; g < m->groups && status == PLIM_OK; g++) {
        const struct parquet_chunk *chunk = &m->chunk[(size_t)g * (size_t)m->leaves + (size_t)n->leaf];
        status = parquet_column_measure(p->fd, t->path, n, chunk, &sizes, err);
    }
    if (status != PLIM_OK) return status;
    p->bytes += parquet_column_bytes(&sizes) + sizeof(struct parquet_column);
    p->line.most += 2 * (size_t)(sizes.page + sizes.dictionary);
    return parquet_column_open(p->fd, t->path, n, &sizes, &p->column[p->of_leaf[n->leaf]], err);
}

static enum plim_status open_parquet(struct sheet *t, const struct input_file *file, struct plim_error *err)
{
    struct parquet *p = t->state = calloc(1, sizeof *p);
    if (!p) return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a table", t->path);
    p->line.most = LINE_FIXED;
    p->fd = open(t->path, O_RDONLY | O_CLOEXEC);
    if (p->fd < 0)
        return plim_fail(err, PLIM_IO, "%s: cannot open the data file: %s", t->path, strerror(errno));
    enum plim_status status = parquet_meta_read(p->fd, file->bytes, t->path, &p->meta, err);
    if (status == PLIM_OK) status = check_names(t, &p->meta, err);
    if (status != PLIM_OK) return status;
    p->of_leaf = malloc((size_t)p->meta.leaves * sizeof *p->of_leaf);
    p->column = calloc((size_t)p->meta.leaves, sizeof *p->column);
    if (!p->of_leaf || !p->column)
        return plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory for a table", t->path);
    choose(t, p);
    for (int i = 1; i < p->meta.nodes && status == PLIM_OK; i++)
        if (!p->meta.node[i].children && p->of_leaf[p->meta.node[i].leaf] >= 0)
            status = open_column(t, p, i, err);
    p->bytes += sizeof *p + p->meta.store.total + 2 * p->line.most +
                (size_t)p->meta.leaves * (sizeof *p->of_leaf + sizeof *p->column) + PARQUET_FOOTER / 64;
    return status;
}

static void close_parquet(struct sheet *t)
{
    struct parquet *p = t->state;
    if (!p) return;
    for (int i = 0; p->column && i < p->meta.leaves; i++) parquet_column_close(&p->column[i]);
    if (p->fd >= 0) close(p->fd);
    strbuf_release(&p->line);
    parquet_meta_release(&p->meta);
    free(p->column), free(p->of_leaf), free(p);
}

static size_t parquet_bytes(const struct input_file *file) { return (size_t)file->sheet_bytes; }

size_t sheet_bytes_of(const struct sheet *t)
{
    return t->reader == &parquet_reader ? ((const struct parquet *)t->state)->bytes
                                        : t->reader->bytes_most(NULL);
}

/* --- rows ----------------------------------------------------------------------------------------------------------- */

/* State while one row is written. */
struct row {
    struct parquet *p;
    enum plim_status status;
    struct plim_error *err;
};

static struct parquet_column *column_of(const struct row *r, const struct parquet_node *n)
{
    return &r->p->column[r->p->of_leaf[n->leaf]];
}

static void advance(struct row *r, const struct parquet_node *n)
{
    const struct parquet_node *end = r->p->meta.node + n->next;
    for (const struct parquet_node *k = n; k < end && r->status == PLIM_OK; k++)
        if (!k->children) r->status = parquet_column_next(column_of(r, k), r->err);
}

static void put_value(struct strbuf *out, const struct parquet_column *c)
{
    char text[40];
    switch (c->leaf->type) {
    case PQ_BOOLEAN:
        strbuf_add(out, c->whole ? "true" : "false");
        break;
    case PQ_FLOAT:
    case PQ_DOUBLE:
        snprintf(text, sizeof text, c->leaf->type == PQ_FLOAT ? "%.9g" : "%.17g", c->real);
        strbuf_add(out, c->real - c->real == 0 ? text : "null");
        break;
    case PQ_BYTES:
        json_quote(out, c->text, c->len);
        break;
    default:
        strbuf_addf(out, "%" PRId64, c->whole);
    }
}

static void put_node(struct row *r, const struct parquet_node *n, bool as_item);

static void put_fields(struct row *r, const struct parquet_node *n)
{
    const struct parquet_node *nodes = r->p->meta.node;
    strbuf_addc(&r->p->line, '{');
    for (int i = (int)(n - nodes) + 1; i < n->next && r->status == PLIM_OK; i = nodes[i].next) {
        if (i > (int)(n - nodes) + 1) strbuf_addc(&r->p->line, ',');
        json_quote(&r->p->line, nodes[i].name, strlen(nodes[i].name));
        strbuf_addc(&r->p->line, ':');
        put_node(r, &nodes[i], false);
    }
    strbuf_addc(&r->p->line, '}');
}

/* A node that repeats: each time it, or its only child, is an item. */
static void put_list(struct row *r, const struct parquet_node *n)
{
    const struct parquet_column *c = column_of(r, n);
    bool first = true;
    strbuf_addc(&r->p->line, '[');
    if ((int)c->defined < n->definition) {
        advance(r, n);
    } else {
        do {
            if (!first) strbuf_addc(&r->p->line, ',');
            first = false;
            put_node(r, n->children == 1 ? n + 1 : n, n->children != 1);
        } while (r->status == PLIM_OK && c->here && (int)c->repeats >= n->repeats);
    }
    strbuf_addc(&r->p->line, ']');
}

/* as_item: one of a node's repetitions, not all of them. */
static void put_node(struct row *r, const struct parquet_node *n, bool as_item)
{
    const struct parquet_column *c = column_of(r, n);
    if (r->status != PLIM_OK) return;
    if (!c->here) {
        r->status =
            plim_fail(r->err, PLIM_BAD_INPUT, "%s: column '%s' ends before the others; get the file again",
                      c->path, c->leaf->name);
    } else if (n->repetition == PQ_REPEATED && !as_item) {
        put_list(r, n);
    } else if ((int)c->defined < n->definition) {
        strbuf_add(&r->p->line, "null");
        advance(r, n);
    } else if (!n->children) {
        put_value(&r->p->line, c);
        advance(r, n);
    } else if (n->list) {
        put_list(r, n + 1);
    } else {
        put_fields(r, n);
    }
}

static enum plim_status put_row(struct sheet *t, struct parquet *p, struct plim_error *err)
{
    struct row r = {p, PLIM_OK, err};
    bool any = false;
    strbuf_clear(&p->line);
    strbuf_addc(&p->line, '{');
    for (int i = 1; i < p->meta.nodes && r.status == PLIM_OK; i = p->meta.node[i].next) {
        const struct parquet_node *n = &p->meta.node[i];
        if (p->of_leaf[n->leaf] < 0) continue;
        if (any) strbuf_addc(&p->line, ',');
        any = true;
        json_quote(&p->line, n->name, strlen(n->name));
        strbuf_addc(&p->line, ':');
        put_node(&r, n, false);
    }
    strbuf_addc(&p->line, '}');
    if (r.status == PLIM_OK && p->line.failed)
        r.status = plim_fail(err, p->line.full ? PLIM_BAD_INPUT : PLIM_NO_MEMORY,
                             "%s: row %llu takes more than %zu bytes", t->path, (unsigned long long)t->line,
                             p->line.most);
    p->rows--, p->poured = 0, t->line++;
    return r.status;
}

static enum plim_status next_group(struct parquet *p, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    const struct parquet_meta *m = &p->meta;
    for (int i = 0; i < m->leaves && status == PLIM_OK; i++) {
        if (p->of_leaf[i] < 0) continue;
        struct parquet_column *c = &p->column[p->of_leaf[i]];
        parquet_column_begin(c, &m->chunk[(size_t)p->group * (size_t)m->leaves + (size_t)i]);
        status = parquet_column_next(c, err);
    }
    p->rows = m->rows[p->group++];
    return status;
}

static enum plim_status fill_parquet(struct sheet *t, struct plim_error *err)
{
    struct parquet *p = t->state;
    enum plim_status status = PLIM_OK;
    while (status == PLIM_OK && !sheet_full(t)) {
        if (p->poured < p->line.len) {
            size_t n = p->line.len - p->poured, room = SHEET_OUT + SHEET_STEP - 1 - t->out_len;
            if (n > room) n = room;
            sheet_put_text(t, p->line.data + p->poured, n);
            p->poured += n;
            if (p->poured == p->line.len) sheet_end_line(t);
        } else if (p->rows > 0) {
            status = put_row(t, p, err);
        } else if (p->group < p->meta.groups && p->columns) {
            status = next_group(p, err);
        } else {
            t->ended = true;
            break;
        }
    }
    return status;
}

const struct sheet_reader parquet_reader = {open_parquet, fill_parquet, close_parquet, parquet_bytes};
