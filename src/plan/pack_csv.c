/* pack_csv.c - a header that says which field is which, then one item a line.
 *
 * A field number is looked up in a table of roles made from the header; numbers go to the member of
 * struct pack_item that the role names.
 */
#include "plan/pack_csv.h"
#include "base/number.h"
#include <inttypes.h>
#include <limits.h>
#include <string.h>

enum role { ROLE_ID, ROLE_LOWER, ROLE_UPPER, ROLE_SIZE, ROLE_OFFSET, ROLES };
enum { FIELDS_MOST = ROLES }; /* every column has a role of its own */

static const struct {
    const char *name, *alias;
} role_names[ROLES] = {
    [ROLE_ID] = {"id", "buffer"},   [ROLE_LOWER] = {"lower", "start"},    [ROLE_UPPER] = {"upper", "end"},
    [ROLE_SIZE] = {"size", "size"}, [ROLE_OFFSET] = {"offset", "offset"},
};

struct span {
    const char *text;
    size_t len;
};

struct reader {
    struct pack_csv *csv;
    const char *name;
    struct span rest; /* lines not yet read */
    int line;
    enum role role[FIELDS_MOST];
    int fields;
    struct plim_error *err;
};

static bool blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

static struct span trim(struct span s)
{
    while (s.len && blank(s.text[0])) s.text++, s.len--;
    while (s.len && blank(s.text[s.len - 1])) s.len--;
    return s;
}

static bool equals(struct span s, const char *word)
{
    return s.len == strlen(word) && !memcmp(s.text, word, s.len);
}

/* The text up to `end` or the end of *rest, without blanks; *rest moves on behind it. */
static struct span next(struct span *rest, char end)
{
    const char *stop = memchr(rest->text, end, rest->len);
    size_t len = stop ? (size_t)(stop - rest->text) : rest->len, skip = len + (stop != NULL);
    struct span got = {rest->text, len};
    rest->text += skip, rest->len -= skip;
    return trim(got);
}

/* The next line that holds something; false at the end. */
static bool next_line(struct reader *in, struct span *line)
{
    while (in->rest.len) {
        in->line++;
        *line = next(&in->rest, '\n');
        if (line->len) return true;
    }
    return false;
}

static int count_fields(struct span line)
{
    int count = 1;
    for (size_t i = 0; i < line.len; i++) count += line.text[i] == ',';
    return count;
}

/* --- the header ------------------------------------------------------------------------------------- */

static int role_of(struct span field)
{
    for (int role = 0; role < ROLES; role++)
        if (equals(field, role_names[role].name) || equals(field, role_names[role].alias)) return role;
    return -1;
}

static enum plim_status read_column(struct reader *in, struct span field, bool *seen)
{
    int role = role_of(field);
    if (role < 0)
        return plim_fail(in->err, PLIM_BAD_INPUT,
                         "%s:%d: column '%.*s' is not understood; write id, lower, upper, size (and offset)",
                         in->name, in->line, (int)(field.len < 60 ? field.len : 60), field.text);
    if (seen[role])
        return plim_fail(in->err, PLIM_BAD_INPUT, "%s:%d: there are two columns '%s'", in->name, in->line,
                         role_names[role].name);
    seen[role] = true;
    in->role[in->fields++] = (enum role)role;
    return PLIM_OK;
}

static enum plim_status read_header(struct reader *in)
{
    struct span line;
    bool seen[ROLES] = {false};
    if (!next_line(in, &line))
        return plim_fail(in->err, PLIM_BAD_INPUT, "%s:1: empty; the first line must be id,lower,upper,size",
                         in->name);
    for (int left = count_fields(line); left > 0; left--) {
        enum plim_status status = read_column(in, next(&line, ','), seen);
        if (status != PLIM_OK) return status;
    }
    for (int role = 0; role < ROLE_OFFSET; role++)
        if (!seen[role])
            return plim_fail(in->err, PLIM_BAD_INPUT,
                             "%s:%d: column '%s' is missing; the first line must be id,lower,upper,size",
                             in->name, in->line, role_names[role].name);
    in->csv->has_offsets = seen[ROLE_OFFSET];
    return PLIM_OK;
}

