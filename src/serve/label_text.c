/* label_text.c - see label_text.h. */
#include "serve/label_text.h"
#include "base/utf8.h"
#include "data/record.h"

#include <stdlib.h>
#include <string.h>

enum { SPARE_IDS = 64 }; /* encoders want room for a few before they know how many there are */

static enum plim_status no_memory(struct plim_error *err)
{
    return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the tokens of a text");
}

void label_text_release(struct label_text *t)
{
    strbuf_release(&t->text);
    token_list_release(&t->body), token_list_release(&t->ids);
    span_list_release(&t->spans);
    free(t->rows);
    *t = (struct label_text){0};
}

static bool add_ids(struct token_list *to, const int32_t *ids, size_t count)
{
    if (!token_list_reserve(to, count + 1)) return false;
    if (count) memcpy(to->id + to->count, ids, count * sizeof *ids);
    to->count += count;
    return true;
}

static struct label_row *add_row(struct label_text *t)
{
    if (t->row_count == t->row_cap) {
        size_t cap = t->row_cap ? 2 * t->row_cap : 1;
        struct label_row *more = realloc(t->rows, cap * sizeof *more);
        if (!more) return NULL;
        t->rows = more, t->row_cap = cap;
    }
    struct label_row *row = &t->rows[t->row_count++];
    *row = (struct label_row){.first_id = t->ids.count};
    return row;
}

static enum plim_status too_long(struct label_text *t, size_t tokens, const struct label_form *form,
                                 struct plim_error *err)
{
    t->too_long = tokens;
    return plim_fail(err, PLIM_BAD_INPUT,
                     "the text has %zu tokens with its marks, and the model takes %lld; shorten it, or give "
                     "--truncate%s",
                     tokens, (long long)form->time, form->spans ? " or --stride" : "");
}

/* --- one text ------------------------------------------------------------------------------------------------- */

struct marks {
    struct token_list before, after;
};

static enum plim_status add_window(struct label_text *t, const struct marks *m, size_t from, size_t count,
                                   struct plim_error *err)
{
    struct label_row *row = add_row(t);
    if (!row || !add_ids(&t->ids, m->before.id, m->before.count) ||
        !add_ids(&t->ids, t->body.id + from, count) || !add_ids(&t->ids, m->after.id, m->after.count))
        return no_memory(err);
    row->count = t->ids.count - row->first_id;
    row->skip = m->before.count, row->tokens = count, row->from = from;
    if (!row->count) return plim_fail(err, PLIM_BAD_INPUT, "the text is empty and makes no tokens");
    return PLIM_OK;
}

static enum plim_status make_windows(struct label_text *t, const struct marks *m,
                                     const struct label_form *form, struct plim_error *err)
{
    size_t around = m->before.count + m->after.count, all = t->body.count;
    if (around >= (size_t)form->time)
        return plim_fail(err, PLIM_BAD_INPUT, "rows of %lld tokens have no room for text beside %zu marks",
                         (long long)form->time, around);
    size_t most = (size_t)form->time - around;
    if (all <= most) return add_window(t, m, 0, all, err);
    if (form->truncate && form->stride < 0) return t->cut = true, add_window(t, m, 0, most, err);
    if (form->stride < 0) return too_long(t, all + around, form, err);
    if ((size_t)form->stride > most / 2)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "windows of %zu tokens share at most half of them, %zu; a stride of %lld is more",
                         most, most / 2, (long long)form->stride);
    enum plim_status status = PLIM_OK;
    for (size_t from = 0, step = most - (size_t)form->stride; status == PLIM_OK; from += step) {
        size_t end = from + most < all ? from + most : all;
        status = add_window(t, m, from, end - from, err);
        if (end == all) break;
    }
    return status;
}

static enum plim_status read_one(struct label_text *t, struct encoder *encoder, const struct label_form *form,
                                 const struct label_input *in, struct plim_error *err)
{
    struct marks m = {0};
    enum plim_status status = PLIM_OK;
    if (form->spans) {
        strbuf_addn(&t->text, in->text, in->len);
        size_t good = utf8_valid_prefix(in->text, in->len);
        status = strbuf_status(&t->text, err);
        if (status == PLIM_OK && good < in->len)
            status = plim_fail(err, PLIM_BAD_INPUT, "the text is not UTF-8 (byte %zu)", good + 1);
        if (status == PLIM_OK) status = encoder_locate(encoder, in->text, in->len, &t->body, &t->spans, err);
    } else {
        status = encoder_encode(encoder, in->text, in->len, 0, &t->body, err);
    }
    if (status == PLIM_OK) status = encoder_encode(encoder, "", 0, TOKENIZE_BEFORE, &m.before, err);
    if (status == PLIM_OK) status = encoder_encode(encoder, "", 0, TOKENIZE_AFTER, &m.after, err);
    if (status == PLIM_OK) status = make_windows(t, &m, form, err);
    token_list_release(&m.before), token_list_release(&m.after);
    return status;
}

