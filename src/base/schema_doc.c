/* schema_doc.c - the table as Markdown. */
#include "base/schema_value.h"
#include <string.h>

/* Text for a cell: the column mark is escaped. */
static void add_cell(struct strbuf *out, const char *text)
{
    for (; text && *text; text++) {
        if (*text == '|') strbuf_addc(out, '\\');
        strbuf_addc(out, *text == '\n' ? ' ' : *text);
    }
}

static size_t section_length(const char *path)
{
    const char *dot = strchr(path, '.');
    return dot ? (size_t)(dot - path) : 0;
}

static bool same_section(const char *a, const char *b)
{
    size_t n = section_length(a);
    return n == section_length(b) && memcmp(a, b, n) == 0;
}

static bool is_plain(const struct schema_row *row) { return !row->alias && row->kind != SCHEMA_NOTHING; }

static bool first_of_section(const struct schema *schema, size_t index)
{
    for (size_t i = 0; i < index; i++)
        if (is_plain(&schema->rows[i]) && same_section(schema->rows[i].path, schema->rows[index].path))
            return false;
    return true;
}

static void add_row(const struct schema_row *row, struct strbuf *out)
{
    struct strbuf type = STRBUF_INIT;
    schema_type(row, &type);
    strbuf_addf(out, "| `%s` | ", row->path);
    add_cell(out, strbuf_text(&type));
    strbuf_add(out, " | ");
    if (row->fallback && *row->fallback) {
        strbuf_addc(out, '`');
        add_cell(out, row->fallback);
        strbuf_addc(out, '`');
    }
    strbuf_add(out, " | ");
    add_cell(out, row->help);
    strbuf_add(out, " |\n");
    strbuf_release(&type);
}

static void add_section(const struct schema *schema, const char *path, struct strbuf *out)
{
    size_t len = section_length(path);
    strbuf_addf(out, "## %.*s\n\n| key | value | default | meaning |\n|---|---|---|---|\n",
                len ? (int)len : 7, len ? path : "General");
    for (size_t i = 0; i < schema->count; i++)
        if (is_plain(&schema->rows[i]) && same_section(schema->rows[i].path, path))
            add_row(&schema->rows[i], out);
    strbuf_addc(out, '\n');
}

static void add_aliases(const struct schema *schema, struct strbuf *out)
{
    bool any = false;
    for (size_t i = 0; i < schema->count; i++) {
        const struct schema_row *row = &schema->rows[i];
        if (!row->alias) continue;
        if (!any) strbuf_add(out, "## Other names\n\n| name | stands for |\n|---|---|\n");
        any = true;
        strbuf_addf(out, "| `%s` | `%s` |\n", row->path, row->alias);
    }
    if (any) strbuf_addc(out, '\n');
}

static void add_needless(const struct schema *schema, struct strbuf *out)
{
    bool any = false;
    for (size_t i = 0; i < schema->count; i++) {
        const struct schema_row *row = &schema->rows[i];
        if (row->alias || row->kind != SCHEMA_NOTHING) continue;
        if (!any) strbuf_add(out, "## Accepted without effect\n\n| key | why |\n|---|---|\n");
        any = true;
        strbuf_addf(out, "| `%s` | ", row->path);
        add_cell(out, row->note ? row->note : row->help);
        strbuf_add(out, " |\n");
    }
    if (any) strbuf_addc(out, '\n');
}

void schema_markdown(const struct schema *schema, struct strbuf *out)
{
    for (size_t i = 0; i < schema->count; i++)
        if (is_plain(&schema->rows[i]) && first_of_section(schema, i))
            add_section(schema, schema->rows[i].path, out);
    add_aliases(schema, out);
    add_needless(schema, out);
}