/* --- the rows ----------------------------------------------------------------------------------------- */

static enum plim_status read_field(struct reader *in, enum role role, struct span field)
{
    struct pack_csv *csv = in->csv;
    struct pack_item *item = &csv->items[csv->n];
    int64_t *number[ROLES] = {
        [ROLE_LOWER] = &item->lower,
        [ROLE_UPPER] = &item->upper,
        [ROLE_SIZE] = &item->size,
        [ROLE_OFFSET] = &item->offset,
    };
    if (role == ROLE_ID) {
        csv->ids[csv->n] = bump_copy(&csv->store, field.text, field.len);
        return csv->ids[csv->n] ? PLIM_OK : plim_fail(in->err, PLIM_NO_MEMORY, "%s: out of memory", in->name);
    }
    if (number_parse_int64(field.text, field.len, number[role])) return PLIM_OK;
    return plim_fail(in->err, PLIM_BAD_INPUT, "%s:%d: %s is '%.*s'; expected a whole number", in->name,
                     in->line, role_names[role].name, (int)(field.len < 60 ? field.len : 60), field.text);
}

static enum plim_status check_item(const struct reader *in, const struct pack_item *item)
{
    if (item->lower >= item->upper)
        return plim_fail(in->err, PLIM_BAD_INPUT,
                         "%s:%d: lower %" PRId64 " is not below upper %" PRId64 "; times are half-open",
                         in->name, in->line, item->lower, item->upper);
    if (item->size < 0 || item->offset < 0)
        return plim_fail(in->err, PLIM_BAD_INPUT, "%s:%d: %s is negative", in->name, in->line,
                         item->size < 0 ? "size" : "offset");
    return PLIM_OK;
}

static enum plim_status read_row(struct reader *in, struct span line)
{
    int fields = count_fields(line);
    if (fields != in->fields)
        return plim_fail(in->err, PLIM_BAD_INPUT, "%s:%d: %d fields; the header has %d", in->name, in->line,
                         fields, in->fields);
    for (int i = 0; i < fields; i++) {
        enum plim_status status = read_field(in, in->role[i], next(&line, ','));
        if (status != PLIM_OK) return status;
    }
    return check_item(in, &in->csv->items[in->csv->n++]);
}

/* There are no more items than line ends, and one line without. */
static bool make_room(struct pack_csv *csv, struct span text)
{
    size_t lines = 1;
    for (size_t i = 0; i < text.len; i++) lines += text.text[i] == '\n';
    if (lines > INT_MAX) return false;
    csv->items = bump_alloc(&csv->store, lines * sizeof *csv->items);
    csv->ids = bump_alloc(&csv->store, lines * sizeof *csv->ids);
    return csv->items && csv->ids;
}

enum plim_status pack_csv_read(struct pack_csv *csv, const char *name, const char *text, size_t len,
                               struct plim_error *err)
{
    static const char mark[] = "\xef\xbb\xbf";
    *csv = (struct pack_csv){.store = BUMP_INIT};
    struct reader in = {.csv = csv, .name = name, .rest = {text, len}, .err = err};
    if (len >= 3 && !memcmp(text, mark, 3)) in.rest = (struct span){text + 3, len - 3};
    enum plim_status status = PLIM_OK;
    if (!make_room(csv, in.rest)) status = plim_fail(err, PLIM_NO_MEMORY, "%s: out of memory", name);
    if (status == PLIM_OK) status = read_header(&in);
    for (struct span line; status == PLIM_OK && next_line(&in, &line);) status = read_row(&in, line);
    if (status != PLIM_OK) pack_csv_release(csv);
    return status;
}

void pack_csv_write(const struct pack_csv *csv, struct strbuf *out)
{
    strbuf_add(out, "id,lower,upper,size,offset\n");
    for (int i = 0; i < csv->n; i++) {
        const struct pack_item *it = &csv->items[i];
        strbuf_addf(out, "%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 "\n", csv->ids[i], it->lower,
                    it->upper, it->size, it->offset);
    }
}

void pack_csv_release(struct pack_csv *csv)
{
    bump_free(&csv->store);
    *csv = (struct pack_csv){.store = BUMP_INIT};
}
