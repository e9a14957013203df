/* record_preference.c - see record_preference.h. */
#include "data/record_preference.h"
#include "base/number.h"
#include "data/record_parts.h"

#include <math.h>
#include <string.h>

bool record_has_preference(const struct record_rules *rules)
{
    return rules->kind == RECORD_PREFERENCE || rules->kind == RECORD_UNPAIRED;
}

/* Fields of a line. The last two pairs are names that TRL and others give to the reference's log-probabilities. */
enum { PROMPT, FIRST, SECOND, TOOLS, REFERENCE, FIELDS = REFERENCE + 4 };
static const char *const reference_names[] = {"ref_chosen_logps", "ref_rejected_logps",
                                              "reference_chosen_logps", "reference_rejected_logps"};
_Static_assert((int)FIELDS <= (int)SHEET_FIELDS, "a table has room for every field");

/* Where a record's texts are, and what they are. */
struct sides {
    struct json_field field[FIELDS];
    int completions; /* 1 or 2 */
    bool conversations;
    char *line;
    size_t len;
};

static const char *name_of(const struct record_rules *r, int i)
{
    return i < TOOLS ? r->field[i] : i == TOOLS ? r->tools_field : reference_names[i - REFERENCE];
}

static int fields_of(const struct record_rules *r)
{
    return r->kind == RECORD_PREFERENCE ? FIELDS : REFERENCE;
}

void record_want_preference(const struct record_rules *r, struct sheet_want *out)
{
    for (int i = 0; i < fields_of(r); i++) {
        bool optional = (i == PROMPT && r->kind == RECORD_PREFERENCE) || i >= TOOLS;
        bool number = i >= REFERENCE || (i == SECOND && r->kind == RECORD_UNPAIRED);
        if (!name_of(r, i)) continue;
        out->name[out->count] = name_of(r, i), out->optional[out->count] = optional;
        out->number[out->count++] = number;
    }
}

/* --- fields ------------------------------------------------------------------------------------------------------ */

static enum plim_status check_side(const struct record_rules *r, const struct sides *s, int i,
                                   struct plim_error *err)
{
    const struct json_field *f = &s->field[i];
    enum json_kind kind = s->conversations ? JSON_LIST : JSON_TEXT;
    if (f->kind == JSON_LIST && !r->chat)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "the field '%s' is a list of messages, and there is no chat template; set "
                         "data.chat_template",
                         f->name);
    if (f->kind != kind)
        return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is %s, not %s%s", f->name,
                         json_kind_name(f->kind), json_kind_name(kind), i == FIRST ? "" : " like the others");
    if (i != PROMPT && !s->conversations && !f->len)
        return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is empty", f->name);
    return PLIM_OK;
}

static enum plim_status refuse_missing(const struct record_rules *r, int i, struct plim_error *err)
{
    static const char *const keys[2][TOOLS] = {{"prompt", "chosen", "rejected"},
                                               {"prompt", "response", "label"}};
    return plim_fail(err, PLIM_BAD_INPUT,
                     "the field '%s' is missing; name another one with data.%s_field, or skip bad records",
                     r->field[i], keys[r->kind == RECORD_UNPAIRED][i]);
}

static enum plim_status take_sides(const struct record_rules *r, struct sides *s, struct plim_error *err)
{
    struct json_problem problem;
    int count = 0;
    s->completions = r->kind == RECORD_PREFERENCE ? 2 : 1;
    for (int i = 0; i < fields_of(r); i++, count++)
        s->field[i] = (struct json_field){.name = name_of(r, i) ? name_of(r, i) : "", .undo = i <= TOOLS};
    if (!json_fields(s->line, s->len, s->field, count, &problem))
        return plim_fail(err, PLIM_BAD_INPUT, "byte %zu: %s", problem.column, problem.what);
    for (int i = FIRST; i <= SECOND; i++)
        if (s->field[i].kind == JSON_ABSENT) return refuse_missing(r, i, err);
    s->conversations = s->field[FIRST].kind == JSON_LIST;
    bool implicit = s->field[PROMPT].kind == JSON_ABSENT || s->field[PROMPT].kind == JSON_NULL;
    if (implicit && r->kind == RECORD_UNPAIRED) return refuse_missing(r, PROMPT, err);
    enum plim_status status = PLIM_OK;
    for (int i = FIRST; i < FIRST + s->completions && status == PLIM_OK; i++)
        status = check_side(r, s, i, err);
    if (!implicit && status == PLIM_OK) status = check_side(r, s, PROMPT, err);
    if (implicit) s->field[PROMPT].kind = JSON_ABSENT;
    return status;
}

