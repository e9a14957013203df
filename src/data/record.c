/* record.c - see record.h. record_begin finds the texts of a record, record_more walks over them piece by piece. */
#include "data/record.h"
#include "data/json_fields.h"
#include "data/record_chat.h"
#include "data/record_parts.h"
#include "data/record_preference.h"

#include <stdlib.h>
#include <string.h>

/* The texts of a record in order, and how far encoding has come. */
struct progress {
    const char *at; /* what is left of the present text */
    size_t left;
    unsigned flags; /* TOKENIZE_* */
    bool quiet;
    size_t next;     /* text */
    bool ends;       /* the record gets its end mark */
    int32_t last_id; /* of the tokens so far; -1: there are none */
    size_t count;
};

/* Templates add headers to messages and fixed texts to conversations. */
#define CHAT_TIMES     4
#define CHAT_FIXED     ((size_t)32 << 10)
#define CHAT_MEMORY    8
#define CHAT_WORKSPACE ((size_t)256 << 10)

struct record_encoder {
    struct record_rules rules;
    struct encoder *encoder; /* NULL: bytes */
    /* Fields of the current record: its text, or both texts of a pair; and another name of the second. */
    struct json_field field[3];
    struct token_list labels;
    struct record_chat chat; /* rendered */
    bool rendered;           /* the record is a conversation */
    struct progress progress;
};

/* Bytes of text that are encoded at once, at most. */
static size_t piece_most(const struct record_rules *rules)
{
    size_t longest = record_renders(rules) ? record_chat_output(rules->longest) : rules->longest;
    return longest < RECORD_PIECE ? longest : RECORD_PIECE;
}

/* A word of a few letters takes 64 bytes in a cache, and of small data every third or fourth is a new one. */
static struct encoder_room room_of(const struct record_rules *rules)
{
    enum { KEEP_LEAST = 4 << 10, KEEP_MOST = 16 << 10, CACHE_TIMES = 4 };
    size_t keep = 2 * piece_most(rules);
    uint64_t needed = rules->data_bytes * CACHE_TIMES;
    return (struct encoder_room){.cache = needed && needed < ENCODER_CACHE ? (size_t)needed : ENCODER_CACHE,
                                 .keep = keep < KEEP_LEAST  ? KEEP_LEAST
                                         : keep > KEEP_MOST ? KEEP_MOST
                                                            : keep};
}

static enum plim_status open_encoder(const struct record_rules *rules, struct encoder **out,
                                     struct plim_error *err)
{
    struct encoder_room room = room_of(rules);
    return encoder_open_within(rules->codec->tokenizer, &room, out, err);
}

/* Memory of the encoder, plus the extra that a piece may need: for a long word, or for a normalizer that expands it. */
static size_t encoder_bytes(const struct record_rules *rules)
{
    const struct tokenizer *tok = rules->codec->tokenizer;
    struct encoder_room room = room_of(rules);
    size_t piece = piece_most(rules), word = ENCODER_LIMIT(piece),
           normal = encoder_bytes_most(tok, piece) - encoder_bytes_most(tok, 0);
    return encoder_room_bytes(tok, &room) + (word > normal ? word : normal);
}

enum plim_status record_encoder_open(const struct record_rules *rules, struct record_encoder **out,
                                     struct plim_error *err)
{
    struct record_encoder *enc = calloc(1, sizeof *enc);
    if (!enc) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for an encoder");
    enc->rules = *rules;
    enum plim_status status = rules->codec->tokenizer ? open_encoder(rules, &enc->encoder, err) : PLIM_OK;
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
    token_list_release(&enc->labels);
    record_chat_release(&enc->chat);
    free(enc);
}

size_t record_chat_output(size_t len) { return CHAT_TIMES * len + CHAT_FIXED; }
size_t record_chat_memory(size_t len) { return CHAT_MEMORY * len + CHAT_WORKSPACE; }

size_t record_tokens_most(const struct record_rules *rules, size_t len)
{
    size_t tokens = record_renders(rules) ? record_chat_output(len) : len;
    if (rules->kind == RECORD_LABELS || rules->kind == RECORD_PREFERENCE) tokens *= 2;
    tokens += 9; /* begin and end marks, of all parts, their numbers and their score */
    return rules->most > 0 && rules->most < tokens ? rules->most : tokens;
}

size_t record_encoder_bytes_most(const struct record_rules *rules)
{
    size_t longest = rules->longest;
    return sizeof(struct record_encoder) + (rules->codec->tokenizer ? encoder_bytes(rules) : 0) +
           record_chat_bytes(rules, longest) +
           (rules->kind == RECORD_LABELS ? record_parts_bytes(rules, longest) : 0);
}