/* --- two texts ------------------------------------------------------------------------------------------------ */

/* Tokens that each of two texts keeps of `most` together: the longer one loses first. */
static void share(size_t *first, size_t *second, size_t most)
{
    size_t *less = *first > *second ? second : first, *more = less == first ? second : first;
    if (*first + *second <= most) return;
    size_t rest = most > *less ? most - *less : 0;
    *more = *less > most || rest < *less ? *less : rest;
    if (*less + *more > most) *less = most / 2, *more = *less + most % 2;
}

static enum plim_status add_pair(struct label_text *t, const struct pair_marks *m, size_t first, size_t a,
                                 size_t b, struct plim_error *err)
{
    struct label_row *row = add_row(t);
    const int32_t *body = t->body.id;
    if (!row || !add_ids(&t->ids, m->before, m->nbefore) || !add_ids(&t->ids, body, a) ||
        !add_ids(&t->ids, m->between, m->nbetween) || !add_ids(&t->ids, body + first, b) ||
        !add_ids(&t->ids, m->after, m->nafter))
        return no_memory(err);
    row->count = t->ids.count - row->first_id;
    if (m->second >= 0) row->second = (int64_t)(m->nbefore + a) + m->second;
    return PLIM_OK;
}

static enum plim_status read_two(struct label_text *t, struct encoder *encoder, const struct tokenizer *tok,
                                 const struct label_form *form, const struct label_input *in,
                                 struct plim_error *err)
{
    struct pair_marks m;
    if (form->spans)
        return plim_fail(err, PLIM_BAD_INPUT, "a model that labels tokens takes one text, not text_pair");
    if (!tokenizer_pair_marks(tok, &m))
        return plim_fail(err, PLIM_UNSUPPORTED, "the tokenizer has no form for two texts");
    enum plim_status status = encoder_encode(encoder, in->text, in->len, 0, &t->body, err);
    size_t first = t->body.count, around = m.nbefore + m.nbetween + m.nafter;
    if (status == PLIM_OK) status = encoder_encode(encoder, in->pair, in->pair_len, 0, &t->body, err);
    if (status != PLIM_OK) return status;
    size_t second = t->body.count - first, a = first;
    if (around >= (size_t)form->time) return too_long(t, around, form, err);
    share(&a, &second, (size_t)form->time - around);
    t->cut = a + second < t->body.count;
    if (t->cut && !form->truncate) return too_long(t, t->body.count + around, form, err);
    return add_pair(t, &m, first, a, second, err);
}

static enum plim_status read_text(struct label_text *t, struct encoder *encoder, const struct tokenizer *tok,
                                  const struct label_form *form, const struct label_input *in,
                                  struct plim_error *err)
{
    t->body.most = form->most ? (size_t)form->most + SPARE_IDS : 0, t->body.full = false;
    strbuf_clear(&t->text);
    t->body.count = t->ids.count = t->spans.count = t->row_count = t->too_long = 0, t->cut = false;
    return in->pair_len ? read_two(t, encoder, tok, form, in, err) : read_one(t, encoder, form, in, err);
}

static size_t shortened(const char *text, size_t len, size_t most)
{
    return len > most ? text_cut(text, most) : len;
}

/* A text of more tokens than are read is cut before they are made: a token is no less than a byte. */
enum plim_status label_text_read(struct label_text *t, struct encoder *encoder, const struct tokenizer *tok,
                                 const struct label_form *form, const struct label_input *in,
                                 struct plim_error *err)
{
    enum plim_status status = read_text(t, encoder, tok, form, in, err);
    size_t half = (size_t)form->most / 2;
    if (t->body.full && form->truncate && form->stride < 0) {
        struct label_input less = {in->text, in->pair, shortened(in->text, in->len, half),
                                   shortened(in->pair, in->pair_len, half)};
        status = read_text(t, encoder, tok, form, &less, err);
        t->cut = true;
    }
    if (!t->body.full) return status;
    t->too_long = (size_t)form->most + 1;
    return plim_fail(err, PLIM_BAD_INPUT, "the text has more than %lld tokens, the most that are read",
                     (long long)form->most);
}
