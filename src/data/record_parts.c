/* record_parts.c - see record_parts.h. */
#include "data/record_parts.h"
#include "base/json.h"
#include "base/number.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Memory for the trees of a record's lists, of its bytes: a number and a comma are a node. */
#define LIST_MEMORY 64
#define LIST_FIXED  ((size_t)16 << 10)
#define NO_LABEL    (-100) /* what others write for words that are not counted */

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for tokens");
}

enum plim_status record_put_number(struct token_list *out, int32_t id, struct plim_error *err)
{
    if (!token_list_reserve(out, 1)) return no_memory(err);
    out->id[out->count++] = id;
    return PLIM_OK;
}

enum plim_status record_put_marks(const struct record_rules *rules, struct encoder *encoder, unsigned flag,
                                  struct token_list *out, struct plim_error *err)
{
    size_t before = out->count;
    enum plim_status status = PLIM_OK;
    if (encoder && rules->add_special) status = encoder_encode(encoder, "", 0, flag, out, err);
    bool ends = flag == TOKENIZE_AFTER && out->count == before && rules->append_eos && rules->codec->eos >= 0;
    return status == PLIM_OK && ends ? record_put_number(out, rules->codec->eos, err) : status;
}

enum plim_status record_put_body(struct encoder *encoder, const char *text, size_t len, size_t end,
                                 struct token_list *out, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    while (len && out->count < end && status == PLIM_OK) {
        size_t n = len > RECORD_PIECE ? text_cut(text, RECORD_PIECE) : len;
        if (encoder)
            status = encoder_encode(encoder, text, n, 0, out, err);
        else
            for (size_t i = 0; i < n && out->count < end && status == PLIM_OK; i++)
                status = record_put_number(out, (unsigned char)text[i], err);
        text += n, len -= n;
    }
    if (out->count > end) out->count = end;
    return status;
}

/* How many marks come behind a text. */
static enum plim_status count_behind(const struct record_rules *rules, struct encoder *encoder,
                                     struct token_list *out, size_t *behind, struct plim_error *err)
{
    size_t begin = out->count;
    enum plim_status status = record_put_marks(rules, encoder, TOKENIZE_AFTER, out, err);
    *behind = out->count - begin;
    out->count = begin;
    return status;
}

enum plim_status record_put_text(const struct record_rules *rules, struct encoder *encoder, const char *text,
                                 size_t len, size_t most, struct token_list *out, struct plim_error *err)
{
    size_t begin = out->count, behind = 0;
    enum plim_status status = count_behind(rules, encoder, out, &behind, err);
    if (status == PLIM_OK) status = record_put_marks(rules, encoder, TOKENIZE_BEFORE, out, err);
    size_t end = most > behind ? begin + most - behind : begin;
    if (status == PLIM_OK) status = record_put_body(encoder, text, len, end, out, err);
    return status == PLIM_OK ? record_put_marks(rules, encoder, TOKENIZE_AFTER, out, err) : status;
}

/* Tokens of a whole text with its marks; nothing is left in `out`. */
static enum plim_status count_tokens(const struct record_rules *rules, struct encoder *encoder,
                                     const struct json_field *text, struct token_list *out, size_t *count,
                                     struct plim_error *err)
{
    size_t begin = out->count, left = text->len;
    const char *at = text->at;
    enum plim_status status = record_put_marks(rules, encoder, TOKENIZE_BEFORE, out, err);
    if (status == PLIM_OK) status = record_put_marks(rules, encoder, TOKENIZE_AFTER, out, err);
    *count = out->count - begin + (encoder ? 0 : left);
    while (encoder && left && status == PLIM_OK) {
        size_t n = left > RECORD_PIECE ? text_cut(at, RECORD_PIECE) : left;
        out->count = begin;
        status = encoder_encode(encoder, at, n, 0, out, err);
        *count += out->count - begin;
        at += n, left -= n;
    }
    out->count = begin;
    return status;
}

