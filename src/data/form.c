/* form.c - see form.h. A table of magic numbers, then one rule for each kind of text, the surest first. A rule that looks at
 * several lines takes whole ones only: the last line of the head is cut off wherever the head ends. */
#include "data/form.h"
#include "store/token_file.h"

#include <ctype.h>
#include <string.h>

#define FEW_LINES 32 /* that a rule looks at */

static const char *const names[] = {"text",         "JSON lines", "tokens",         "CSV",
                                    "a JSON array", "CoNLL data", "a Parquet file", "binary data"};

const char *form_name(enum data_form form) { return names[form]; }

bool form_is_sheet(enum data_form form) { return form >= FORM_CSV && form <= FORM_PARQUET; }

static bool ends_with(const char *text, size_t len, const char *suffix)
{
    size_t n = strlen(suffix);
    return len >= n && !memcmp(text + len - n, suffix, n);
}

bool form_name_ends(const char *path, const char *suffix)
{
    size_t len = strlen(path);
    if (ends_with(path, len, ".gz"))
        len -= 3;
    else if (ends_with(path, len, ".zst"))
        len -= 4;
    return ends_with(path, len, suffix);
}

static bool name_is_one_of(const char *path, const char *const *suffixes)
{
    for (; *suffixes; suffixes++)
        if (form_name_ends(path, *suffixes)) return true;
    return false;
}

/* --- what is not text ---------------------------------------------------------------------------------------------- */

#define UNPACK  "unpack it and give the files inside"
#define INFLATE "decompress it, or compress it with gzip or zstd instead"
#define NO_DATA "give text, JSON lines, CSV, Parquet or token files"
#define RESAVE  "save it as Parquet or JSON lines"

struct magic {
    unsigned short at, len;
    const char *bytes, *what, *advice;
};

