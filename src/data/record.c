/* record.c - see record.h. */
#include "data/record.h"
#include "base/json.h"
#include "data/json_fields.h"

#include <stdlib.h>
#include <string.h>

struct record_encoder {
    struct record_rules rules;
    struct encoder *encoder; /* NULL: bytes */
    struct strbuf text;      /* a rendered chat */
    struct chat_spans spans;
};

enum plim_status record_encoder_open(const struct record_rules *rules, struct record_encoder **out,
                                     struct plim_error *err)
{
    struct record_encoder *enc = calloc(1, sizeof *enc);
    if (!enc) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for an encoder");
    enc->rules = *rules;
    enum plim_status status =
        rules->codec->tokenizer ? encoder_open(rules->codec->tokenizer, &enc->encoder, err) : PLIM_OK;
    if (status != PLIM_OK) {
        free(enc);
        return status;
    }
    *out = enc;
    return PLIM_OK;
}

void record_encoder_close(struct record_encoder *enc)
{
    if (!enc) return;
    if (enc->encoder) encoder_close(enc->encoder);
    strbuf_release(&enc->text);
    chat_spans_release(&enc->spans);
    free(enc);
}

/* Templates add headers to messages and fixed texts to conversations. */
#define CHAT_TIMES     4
#define CHAT_FIXED     ((size_t)32 << 10)
#define CHAT_MEMORY    8
#define CHAT_WORKSPACE ((size_t)1 << 20)
#define CHAT_KEPT      ((size_t)256 << 10) /* of the text's buffer between records */

size_t record_chat_output(size_t len) { return CHAT_TIMES * len + CHAT_FIXED; }
size_t record_chat_memory(size_t len) { return CHAT_MEMORY * len + CHAT_WORKSPACE; }

size_t record_tokens_most(const struct record_rules *rules, size_t len)
{
    size_t tokens = rules->kind == RECORD_CHAT ? record_chat_output(len) : len;
    tokens += 2; /* begin and end marks */
    return rules->most > 0 && (size_t)rules->most < tokens ? (size_t)rules->most : tokens;
}

size_t record_encoder_bytes_most(const struct record_rules *rules, size_t longest)
{
    size_t piece = longest < RECORD_PIECE ? longest : RECORD_PIECE;
    size_t tokenizer = rules->codec->tokenizer ? encoder_bytes_most(rules->codec->tokenizer, piece) : 0;
    return sizeof(struct record_encoder) + tokenizer +
           (rules->kind == RECORD_CHAT ? record_chat_memory(longest) + record_chat_output(longest) : 0);
}

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

size_t text_cut(const char *text, size_t len)
{
    size_t line = 0, blank = 0, low = len / 2;
    for (size_t i = len - 1; i > low; i--) {
        if (text[i - 1] == '\n') {
            if (!is_blank(text[i]) && (i < 2 || !is_blank(text[i - 2]))) return i;
            if (!line) line = i;
        }
        if (!blank && text[i] == ' ') blank = i;
    }
    if (line) return line;
    if (blank) return blank;
    size_t cut = len;
    while (cut > 1 && len - cut < 3 && ((unsigned char)text[cut - 1] & 0xc0) == 0x80) cut--;
    if (cut > 1 && (unsigned char)text[cut - 1] >= 0xc0) return cut - 1;
    return len;
}

static bool enough(const struct record_encoder *enc, const struct token_list *out, size_t begin)
{
    return enc->rules.most > 0 && (int64_t)(out->count - begin) >= enc->rules.most;
}

static bool encode_bytes(const struct record_encoder *enc, const char *text, size_t len,
                         struct token_list *out, size_t begin)
{
    size_t n = len;
    if (enc->rules.most > 0) {
        int64_t left = enc->rules.most - (int64_t)(out->count - begin);
        if (left < (int64_t)n) n = left > 0 ? (size_t)left : 0;
    }
    if (!token_list_reserve(out, n)) return false;
    for (size_t i = 0; i < n; i++) out->id[out->count++] = (unsigned char)text[i];
    return true;
}