static void want_field(struct sheet_want *out, const char *name, bool optional, bool number)
{
    if (!name) return;
    out->name[out->count] = name, out->optional[out->count] = optional, out->number[out->count] = number;
    out->count++;
}

void record_want(const struct record_rules *rules, bool skip_bad, struct sheet_want *out)
{
    bool two = rules->kind == RECORD_PAIR || rules->kind == RECORD_TWO || rules->kind == RECORD_LABELS;
    *out = (struct sheet_want){.skip_bad = skip_bad};
    if (rules->kind == RECORD_TEXT || rules->kind == RECORD_LINE) return;
    if (record_has_preference(rules)) {
        record_want_preference(rules, out);
        return;
    }
    want_field(out, rules->field[0], false, false);
    want_field(out, two ? rules->field[1] : NULL, rules->other_labels != NULL, false);
    want_field(out, rules->other_labels, true, false);
    want_field(out, rules->score_field, true, true);
    want_field(out, rules->tools_field, true, false);
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

static bool enough(const struct record_encoder *enc)
{
    return enc->rules.most > 0 && enc->progress.count >= enc->rules.most;
}

/* --- what a record holds --- */

/* Lines of a text end in LF whatever the file says. */
static size_t drop_carriage_returns(char *text, size_t len)
{
    char *cr = memchr(text, '\r', len), *out = cr;
    if (!cr) return len;
    for (char *in = cr; in < text + len; in++)
        if (*in != '\r' || in + 1 == text + len || in[1] != '\n') *out++ = *in;
    return (size_t)(out - text);
}

/* Names that public data sets give to what a key of ours names. */
static const struct {
    const char *name, *key;
} usual[] = {{"messages", "data.messages_field"}, {"conversations", "data.messages_field"},
             {"content", "data.field"},           {"text", "data.field"},
             {"prompt", "data.prompt_field"},     {"instruction", "data.prompt_field"},
             {"chosen", "data.chosen_field"},     {"completion", "data.response_field"},
             {"document", "data.source_field"},   {"source", "data.source_field"},
             {"sentence1", "data.first_field"},   {"premise", "data.first_field"},
             {"words", "data.first_field"},       {"sentence2", "data.second_field"},
             {"hypothesis", "data.second_field"}, {"tags", "data.second_field"}};
enum { USUAL = sizeof usual / sizeof *usual };

/* Says which field the record has instead, where its name is a usual one. */
static enum plim_status refuse_missing(const char *field, char *line, size_t len, struct plim_error *err)
{
    struct json_problem problem;
    struct json_field found[USUAL];
    int at = 0;
    for (int i = 0; i < USUAL; i++) found[i] = (struct json_field){.name = usual[i].name};
    bool read = json_fields(line, len, found, USUAL, &problem);
    while (at < USUAL && (!read || found[at].kind == JSON_ABSENT)) at++;
    if (at == USUAL)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "the field '%s' is missing; name another field or skip bad records", field);
    return plim_fail(
        err, PLIM_BAD_INPUT,
        "the field '%s' is missing; the record has '%s': set %s=%s, name another field or skip bad "
        "records",
        field, usual[at].name, usual[at].key, usual[at].name);
}

/* A prompt and its completion are both texts, or both conversations. */
static enum plim_status check_kind(const struct record_encoder *enc, int i, enum json_kind kind,
                                   struct plim_error *err)
{
    const struct json_field *f = &enc->field[i];
    bool lists = enc->rules.kind == RECORD_PAIR && f->kind == JSON_LIST;
    if (i && lists && enc->field[0].kind == JSON_LIST) return PLIM_OK;
    if (!i && lists && enc->rules.chat) return PLIM_OK;
    if (!i && lists)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "the field '%s' is a list of messages; set data.chat_template to the model's folder",
                         f->name);
    if (i && enc->rules.kind == RECORD_PAIR) kind = enc->field[0].kind;
    return f->kind == kind ? PLIM_OK
                           : plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is %s, not %s", f->name,
                                       json_kind_name(f->kind), json_kind_name(kind));
}

static enum plim_status take_fields(struct record_encoder *enc, char *line, size_t len, int count,
                                    enum json_kind kind, struct plim_error *err)
{
    struct json_problem problem;
    struct json_field *fields = enc->field;
    const char *third = enc->rules.other_labels  ? enc->rules.other_labels
                        : enc->rules.score_field ? enc->rules.score_field
                                                 : enc->rules.tools_field;
    int others = third != NULL;
    for (int i = 0; i < count; i++)
        fields[i] = (struct json_field){.name = enc->rules.field[i], .undo = kind == JSON_TEXT};
    if (others) fields[count] = (struct json_field){.name = third, .undo = third == enc->rules.tools_field};
    if (!json_fields(line, len, fields, count + others, &problem))
        return plim_fail(err, PLIM_BAD_INPUT, "byte %zu: %s", problem.column, problem.what);
    if (enc->rules.other_labels && fields[count - 1].kind == JSON_ABSENT && fields[count].kind != JSON_ABSENT)
        fields[count - 1] = fields[count];
    for (int i = 0; i < count; i++)
        if (fields[i].kind == JSON_ABSENT) return refuse_missing(fields[i].name, line, len, err);
    enum plim_status status = PLIM_OK;
    for (int i = 0; i < count && status == PLIM_OK; i++) status = check_kind(enc, i, kind, err);
    return status;
}