/* A second part that has all the tokens it may have may have lost some. */
static enum plim_status check_whole(const struct record_rules *rules, struct encoder *encoder,
                                    const struct json_field *text, struct token_list *out,
                                    struct plim_error *err)
{
    size_t count = 0, most = rules->part_most[1];
    enum plim_status status = count_tokens(rules, encoder, text, out, &count, err);
    if (status != PLIM_OK || count <= most) return status;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "the field '%s' has %zu tokens, and data.max_length is %zu; raise it, or write "
                     "data.overlong: truncate",
                     text->name, count, most);
}

enum plim_status record_put_two(const struct record_rules *rules, struct encoder *encoder,
                                const struct json_field field[2], struct token_list *out,
                                struct plim_error *err)
{
    size_t header = out->count;
    enum plim_status status = record_put_number(out, 0, err);
    if (status == PLIM_OK)
        status = record_put_text(rules, encoder, field[0].at, field[0].len, rules->part_most[0], out, err);
    if (status == PLIM_OK) out->id[header] = (int32_t)(out->count - header - 1);
    if (status == PLIM_OK)
        status = record_put_text(rules, encoder, field[1].at, field[1].len, rules->part_most[1], out, err);
    bool full = status == PLIM_OK && rules->whole_second &&
                out->count - header - 1 - (size_t)out->id[header] >= rules->part_most[1];
    return full ? check_whole(rules, encoder, &field[1], out, err) : status;
}

enum plim_status record_put_score(const struct json_field *field, struct token_list *out,
                                  struct plim_error *err)
{
    double value = NAN;
    int32_t bits;
    bool given = field->kind != JSON_ABSENT && field->kind != JSON_NULL;
    if (given && (field->kind != JSON_NUMBER || !number_parse_double(field->at, field->len, &value)))
        return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is %s, not a number that a score can be",
                         field->name, json_kind_name(field->kind));
    float score = (float)value;
    memcpy(&bits, &score, sizeof bits);
    return record_put_number(out, bits, err);
}

/* --- labels ------------------------------------------------------------------------------------------------------ */

static enum plim_status parse_list(const struct json_field *f, struct doc **out, struct plim_error *err)
{
    struct quota quota = {.most = LIST_MEMORY * f->len + LIST_FIXED,
                          .why = "the memory for a record's lists"};
    return json_parse_record(f->at, f->len, f->name, &quota, out, err);
}

size_t record_parts_bytes(const struct record_rules *rules, size_t longest)
{
    /* Both lists are parts of one line. */
    return LIST_MEMORY * longest + 2 * LIST_FIXED + rules->part_most[0] * sizeof(int32_t) * 2;
}

static enum plim_status unknown_label(const struct record_rules *rules, const char *label,
                                      struct plim_error *err)
{
    STRBUF_AUTO names = STRBUF_INIT;
    for (int i = 0; i < rules->nlabels && names.len < 80; i++)
        strbuf_addf(&names, "%s%s", i ? ", " : "", rules->labels[i]);
    plim_fail(err, PLIM_BAD_INPUT, "label '%.60s' is not in the label list (%s); add it to data.labels",
              label, names.len ? strbuf_text(&names) : "which is empty");
    return PLIM_BAD_INPUT;
}

/* A name of the list, or a number of one. */
static enum plim_status find_label(const struct record_rules *rules, const struct node *node, int32_t *out,
                                   struct plim_error *err)
{
    int64_t number;
    char text[32];
    if (node->kind == NODE_STRING) {
        for (int i = 0; i < rules->nlabels; i++)
            if (!strcmp(rules->labels[i], node->as.string.text)) return *out = i, PLIM_OK;
        return unknown_label(rules, node->as.string.text, err);
    }
    if (!node_is_whole(node, &number))
        return plim_fail(err, PLIM_BAD_INPUT, "a label is %s, not a name or a whole number",
                         node_kind_name(node->kind));
    *out = number == NO_LABEL ? -1 : (int32_t)number;
    if (number == NO_LABEL || (number >= 0 && number < rules->nlabels)) return PLIM_OK;
    snprintf(text, sizeof text, "%lld", (long long)number);
    return unknown_label(rules, text, err);
}