/* One text, in pieces when it is long. begin: where the record's tokens start in out. */
static enum plim_status encode_text(struct record_encoder *enc, const char *text, size_t len, unsigned flags,
                                    struct token_list *out, size_t begin, struct plim_error *err)
{
    if (!enc->encoder)
        return encode_bytes(enc, text, len, out, begin)
                   ? PLIM_OK
                   : plim_fail(err, PLIM_NO_MEMORY, "out of memory for tokens");
    enum plim_status status = PLIM_OK;
    do {
        size_t n = len > RECORD_PIECE ? text_cut(text, RECORD_PIECE) : len;
        unsigned here = n < len ? flags & ~(unsigned)TOKENIZE_AFTER : flags; /* the last piece has the end */
        status = encoder_encode(enc->encoder, text, n, here, out, err);
        text += n, len -= n;
        flags &= ~(unsigned)TOKENIZE_BEFORE;
    } while (len && status == PLIM_OK && !enough(enc, out, begin));
    return status;
}

static enum plim_status put_eos(const struct record_encoder *enc, struct token_list *out, size_t begin,
                                struct plim_error *err)
{
    int32_t eos = enc->rules.codec->eos;
    if (!enc->rules.append_eos || eos < 0) return PLIM_OK;
    if (out->count > begin && token_id(out->id[out->count - 1]) == eos) return PLIM_OK;
    if (!token_list_reserve(out, 1)) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for tokens");
    out->id[out->count++] = eos;
    return PLIM_OK;
}

static void hush(struct token_list *list, size_t from)
{
    for (size_t i = from; i < list->count; i++) list->id[i] |= TOKEN_QUIET;
}

static enum plim_status encode_plain(struct record_encoder *enc, const char *text, size_t len, unsigned place,
                                     struct token_list *out, struct plim_error *err)
{
    size_t begin = out->count;
    /* Running text has no begin mark, even when the whole file is one piece. */
    bool special = enc->rules.add_special && enc->rules.kind != RECORD_TEXT;
    unsigned flags = special ? TOKENIZE_SPECIAL : 0;
    enum plim_status status = len ? encode_text(enc, text, len, flags, out, begin, err) : PLIM_OK;
    bool ends = place & RECORD_LAST && (len || place != RECORD_WHOLE);
    return status == PLIM_OK && ends ? put_eos(enc, out, begin, err) : status;
}

/* Lines of a text end in LF whatever the file says. */
static size_t drop_carriage_returns(char *text, size_t len)
{
    char *cr = memchr(text, '\r', len), *out = cr;
    if (!cr) return len;
    for (char *in = cr; in < text + len; in++)
        if (*in != '\r' || in + 1 == text + len || in[1] != '\n') *out++ = *in;
    return (size_t)(out - text);
}

static enum plim_status take_fields(const struct record_encoder *enc, char *line, size_t len,
                                    struct json_field *fields, int count, enum json_kind kind,
                                    struct plim_error *err)
{
    struct json_problem problem;
    for (int i = 0; i < count; i++)
        fields[i] = (struct json_field){.name = enc->rules.field[i], .undo = kind == JSON_TEXT};
    if (!json_fields(line, len, fields, count, &problem))
        return plim_fail(err, PLIM_BAD_INPUT, "byte %zu: %s", problem.column, problem.what);
    for (int i = 0; i < count; i++)
        if (fields[i].kind == JSON_ABSENT)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "the field '%s' is missing; name another field or skip bad records",
                             fields[i].name);
        else if (fields[i].kind != kind)
            return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is %s, not %s", fields[i].name,
                             json_kind_name(fields[i].kind), json_kind_name(kind));
    return PLIM_OK;
}