static enum plim_status take_label(const struct json_field *f, int32_t *out, struct plim_error *err)
{
    static const char *const words[] = {"false", "0", "False", "true", "1", "True"};
    enum { WORDS = 6 };
    bool may = f->kind == JSON_BOOL || f->kind == JSON_NUMBER || f->kind == JSON_TEXT;
    for (int i = 0; may && i < WORDS; i++)
        if (strlen(words[i]) == f->len && !memcmp(words[i], f->at, f->len))
            return *out = i >= WORDS / 2, PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is %s, not true or false", f->name,
                     may && f->kind != JSON_BOOL ? "another value" : json_kind_name(f->kind));
}

/* Bits of a log-probability, NaN where there is none. */
static enum plim_status take_reference(const struct json_field *f, int32_t *bits, struct plim_error *err)
{
    double value = NAN;
    bool given = f->kind != JSON_ABSENT && f->kind != JSON_NULL;
    if (given && (f->kind != JSON_NUMBER || !number_parse_double(f->at, f->len, &value) || !(value <= 0)))
        return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' is no log-probability, a number up to 0",
                         f->name);
    float logp = (float)value;
    memcpy(bits, &logp, sizeof *bits);
    return PLIM_OK;
}

static enum plim_status take_numbers(const struct record_rules *r, const struct sides *s,
                                     int32_t header[PREFERENCE_HEADER], struct plim_error *err)
{
    static const struct json_field none = {.kind = JSON_ABSENT};
    enum plim_status status = PLIM_OK;
    for (int k = 0; k < 2 && status == PLIM_OK; k++) {
        const struct json_field *f = r->kind == RECORD_PREFERENCE ? &s->field[REFERENCE + k] : &none;
        if (r->kind == RECORD_PREFERENCE && f->kind == JSON_ABSENT) f = &s->field[REFERENCE + 2 + k];
        status = take_reference(f, &header[PREFERENCE_REFERENCE + k], err);
    }
    if (status == PLIM_OK && r->kind == RECORD_UNPAIRED)
        status = take_label(&s->field[SECOND], &header[PREFERENCE_LABEL], err);
    return status;
}

/* --- tokens ------------------------------------------------------------------------------------------------------ */

/* A text of the record, without a copy. */
struct slice {
    const char *at;
    size_t len;
};

/* Bytes that two completions begin with, up to the end of a character and not with a blank at the end. */
static size_t shared_prompt(const struct json_field *a, const struct json_field *b)
{
    size_t n = 0, most = a->len < b->len ? a->len : b->len;
    while (n < most && a->at[n] == b->at[n]) n++;
    while (n > 0 && n < a->len && ((unsigned char)a->at[n] & 0xc0) == 0x80) n--;
    return n > 0 && a->at[n - 1] == ' ' ? n - 1 : n;
}

/* The prompt and completion k of a conversation; *shared bounds the prompt and is lowered to what this rendering has of it. */
static enum plim_status render_side(const struct record_rules *r, struct record_chat *chat,
                                    const struct sides *s, int k, size_t *shared, struct slice *prompt,
                                    struct slice *completion, struct plim_error *err)
{
    const struct json_field *f = s->field, *side = &f[FIRST + k], *tools = r->tools_field ? &f[TOOLS] : NULL;
    enum plim_status status =
        f[PROMPT].kind == JSON_ABSENT
            ? record_chat_render_implicit(chat, r, side, &f[k ? FIRST : SECOND], tools, err)
            : record_chat_render_pair(chat, r, &f[PROMPT], side, tools, err);
    if (status != PLIM_OK) return status;
    if (chat->spans.span[0].begin < *shared) *shared = chat->spans.span[0].begin;
    *prompt = (struct slice){chat->text.data, *shared};
    *completion = (struct slice){chat->text.data + *shared, chat->text.len - *shared};
    if (completion->len) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT, "the field '%s' adds no text to its prompt", side->name);
}

static void cut_side(const struct sides *s, int k, struct slice *prompt, struct slice *completion)
{
    const struct json_field *f = s->field, *side = &f[FIRST + k];
    size_t n = f[PROMPT].kind == JSON_ABSENT ? shared_prompt(&f[FIRST], &f[SECOND]) : 0;
    *prompt = n ? (struct slice){side->at, n} : (struct slice){f[PROMPT].at, f[PROMPT].len};
    if (f[PROMPT].kind == JSON_ABSENT && !n) prompt->len = 0;
    *completion = (struct slice){side->at + n, side->len - n};
}