/* A word's pieces: the first has its label. Words are encoded as they stand in a text, behind a blank; bytes are not. */
static enum plim_status put_word(const struct record_rules *, struct encoder *encoder,
                                 const struct node *word, int32_t label, size_t end,
                                 struct token_list *labels, struct token_list *out, struct strbuf *text,
                                 struct plim_error *err)
{
    size_t before = out->count;
    if (word->kind != NODE_STRING)
        return plim_fail(err, PLIM_BAD_INPUT, "a token is %s, not text", node_kind_name(word->kind));
    strbuf_clear(text);
    if (encoder) strbuf_addc(text, ' ');
    strbuf_addn(text, word->as.string.text, word->as.string.len);
    if (text->failed) return no_memory(err);
    enum plim_status status = record_put_body(encoder, strbuf_text(text), text->len, end, out, err);
    for (size_t i = before; i < out->count && status == PLIM_OK; i++)
        status = record_put_number(labels, i == before ? label : -1, err);
    return status;
}

static enum plim_status put_none(struct token_list *labels, size_t n, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    while (n-- && status == PLIM_OK) status = record_put_number(labels, -1, err);
    return status;
}

static enum plim_status put_words(const struct record_rules *rules, struct encoder *encoder,
                                  const struct node *words, const struct node *names,
                                  struct token_list *labels, struct token_list *out, struct plim_error *err)
{
    STRBUF_AUTO text = STRBUF_INIT;
    size_t begin = out->count, behind = 0;
    enum plim_status status = count_behind(rules, encoder, out, &behind, err);
    if (status == PLIM_OK) status = record_put_marks(rules, encoder, TOKENIZE_BEFORE, out, err);
    if (status == PLIM_OK) status = put_none(labels, out->count - begin, err);
    size_t end = begin + (rules->part_most[0] > behind ? rules->part_most[0] - behind : 0);
    for (size_t i = 0; i < node_count(words) && status == PLIM_OK; i++) {
        int32_t label = -1;
        status = find_label(rules, node_item(names, i), &label, err);
        if (status == PLIM_OK)
            status = put_word(rules, encoder, node_item(words, i), label, end, labels, out, &text, err);
    }
    if (status == PLIM_OK) status = record_put_marks(rules, encoder, TOKENIZE_AFTER, out, err);
    if (status == PLIM_OK) status = put_none(labels, behind, err);
    return status;
}

enum plim_status record_put_labels(const struct record_rules *rules, struct encoder *encoder,
                                   const struct json_field field[2], struct token_list *room,
                                   struct token_list *out, struct plim_error *err)
{
    struct doc *words = NULL, *names = NULL;
    size_t header = out->count;
    enum plim_status status = parse_list(&field[0], &words, err);
    if (status == PLIM_OK) status = parse_list(&field[1], &names, err);
    if (status == PLIM_OK && node_count(&words->root) != node_count(&names->root))
        status = plim_fail(err, PLIM_BAD_INPUT, "there are %zu tokens in '%s' and %zu labels in '%s'",
                           node_count(&words->root), field[0].name, node_count(&names->root), field[1].name);
    room->count = 0;
    if (status == PLIM_OK) status = record_put_number(out, 0, err);
    if (status == PLIM_OK) status = put_words(rules, encoder, &words->root, &names->root, room, out, err);
    size_t n = out->count - header - 1;
    if (status == PLIM_OK && !token_list_reserve(out, n)) status = no_memory(err);
    if (status == PLIM_OK) {
        out->id[header] = (int32_t)n;
        if (n) memcpy(out->id + out->count, room->id, n * sizeof *room->id);
        out->count += n;
    }
    doc_free(words);
    doc_free(names);
    return status;
}