/* The response alone is learned. Both are encoded for themselves, so the border between them is one of tokens. */
static enum plim_status encode_pair(struct record_encoder *enc, const struct json_field *f,
                                    struct token_list *out, struct plim_error *err)
{
    size_t begin = out->count;
    enum plim_status status = PLIM_OK;
    if (f[0].len)
        status = encode_text(enc, f[0].at, f[0].len, enc->rules.add_special ? TOKENIZE_SPECIAL : 0, out,
                             begin, err);
    int32_t eos = enc->rules.codec->eos;
    if (out->count > begin + 1 && eos >= 0 && out->id[out->count - 1] == eos) out->count--;
    hush(out, begin);
    if (status == PLIM_OK && f[1].len && !enough(enc, out, begin))
        status = encode_text(enc, f[1].at, f[1].len, 0, out, begin, err);
    return status == PLIM_OK ? put_eos(enc, out, begin, err) : status;
}

static enum plim_status encode_spans(struct record_encoder *enc, struct token_list *out,
                                     struct plim_error *err)
{
    size_t begin = out->count, at = 0;
    enum plim_status status = PLIM_OK;
    for (size_t i = 0; i <= enc->spans.count && status == PLIM_OK && !enough(enc, out, begin); i++) {
        bool more = i < enc->spans.count;
        size_t from = more ? enc->spans.span[i].begin : enc->text.len, quiet = out->count;
        if (from > at) status = encode_text(enc, enc->text.data + at, from - at, 0, out, begin, err);
        hush(out, quiet);
        if (!more || status != PLIM_OK) break;
        at = enc->spans.span[i].end;
        if (at > from) status = encode_text(enc, enc->text.data + from, at - from, 0, out, begin, err);
    }
    return status;
}

static enum plim_status encode_chat(struct record_encoder *enc, const struct json_field *f,
                                    struct token_list *out, struct plim_error *err)
{
    struct doc *doc = NULL;
    struct quota quota = {.most = record_chat_memory(f->len) / 2,
                          .why = "half of the memory for a conversation"};
    struct chat_options options = {.now = enc->rules.now, .max_output = record_chat_output(f->len)};
    size_t begin = out->count;
    enum plim_status status = json_parse_within(f->at, f->len, f->name, &quota, &doc, err);
    strbuf_clear(&enc->text);
    enc->text.most = options.max_output;
    enc->spans.count = 0;
    if (status == PLIM_OK) {
        options.max_bytes = record_chat_memory(f->len) - (size_t)quota.used;
        status =
            chat_template_render_spans(enc->rules.chat, &doc->root, &options, &enc->text, &enc->spans, err);
    }
    doc_free(doc);
    if (status == PLIM_OK) status = encode_spans(enc, out, err);
    if (enc->rules.most > 0 && out->count - begin > (size_t)enc->rules.most)
        out->count = begin + (size_t)enc->rules.most;
    if (enc->text.cap > CHAT_KEPT) strbuf_release(&enc->text);
    return status;
}

enum plim_status record_encode(struct record_encoder *enc, char *text, size_t len, unsigned place,
                               struct token_list *out, struct plim_error *err)
{
    struct json_field f[2];
    size_t begin = out->count;
    enum plim_status status = PLIM_OK;
    switch (enc->rules.kind) {
    case RECORD_TEXT:
        status =
            encode_plain(enc, text, enc->encoder ? drop_carriage_returns(text, len) : len, place, out, err);
        break;
    case RECORD_LINE:
        status = encode_plain(enc, text, len, place, out, err);
        break;
    case RECORD_JSON:
        status = take_fields(enc, text, len, f, 1, JSON_TEXT, err);
        if (status == PLIM_OK) status = encode_plain(enc, f->at, f->len, place, out, err);
        break;
    case RECORD_PAIR:
        status = take_fields(enc, text, len, f, 2, JSON_TEXT, err);
        if (status == PLIM_OK) status = encode_pair(enc, f, out, err);
        break;
    case RECORD_CHAT:
        status = take_fields(enc, text, len, f, 1, JSON_LIST, err);
        if (status == PLIM_OK) status = encode_chat(enc, f, out, err);
        break;
    }
    if (status != PLIM_OK) out->count = begin;
    return status;
}