static const struct magic magics[] = {
    {0, 6, "ARROW1", "an Arrow file", RESAVE},
    {0, 4, "\xff\xff\xff\xff", "an Arrow stream", RESAVE},
    {0, 4, "FEA1", "a Feather file", RESAVE},
    {0, 4, "Obj\x01", "an Avro file", RESAVE},
    {0, 8, "\x89HDF\r\n\x1a\n", "an HDF5 file", RESAVE},
    {0, 16, "SQLite format 3", "a SQLite database", RESAVE},
    {0, 6, "\x93NUMPY", "a NumPy array", RESAVE},
    {0, 4, "PK\x03\x04", "a ZIP archive", UNPACK},
    {0, 4, "PK\x05\x06", "a ZIP archive", UNPACK},
    {0, 6, "7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK},
    {0, 6, "Rar!\x1a\x07", "a RAR archive", UNPACK},
    {257, 5, "ustar", "a tar archive", UNPACK},
    {0, 6, "\xfd\x37zXZ", "xz data", INFLATE},
    {0, 4, "\x04\x22\x4d\x18", "LZ4 data", INFLATE},
    {0, 4, "GGUF", "a GGUF model", NO_DATA},
    {0, 4, "\x7f\x45LF", "a program (ELF)", NO_DATA},
    {0, 8, "\x89PNG\r\n\x1a\n", "a PNG picture", NO_DATA},
    {0, 3, "\xff\xd8\xff", "a JPEG picture", NO_DATA},
    {0, 6, "GIF89a", "a GIF picture", NO_DATA},
    {0, 5, "%PDF-", "a PDF document", "extract its text first"},
    {0, 4, "\xff\xfe\0\0", "UTF-32 text", "convert it: iconv -f UTF-32 -t UTF-8"},
    {0, 2, "\xff\xfe", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
    {0, 2, "\xfe\xff", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8"},
};

/* Short magic numbers that text could begin with count beside other bytes that no text has. */
static const struct magic weak_magics[] = {
    {0, 3, "BZh", "bzip2 data", INFLATE},          {0, 3, "ORC", "an ORC file", RESAVE},
    {0, 2, "MZ", "a program (Windows)", NO_DATA},  {0, 4, "RIFF", "a sound or picture (RIFF)", NO_DATA},
    {0, 4, "OggS", "a sound (Ogg)", NO_DATA},      {0, 3, "ID3", "a sound (MP3)", NO_DATA},
    {0, 2, "\x80\x02", "a Python pickle", RESAVE}, {0, 2, "\x80\x03", "a Python pickle", RESAVE},
    {0, 2, "\x80\x04", "a Python pickle", RESAVE}, {0, 2, "\x80\x05", "a Python pickle", RESAVE},
};

static const struct magic *find_magic(const struct magic *list, size_t count, const char *head, size_t n)
{
    for (const struct magic *m = list; m < list + count; m++)
        if (n >= (size_t)m->at + m->len && !memcmp(head + m->at, m->bytes, m->len)) return m;
    return NULL;
}

/* A length of 64 bits and then a JSON object. */
static bool is_safetensors(const char *head, size_t n)
{
    return n > 9 && head[8] == '{' && (head[9] == '"' || head[9] == '}') && !head[5] && !head[6] && !head[7];
}

static bool has_control_bytes(const char *head, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)head[i] < 8 || (head[i] > 13 && head[i] < 27)) return true;
    return false;
}

static bool is_binary(const char *head, size_t n, struct form_guess *out)
{
    const struct magic *m = find_magic(magics, sizeof magics / sizeof *magics, head, n);
    if (!m && has_control_bytes(head, n))
        m = find_magic(weak_magics, sizeof weak_magics / sizeof *weak_magics, head, n);
    if (m)
        *out = (struct form_guess){FORM_REFUSED, m->what, m->advice};
    else if (is_safetensors(head, n))
        *out = (struct form_guess){FORM_REFUSED, "a safetensors file", NO_DATA};
    else if (n && memchr(head, 0, n))
        *out = (struct form_guess){FORM_REFUSED, "binary data", NO_DATA};
    else
        return false;
    return true;
}

/* --- JSON ---------------------------------------------------------------------------------------------------------- */

static size_t skip_blank(const char *head, size_t n, size_t at)
{
    while (at < n && (head[at] == ' ' || head[at] == '\t' || head[at] == '\n' || head[at] == '\r')) at++;
    return at;
}

/* An object at `at`, with a key or empty. */
static bool opens_object(const char *head, size_t n, size_t at)
{
    size_t key = skip_blank(head, n, at + 1);
    return at < n && head[at] == '{' && key < n && (head[key] == '"' || head[key] == '}');
}

/* An object on a line that closes it or goes on beyond the head. */
static bool is_object_line(const char *head, size_t n, size_t at)
{
    if (!opens_object(head, n, at)) return false;
    const char *end = memchr(head + at, '\n', n - at);
    if (!end) return true;
    while (end > head + at && (end[-1] == ' ' || end[-1] == '\t' || end[-1] == '\r')) end--;
    return end[-1] == '}';
}

static bool is_json(const char *path, const char *head, size_t n, struct form_guess *out)
{
    bool named = form_name_ends(path, ".json");
    size_t at = skip_blank(head, n, 0), next = skip_blank(head, n, at + 1);
    if (form_name_ends(path, ".jsonl") || form_name_ends(path, ".ndjson")) out->form = FORM_JSON_LINES;
    if (at >= n) return out->form != FORM_TEXT;
    if (head[at] == '[' && opens_object(head, n, next))
        out->form = FORM_JSON_ARRAY;
    else if (is_object_line(head, n, at))
        out->form = FORM_JSON_LINES;
    else if (named && (head[at] == '[' || head[at] == '{'))
        *out = (struct form_guess){FORM_REFUSED, "one JSON value, not a list of records",
                                   "give JSON lines or an array of objects"};
    return out->form != FORM_TEXT;
}

/* --- tables of text ------------------------------------------------------------------------------------------------ */

/* How many fields the record at *at has, which is moved behind it; 0: it does not end in the head. */
static int count_fields(const char *head, size_t n, size_t *at, char separator)
{
    int fields = 1;
    bool quoted = false;
    for (size_t i = *at; i < n; i++) {
        if (head[i] == '"')
            quoted = !quoted;
        else if (!quoted && head[i] == separator)
            fields++;
        else if (!quoted && head[i] == '\n') {
            *at = i + 1;
            return fields;
        }
    }
    return 0;
}

/* Names that the columns of training data have. */
static bool is_usual_name(const char *name, size_t len)
{
    static const char *const usual[] = {
        "text",     "texts",       "content",  "body",    "sentence", "sentence1", "sentence2",
        "document", "tokens",      "words",    "labels",  "ner_tags", "label",     "prompt",
        "response", "completion",  "question", "answer",  "source",   "target",    "input",
        "output",   "instruction", "messages", "text_a",  "text_b",   "premise",   "hypothesis",
        "anchor",   "positive",    "summary",  "article", "id",       "idx",       "score",
    };
    if (len >= 2 && *name == '"' && name[len - 1] == '"') name++, len -= 2;
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (strlen(usual[i]) == len && !strncmp(usual[i], name, len)) return true;
    return false;
}

/* Does the first line consist of short names without blanks, one of them a usual one? */
static bool is_header(const char *line, size_t len, char separator)
{
    bool usual = false;
    if (len && line[len - 1] == '\r') len--;
    for (size_t at = 0; at <= len;) {
        const char *end = memchr(line + at, separator, len - at);
        size_t n = end ? (size_t)(end - line) - at : len - at;
        if (n > 64) return false;
        for (size_t i = 0; i < n; i++)
            if (!isalnum((unsigned char)line[at + i]) && !strchr("_-\"", line[at + i])) return false;
        usual |= is_usual_name(line + at, n);
        at += n + 1;
    }
    return usual;
}

static bool is_csv(const char *path, const char *head, size_t n)
{
    static const char *const suffixes[] = {".csv", ".tsv", NULL};
    if (name_is_one_of(path, suffixes)) return true;
    const char *end = memchr(head, '\n', n);
    if (!end) return false;
    for (const char *sep = ",\t;|"; *sep; sep++) {
        size_t at = 0;
        int columns = count_fields(head, n, &at, *sep), rows = 0;
        if (columns < 2 || !is_header(head, (size_t)(end - head), *sep)) continue;
        for (int fields; rows < FEW_LINES && (fields = count_fields(head, n, &at, *sep)) == columns;) rows++;
        size_t after = at;
        if (rows == FEW_LINES || (rows && !count_fields(head, n, &after, *sep))) return true;
    }
    return false;
}

bool form_is_tag(const char *text, size_t len)
{
    if (len == 1 && *text == 'O') return true;
    return len > 2 && strchr("BIESLU", *text) && text[1] == '-' && isalpha((unsigned char)text[2]);
}

/* Lines of several columns, the last one a tag. */
static bool is_conll(const char *path, const char *head, size_t n)
{
    static const char *const suffixes[] = {".conll", ".conllu", ".iob", ".iob2", ".bio", NULL};
    if (name_is_one_of(path, suffixes)) return true;
    int words = 0;
    const char *end;
    for (size_t at = 0; words < FEW_LINES && (end = memchr(head + at, '\n', n - at));) {
        const char *line = head + at;
        size_t len = (size_t)(end - line), last;
        at += len + 1;
        while (len && isspace((unsigned char)line[len - 1])) len--;
        if (!len) continue;
        for (last = len; last && line[last - 1] != ' ' && line[last - 1] != '\t';) last--;
        if (!last || !form_is_tag(line + last, len - last)) return false;
        words++;
    }
    return words >= 3;
}

struct form_guess form_guess(const char *path, const char *head, size_t n)
{
    struct form_guess out = {.form = FORM_TEXT};
    if (n >= 8 && !memcmp(head, TOKEN_FILE_MAGIC, 8)) return (struct form_guess){.form = FORM_TOKENS};
    if (n >= 4 && !memcmp(head, "PAR1", 4)) return (struct form_guess){.form = FORM_PARQUET};
    if (is_binary(head, n, &out)) return out;
    if (n >= 3 && !memcmp(head, "\xef\xbb\xbf", 3)) head += 3, n -= 3;
    if (is_json(path, head, n, &out)) return out;
    if (is_csv(path, head, n))
        out.form = FORM_CSV;
    else if (is_conll(path, head, n))
        out.form = FORM_CONLL;
    return out;
}
