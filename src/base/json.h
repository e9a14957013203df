/* json.h - strict JSON in, JSON out.
 *
 * Reading follows RFC 8259 to the letter: no comments, no trailing commas, no NaN; strings must be valid
 * UTF-8 and \u surrogates must come in pairs; at most 128 levels; a key may appear once per object. A byte
 * order mark at the beginning is skipped. Whole numbers that fit become INT, all others FLOAT. Errors
 * (PLIM_BAD_INPUT) read "name:line: what". Safe on hostile input: memory is counted while it grows.
 *
 * Writing:
 *     struct json_writer w = json_object(&sb, 2);        // indent by 2; 0: one line
 *     json_int(&w, "step", 12);                          // key first; NULL inside arrays and at the top
 *     json_begin_array(&w, "losses");
 *     json_double(&w, NULL, 2.75);
 *     json_end_array(&w);
 *     json_end_object(&w);
 *
 * A writer keeps nothing of its text: a copy of it with another `out`, where the same text was put, goes on from there.
 */
#pragma once

#include "base/node.h"
#include "base/quota.h"
#include "base/status.h"
#include "base/strbuf.h"

/* Memory limit of a document when the caller gives no quota. */
#define JSON_TREE_MAX ((uint64_t)256 << 20)

/* Parses text[0..len). `name` appears in errors. The caller frees the document with doc_free. */
enum plim_status json_parse(const char *text, size_t len, const char *name, struct doc **out,
                            struct plim_error *err);

/* json_parse within a quota. The quota keeps counting the document's store.total until the caller releases it. */
enum plim_status json_parse_within(const char *text, size_t len, const char *name, struct quota *quota,
                                   struct doc **out, struct plim_error *err);

/* json_parse_within for data written by others. If a key occurs twice, the last value counts, as in Python and most
 * other programs. */
enum plim_status json_parse_record(const char *text, size_t len, const char *name, struct quota *quota,
                                   struct doc **out, struct plim_error *err);

/* json_parse_record that takes over the text's memory: strings and keys are unescaped in place and not copied. `text`
 * is empty afterwards, even on failure. The quota does not count its bytes. */
enum plim_status json_parse_taking(struct strbuf *text, const char *name, struct quota *quota,
                                   struct doc **out, struct plim_error *err);

/* Parses a file of at most 64 MiB; PLIM_IO when it cannot be read. */
enum plim_status json_load(const char *path, struct doc **out, struct plim_error *err);

struct json_writer {
    struct strbuf *out;
    int indent;
    int depth;
    bool first; /* nothing written yet at this level */
};

void json_writer_init(struct json_writer *w, struct strbuf *out, int indent);
/* A writer whose text is one object, which has begun. */
struct json_writer json_object(struct strbuf *out, int indent);

/* Each writes its key when one is given. Text that is not valid UTF-8 gets U+FFFD for each bad byte. */
void json_begin_object(struct json_writer *w, const char *key);
void json_end_object(struct json_writer *w);
void json_begin_array(struct json_writer *w, const char *key);
void json_end_array(struct json_writer *w);
void json_str(struct json_writer *w, const char *key, const char *value); /* NULL value: null */
void json_strn(struct json_writer *w, const char *key, const char *value, size_t len);
void json_int(struct json_writer *w, const char *key, int64_t value);
void json_uint(struct json_writer *w, const char *key, uint64_t value);
void json_double(struct json_writer *w, const char *key, double value); /* reads back equal; NaN, Inf: null */
void json_float(struct json_writer *w, const char *key, float value);   /* likewise, read as a float */
void json_bool(struct json_writer *w, const char *key, bool value);
void json_null(struct json_writer *w, const char *key);
void json_node(struct json_writer *w, const char *key, const struct node *node); /* a whole tree */

/* Writes a tree without a writer, for people: a string without quotes, everything else as JSON. */
void json_plain(struct strbuf *out, const struct node *node);

/* Writes one quoted and escaped string without a writer. */
void json_quote(struct strbuf *out, const char *text, size_t len);