static enum plim_status put_prompt(const struct record_rules *r, struct encoder *encoder,
                                   const struct sides *s, struct slice text, struct token_list *out,
                                   struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    size_t end = out->count + r->part_most[0];
    if (!s->conversations && encoder && r->add_special)
        status = encoder_encode(encoder, "", 0, TOKENIZE_BEFORE, out, err);
    return status == PLIM_OK ? record_put_body(encoder, text.at, text.len, end, out, err) : status;
}

static enum plim_status put_completion(const struct record_rules *r, struct encoder *encoder,
                                       const struct sides *s, struct slice text, struct token_list *out,
                                       struct plim_error *err)
{
    int32_t eos = r->append_eos && !s->conversations ? r->codec->eos : -1;
    size_t begin = out->count, end = begin + r->part_most[0];
    enum plim_status status = record_put_body(encoder, text.at, text.len, end, out, err);
    bool ends = eos >= 0 && out->count < end && (out->count == begin || out->id[out->count - 1] != eos);
    return status == PLIM_OK && ends ? record_put_number(out, eos, err) : status;
}

/* Both completions and the prompt, whose rendering has at most *shared bytes. *again: the second rendering has less of it
 * than the first. */
static enum plim_status put_sides(const struct record_rules *r, struct encoder *encoder,
                                  struct record_chat *chat, const struct sides *s, size_t *shared,
                                  bool *again, struct token_list *out, struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    size_t header = out->count - PREFERENCE_HEADER, used = 0;
    for (int k = 0; k < s->completions && status == PLIM_OK; k++) {
        struct slice prompt, completion;
        if (s->conversations)
            status = render_side(r, chat, s, k, shared, &prompt, &completion, err);
        else
            cut_side(s, k, &prompt, &completion);
        if (status == PLIM_OK && !k) status = put_prompt(r, encoder, s, prompt, out, err), used = *shared;
        size_t begin = out->count;
        if (status == PLIM_OK) status = put_completion(r, encoder, s, completion, out, err);
        if (status != PLIM_OK || k) continue;
        out->id[header + PREFERENCE_PROMPT] = (int32_t)(begin - header - PREFERENCE_HEADER);
        out->id[header + PREFERENCE_FIRST] = (int32_t)(out->count - begin);
    }
    *again = *shared < used;
    return status;
}

/* Completions that differ only behind what a row holds are left to the objective. */
static enum plim_status check_difference(const struct record_rules *r, const struct sides *s,
                                         const int32_t *header, size_t count, struct plim_error *err)
{
    size_t first = (size_t)header[PREFERENCE_FIRST],
           second = count - PREFERENCE_HEADER - (size_t)header[PREFERENCE_PROMPT] - first;
    const int32_t *at = header + PREFERENCE_HEADER + header[PREFERENCE_PROMPT];
    if (s->completions < 2 || first != second || first >= r->part_most[0]) return PLIM_OK;
    if (memcmp(at, at + first, first * sizeof *at)) return PLIM_OK;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "the fields '%s' and '%s' are the same; a preference needs two completions that differ",
                     s->field[FIRST].name, s->field[SECOND].name);
}

enum plim_status record_put_preference(const struct record_rules *r, struct encoder *encoder,
                                       struct record_chat *chat, char *line, size_t len,
                                       struct token_list *out, struct plim_error *err)
{
    struct sides s = {.line = line, .len = len};
    int32_t numbers[PREFERENCE_HEADER] = {0};
    size_t header = out->count, shared = SIZE_MAX;
    enum plim_status status = take_sides(r, &s, err);
    if (status == PLIM_OK) status = take_numbers(r, &s, numbers, err);
    for (int i = 0; i < PREFERENCE_HEADER && status == PLIM_OK; i++)
        status = record_put_number(out, numbers[i], err);
    for (bool again = true; again && status == PLIM_OK;) {
        out->count = header + PREFERENCE_HEADER;
        status = put_sides(r, encoder, chat, &s, &shared, &again, out, err);
    }
    if (status == PLIM_OK) status = check_difference(r, &s, out->id + header, out->count - header, err);
    if (out->full) status = plim_fail(err, PLIM_BAD_INPUT, "it has more tokens than fit (%zu)", out->most);
    out->full = false;
    if (status != PLIM_OK) out->count = header;
    return status;
}