static enum plim_status render_chat(struct record_encoder *enc, struct plim_error *err)
{
    const struct record_rules *r = &enc->rules;
    const struct json_field *f = enc->field;
    if (r->kind == RECORD_CHAT)
        return record_chat_render(&enc->chat, r, &f[0], r->tools_field ? &f[1] : NULL, err);
    return record_chat_render_pair(&enc->chat, r, &f[0], &f[1], r->tools_field ? &f[2] : NULL, err);
}

enum plim_status record_begin(struct record_encoder *enc, char *text, size_t len, unsigned place,
                              struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    enum record_kind kind = enc->rules.kind;
    if (kind == RECORD_TEXT && enc->encoder) len = drop_carriage_returns(text, len);
    enc->field[0] = (struct json_field){.at = text, .len = len};
    if (kind == RECORD_JSON || kind == RECORD_PAIR)
        status = take_fields(enc, text, len, kind == RECORD_PAIR ? 2 : 1, JSON_TEXT, err);
    if (kind == RECORD_CHAT) status = take_fields(enc, text, len, 1, JSON_LIST, err);
    enc->rendered = kind == RECORD_CHAT || (kind == RECORD_PAIR && enc->field[0].kind == JSON_LIST);
    if (enc->rendered && status == PLIM_OK) status = render_chat(enc, err);
    /* A conversation ends as its template says; an empty line is nothing, an empty file ends all the same. */
    bool empty = !enc->field[0].len && place == RECORD_WHOLE && kind != RECORD_PAIR;
    enc->progress = (struct progress){.ends = place & RECORD_LAST && !enc->rendered && !empty, .last_id = -1};
    return status;
}

/* Between the assistant's parts, which alone are learned, lie others: texts take turns. */
static bool next_of_chat(struct record_encoder *enc)
{
    struct progress *p = &enc->progress;
    size_t i = p->next / 2, from = i ? enc->chat.spans.span[i - 1].end : 0, to = enc->chat.text.len;
    if (p->next > 2 * enc->chat.spans.count) return false;
    p->quiet = p->next % 2 == 0;
    if (i < enc->chat.spans.count) to = enc->chat.spans.span[i].begin;
    if (!p->quiet) from = to, to = enc->chat.spans.span[i].end;
    p->at = enc->chat.text.data + from, p->left = to > from ? to - from : 0;
    p->flags = 0;
    return true;
}

/* The next text of the record; false: there is none. Both of a pair are encoded for themselves, so that the border
 * between them is one of tokens. Running text has no begin mark, even when the whole file is one piece. */
static bool next_text(struct record_encoder *enc)
{
    struct progress *p = &enc->progress;
    bool pair = enc->rules.kind == RECORD_PAIR;
    if (enc->rendered) {
        if (!next_of_chat(enc)) return false;
    } else {
        if (p->next > (size_t)pair) return false;
        bool special = enc->rules.add_special && enc->rules.kind != RECORD_TEXT && p->next == 0;
        p->at = enc->field[p->next].at, p->left = enc->field[p->next].len;
        p->flags = special ? TOKENIZE_SPECIAL : 0;
        p->quiet = pair && p->next == 0;
    }
    p->next++;
    return true;
}

/* --- and what becomes of it --- */

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for tokens");
}

static enum plim_status encode_piece(struct record_encoder *enc, struct token_list *out,
                                     struct plim_error *err)
{
    struct progress *p = &enc->progress;
    size_t n = p->left;
    if (n > RECORD_PIECE) n = enc->encoder ? text_cut(p->at, RECORD_PIECE) : RECORD_PIECE;
    if (!enc->encoder && enc->rules.most > 0 && n > enc->rules.most - p->count)
        n = enc->rules.most - p->count;
    unsigned flags = n < p->left ? p->flags & ~(unsigned)TOKENIZE_AFTER : p->flags; /* the last has the end */
    enum plim_status status = PLIM_OK;
    if (enc->encoder)
        status = encoder_encode(enc->encoder, p->at, n, flags, out, err);
    else if (!token_list_reserve(out, n))
        status = no_memory(err);
    else
        for (size_t i = 0; i < n; i++) out->id[out->count++] = (unsigned char)p->at[i];
    if (out->full) status = plim_fail(err, PLIM_BAD_INPUT, "it has more tokens than fit (%zu)", out->most);
    out->full = false;
    p->at += n, p->left -= n;
    p->flags &= ~(unsigned)TOKENIZE_BEFORE;
    return status;
}

