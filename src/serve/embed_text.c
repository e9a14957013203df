/* embed_text.c - see embed_text.h. */
#include "serve/embed_text.h"
#include "data/record.h"

#include <stdlib.h>
#include <string.h>

struct text_rows {
    struct encoder *encoder;
    struct token_list before, after, body; /* marks; tokens of the present text */
    int64_t max_length, most, count, cut;
    struct embed_row *rows;
    int32_t *ids; /* [most][max_length] */
};

enum plim_status text_rows_open(const struct codec *codec, int64_t max_length, int64_t most,
                                struct text_rows **out, struct plim_error *err)
{
    struct text_rows *r = calloc(1, sizeof *r);
    if (!r) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for rows of tokens");
    r->max_length = max_length, r->most = most;
    r->rows = calloc((size_t)most, sizeof *r->rows);
    r->ids = malloc((size_t)(most * max_length) * sizeof *r->ids);
    enum plim_status status = encoder_open(codec->tokenizer, &r->encoder, err);
    if (status == PLIM_OK && (!r->rows || !r->ids))
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory for rows of tokens");
    if (status == PLIM_OK) status = encoder_encode(r->encoder, "", 0, TOKENIZE_BEFORE, &r->before, err);
    if (status == PLIM_OK) status = encoder_encode(r->encoder, "", 0, TOKENIZE_AFTER, &r->after, err);
    int64_t marks = (int64_t)(r->before.count + r->after.count);
    if (status == PLIM_OK && marks >= max_length)
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "rows of %lld tokens have no room for text besides %lld special tokens; raise "
                           "--max-length",
                           (long long)max_length, (long long)marks);
    if (status == PLIM_OK)
        *out = r;
    else
        text_rows_close(r);
    return status;
}

void text_rows_close(struct text_rows *r)
{
    if (!r) return;
    encoder_close(r->encoder);
    token_list_release(&r->before), token_list_release(&r->after), token_list_release(&r->body);
    free(r->rows);
    free(r->ids);
    free(r);
}

/* Tokens of the text's beginning, at least `most` when it has as many: a long text is encoded piece by piece. */
static enum plim_status encode(struct text_rows *r, const char *text, size_t len, size_t most,
                               struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    r->body.count = 0;
    while (len && r->body.count < most && status == PLIM_OK) {
        size_t n = len > RECORD_PIECE ? text_cut(text, RECORD_PIECE) : len;
        status = encoder_encode(r->encoder, text, n, 0, &r->body, err);
        text += n, len -= n;
    }
    return status;
}

static void put(int32_t **to, const struct token_list *list, size_t count)
{
    if (count) memcpy(*to, list->id, count * sizeof **to);
    *to += count;
}

enum plim_status text_rows_add(struct text_rows *r, const char *text, size_t len, struct plim_error *err)
{
    size_t most = (size_t)r->max_length - r->before.count - r->after.count;
    enum plim_status status = encode(r, text, len, most + 1, err);
    if (status != PLIM_OK) return status;
    size_t count = r->body.count < most ? r->body.count : most;
    int32_t *ids = r->ids + r->count * r->max_length, *to = ids;
    put(&to, &r->before, r->before.count);
    put(&to, &r->body, count);
    put(&to, &r->after, r->after.count);
    if (to == ids) /* a tokenizer without marks, and no text */
        return plim_fail(err, PLIM_BAD_INPUT, "the text is empty and makes no tokens");
    r->rows[r->count++] = (struct embed_row){ids, to - ids};
    r->cut += r->body.count > most;
    return PLIM_OK;
}

bool text_rows_full(const struct text_rows *r) { return r->count == r->most; }
void text_rows_clear(struct text_rows *r) { r->count = 0; }
const struct embed_row *text_rows(const struct text_rows *r) { return r->rows; }
int64_t text_rows_count(const struct text_rows *r) { return r->count; }
int64_t text_rows_cut(const struct text_rows *r) { return r->cut; }

int64_t text_rows_bytes(const struct codec *codec, int64_t max_length, int64_t most)
{
    return most * (int64_t)(sizeof(struct embed_row) + (size_t)max_length * sizeof(int32_t)) +
           (int64_t)encoder_bytes_most(codec->tokenizer, RECORD_PIECE) +
           (int64_t)(RECORD_TOKENS * sizeof(int32_t));
}