/* A prompt is not where the record ends, whatever the tokenizer adds to a text; and it is not learned. */
static void hush(struct record_encoder *enc, struct token_list *list, size_t from)
{
    const struct progress *p = &enc->progress;
    int32_t eos = enc->rules.codec->eos;
    bool prompt_ends = enc->rules.kind == RECORD_PAIR && !enc->rendered && !p->left && list->count > from;
    if (prompt_ends && p->count + (list->count - from) > 1 && eos >= 0 && list->id[list->count - 1] == eos)
        list->count--;
    if (enc->rules.learn_all) return;
    for (size_t i = from; i < list->count; i++) list->id[i] |= TOKEN_QUIET;
}

static enum plim_status put_eos(const struct record_encoder *enc, struct token_list *out,
                                struct plim_error *err)
{
    int32_t eos = enc->rules.codec->eos;
    if (!enc->rules.append_eos || !enc->progress.ends || eos < 0 || enc->progress.last_id == eos)
        return PLIM_OK;
    if (!token_list_reserve(out, 1)) return no_memory(err);
    out->id[out->count++] = eos;
    return PLIM_OK;
}

enum plim_status record_more(struct record_encoder *enc, struct token_list *out, bool *more,
                             struct plim_error *err)
{
    struct progress *p = &enc->progress;
    size_t before = out->count;
    enum plim_status status = PLIM_OK;
    *more = p->left > 0;
    while (!*more && next_text(enc)) *more = p->left > 0;
    if (*more) status = encode_piece(enc, out, err);
    if (status != PLIM_OK) return status;
    if (p->quiet) hush(enc, out, before);
    if (out->count > before) p->last_id = token_id(out->id[out->count - 1]);
    p->count += out->count - before;
    for (*more = p->left > 0; !*more && next_text(enc);) *more = p->left > 0;
    return *more ? PLIM_OK : put_eos(enc, out, err);
}

/* Records that are not a run of tokens, or whose marks survive truncation. */
static enum plim_status encode_parts(struct record_encoder *enc, char *text, size_t len,
                                     struct token_list *out, struct plim_error *err)
{
    const struct record_rules *rules = &enc->rules;
    size_t begin = out->count;
    enum plim_status status = PLIM_OK;
    bool labels = rules->kind == RECORD_LABELS;
    enc->field[0] = (struct json_field){.at = text, .len = len};
    if (rules->kind != RECORD_LINE)
        status = take_fields(enc, text, len, rules->kind == RECORD_JSON ? 1 : 2,
                             labels ? JSON_LIST : JSON_TEXT, err);
    if (status != PLIM_OK) return status;
    if (labels)
        status = record_put_labels(rules, enc->encoder, enc->field, &enc->labels, out, err);
    else if (rules->kind == RECORD_TWO)
        status = record_put_two(rules, enc->encoder, enc->field, out, err);
    else
        status = record_put_text(rules, enc->encoder, enc->field[0].at, enc->field[0].len,
                                 rules->part_most[0], out, err);
    if (rules->score_field && status == PLIM_OK) status = record_put_score(&enc->field[2], out, err);
    if (out->full) status = plim_fail(err, PLIM_BAD_INPUT, "it has more tokens than fit (%zu)", out->most);
    out->full = false;
    if (status != PLIM_OK) out->count = begin;
    return status;
}

static bool has_parts(const struct record_rules *rules)
{
    bool text = rules->kind == RECORD_LINE || rules->kind == RECORD_JSON;
    return rules->kind == RECORD_TWO || rules->kind == RECORD_LABELS || (text && rules->keep_marks);
}

enum plim_status record_encode(struct record_encoder *enc, char *text, size_t len, unsigned place,
                               struct token_list *out, struct plim_error *err)
{
    if (record_has_preference(&enc->rules))
        return record_put_preference(&enc->rules, enc->encoder, &enc->chat, text, len, out, err);
    if (has_parts(&enc->rules)) return encode_parts(enc, text, len, out, err);
    size_t begin = out->count;
    enum plim_status status = record_begin(enc, text, len, place, err);
    for (bool more = true; more && status == PLIM_OK && !enough(enc);)
        status = record_more(enc, out, &more, err);
    if (status != PLIM_OK) out->count = begin;
    if (enc->rules.most > 0 && out->count - begin > enc->rules.most) out->count = begin + enc->rules.most;
    return status;
}
