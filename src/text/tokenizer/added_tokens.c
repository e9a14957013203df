/* added_tokens.c - added and special tokens.
 *
 * Each stage has a trie of its tokens, children linked as lists, and a table of the bytes a token can begin with:
 * ordinary text is skipped at the speed of that table. Ids and flags follow the reference library: a token already
 * in the vocabulary keeps that id whatever the file says, others are numbered on from its end; of equal texts the
 * flags of the last count.
 */
#define _GNU_SOURCE /* qsort_r */
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bytes_hash.h"
#include "text/tokenizer/text.h"
#include "text/unicode.h"
#include <stdlib.h>

enum { MALLOC_BYTES = 32 }; /* what a small allocation costs beside its bytes, at most */

struct added_token {
    char *text;
    size_t len;
    char *normal; /* what the normalizer makes of it, when it is looked for there; else NULL */
    size_t normal_len;
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
    bool replaced; /* a later token has the same text */
};

struct trie_node {
    int32_t child, sibling; /* 0: none */
    int32_t token;          /* index, or -1 */
    unsigned char byte;
};
struct trie {
    struct trie_node *node; /* node[0] is the root */
    size_t count, cap;
    int32_t first[256];  /* child of the root by byte; 0: none */
    int only;            /* the one byte all tokens begin with, or -1 */
    struct quota *quota; /* while it is built */
    bool refused;        /* by the quota */
};

struct added_tokens {
    struct added_token *token;
    size_t count;
    int32_t *slots; /* index + 1 by text */
    size_t mask;
    int32_t *by_id; /* indices, in the order of their ids */
    size_t by_ids;
    int64_t size;
    struct trie trie[2];
};

/* --- the trie ---------------------------------------------------------------------------------------------- */

static int32_t trie_add(struct trie *t, unsigned char byte)
{
    if (t->count == t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        t->refused = !quota_take(t->quota, (cap - t->cap) * sizeof *t->node);
        if (t->refused) return -1;
        struct trie_node *grown = realloc(t->node, cap * sizeof *grown);
        if (!grown) return -1;
        t->node = grown, t->cap = cap;
    }
    t->node[t->count] = (struct trie_node){.token = -1, .byte = byte};
    return (int32_t)t->count++;
}

static int32_t trie_child(const struct trie *t, int32_t node, unsigned char byte)
{
    if (node == 0) return t->first[byte];
    int32_t child = t->node[node].child;
    while (child && t->node[child].byte != byte) child = t->node[child].sibling;
    return child;
}

static bool trie_put(struct trie *t, const char *text, size_t len, int32_t token)
{
    int32_t node = 0;
    if (t->count == 0 && trie_add(t, 0) < 0) return false;
    for (size_t i = 0; i < len; i++) {
        unsigned char byte = (unsigned char)text[i];
        int32_t child = trie_child(t, node, byte);
        if (!child) {
            child = trie_add(t, byte);
            if (child < 0) return false;
            if (node == 0) {
                t->first[byte] = child;
            } else {
                t->node[child].sibling = t->node[node].child;
                t->node[node].child = child;
            }
        }
        node = child;
    }
    if (node && t->node[node].token < 0) t->node[node].token = token; /* of equal patterns the first */
    return true;
}

static void trie_finish(struct trie *t)
{
    int bytes = 0;
    t->only = -1;
    for (int b = 0; b < 256; b++)
        if (t->first[b]) bytes++, t->only = b;
    if (bytes != 1) t->only = -1;
}

/* Where a token may begin, at or after `at`; len: nowhere. */
static size_t trie_skip(const struct trie *t, const char *text, size_t at, size_t len)
{
    if (t->only >= 0) {
        const char *hit = at < len ? memchr(text + at, t->only, len - at) : NULL;
        return hit ? (size_t)(hit - text) : len;
    }
    while (at < len && !t->first[(unsigned char)text[at]]) at++;
    return at;
}

/* The longest token at text[at], or -1; *end is where it ends. */
static int32_t trie_match(const struct trie *t, const char *text, size_t at, size_t len, size_t *end)
{
    int32_t node = 0, found = -1;
    while (at < len) {
        node = trie_child(t, node, (unsigned char)text[at++]);
        if (!node) break;
        if (t->node[node].token >= 0) found = t->node[node].token, *end = at;
    }
    return found;
}

/* --- building ---------------------------------------------------------------------------------------------- */

static int32_t *slot_of(const struct added_tokens *a, const char *text, size_t len)
{
    size_t at = (size_t)bytes_hash(text, len, (uint64_t)(uintptr_t)a->slots) & a->mask;
    for (; a->slots[at]; at = (at + 1) & a->mask) {
        const struct added_token *token = &a->token[a->slots[at] - 1];
        if (token->len == len && memcmp(token->text, text, len) == 0) break;
    }
    return &a->slots[at];
}

/* The id the library gives: the vocabulary's, or the next after everything so far. */
static int32_t choose_id(const struct added_tokens *a, const struct token_vocab *vocab, size_t vocab_count,
                         const char *text, size_t len, int64_t largest)
{
    int32_t slot = *slot_of(a, text, len);
    if (slot) return a->token[slot - 1].id;
    int32_t id = vocab ? token_vocab_id(vocab, text, len) : -1;
    if (id >= 0) return id;
    return (int32_t)(largest >= (int64_t)vocab_count ? largest + 1 : (int64_t)vocab_count);
}

static bool copy_token(struct added_token *token, const struct node *item, const struct node *content)
{
    *token = (struct added_token){
        .len = content->as.string.len,
        .text = malloc(content->as.string.len + 1),
        .single_word = node_bool(node_get(item, "single_word"), false),
        .lstrip = node_bool(node_get(item, "lstrip"), false),
        .rstrip = node_bool(node_get(item, "rstrip"), false),
        .special = node_bool(node_get(item, "special"), false),
    };
    token->normalized = node_bool(node_get(item, "normalized"), !token->special);
    if (token->text) memcpy(token->text, content->as.string.text, token->len + 1);
    return token->text != NULL;
}

static enum plim_status read_tokens(struct added_tokens *a, const struct node *list, const char *name,
                                    const struct token_vocab *vocab, size_t vocab_count, struct quota *quota,
                                    struct plim_error *err)
{
    int64_t largest = -1;
    for (size_t i = 0; i < node_count(list); i++) {
        const struct node *item = node_item(list, i), *content = node_get(item, "content");
        if (!content || content->kind != NODE_STRING)
            return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: added_tokens: expected a map with content", name,
                             item->line);
        if (content->as.string.len == 0) continue;
        enum plim_status status =
            token_check_length(content->as.string.text, content->as.string.len, name, err);
        if (status != PLIM_OK) return status;
        int32_t id =
            choose_id(a, vocab, vocab_count, content->as.string.text, content->as.string.len, largest);
        if (!quota_take(quota, content->as.string.len + MALLOC_BYTES)) return quota_fail(quota, name, err);
        if (!copy_token(&a->token[a->count], item, content))
            return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for added tokens", name);
        a->token[a->count].id = id;
        int32_t *slot = slot_of(a, content->as.string.text, content->as.string.len);
        if (*slot) a->token[*slot - 1].replaced = true;
        *slot = (int32_t)++a->count;
        if (id > largest) largest = id;
    }
    a->size = largest + 1;
    return PLIM_OK;
}

static int compare_ids(const void *a, const void *b, void *all)
{
    const struct added_token *token = all;
    int32_t left = token[*(const int32_t *)a].id, right = token[*(const int32_t *)b].id;
    return (left > right) - (left < right);
}

static void sort_by_id(struct added_tokens *a)
{
    for (size_t i = 0; i < a->count; i++)
        if (!a->token[i].replaced) a->by_id[a->by_ids++] = (int32_t)i;
    qsort_r(a->by_id, a->by_ids, sizeof *a->by_id, compare_ids, a->token);
}

/* Data needed only while building. */
struct added_build {
    struct added_tokens *a;
    const char *name;
    const struct normalizer *normalizer;
    struct quota *quota;
    struct strbuf spare;
    struct plim_error *err;
};

static enum plim_status fail_memory(const struct added_build *b)
{
    return plim_fail(b->err, PLIM_NO_MEMORY, "%s: no memory for added tokens", b->name);
}

static enum plim_status normalize_token(struct added_build *b, struct added_token *token)
{
    struct strbuf text = {.most = normalizer_most(token->len)};
    b->spare.most = text.most;
    if (b->normalizer)
        normalizer_run(b->normalizer, token->text, token->len, &text, &b->spare);
    else
        strbuf_addn(&text, token->text, token->len);
    bool full = text.full;
    token->normal = strbuf_detach(&text, &token->normal_len);
    if (full) {
        normalizer_fail(token->len, b->err);
        plim_error_prefix(b->err, "%s: added token '%.40s'", b->name, token->text);
        return PLIM_BAD_INPUT;
    }
    if (!token->normal) return fail_memory(b);
    return quota_take(b->quota, token->normal_len + MALLOC_BYTES) ? PLIM_OK
                                                                  : quota_fail(b->quota, b->name, b->err);
}

static enum plim_status put_token(struct added_build *b, size_t i)
{
    struct added_token *token = &b->a->token[i];
    struct trie *trie = &b->a->trie[token->normalized ? ADDED_NORMALIZED : ADDED_RAW];
    enum plim_status status = token->normalized ? normalize_token(b, token) : PLIM_OK;
    if (status != PLIM_OK) return status;
    const char *text = token->normalized ? token->normal : token->text;
    if (trie_put(trie, text, token->normalized ? token->normal_len : token->len, (int32_t)i)) return PLIM_OK;
    return trie->refused ? quota_fail(b->quota, b->name, b->err) : fail_memory(b);
}

static enum plim_status build_tries(struct added_build *b)
{
    struct added_tokens *a = b->a;
    enum plim_status status = PLIM_OK;
    for (int pass = 0; pass < 2; pass++) /* special tokens come first: of equal patterns the first wins */
        for (size_t i = 0; i < a->count && status == PLIM_OK; i++)
            if (!a->token[i].replaced && a->token[i].special == (pass == 0)) status = put_token(b, i);
    for (int stage = 0; stage < 2; stage++) trie_finish(&a->trie[stage]);
    strbuf_release(&b->spare);
    return status;
}

static enum plim_status make_tables(struct added_build *b, size_t count)
{
    struct added_tokens *a = b->a;
    for (a->mask = 15; a->mask < 2 * count; a->mask = 2 * a->mask + 1) continue;
    uint64_t bytes = (count + 1) * (sizeof *a->token + sizeof *a->by_id) + (a->mask + 1) * sizeof *a->slots;
    if (!quota_take(b->quota, bytes)) return quota_fail(b->quota, b->name, b->err);
    a->token = calloc(count + 1, sizeof *a->token);
    a->slots = calloc(a->mask + 1, sizeof *a->slots);
    a->by_id = calloc(count + 1, sizeof *a->by_id);
    for (int stage = 0; stage < 2; stage++) a->trie[stage].quota = b->quota;
    return a->token && a->slots && a->by_id ? PLIM_OK : fail_memory(b);
}

enum plim_status added_tokens_build(const struct node *list, const char *name,
                                    const struct token_vocab *vocab, size_t vocab_count,
                                    const struct normalizer *normalizer, struct quota *quota,
                                    struct added_tokens **out, struct plim_error *err)
{
    *out = NULL;
    struct added_tokens *a = calloc(1, sizeof *a);
    struct added_build b = {.a = a, .name = name, .normalizer = normalizer, .quota = quota, .err = err};
    if (!a) return fail_memory(&b);
    enum plim_status status = make_tables(&b, node_count(list));
    if (status == PLIM_OK) status = read_tokens(a, list, name, vocab, vocab_count, quota, err);
    if (status == PLIM_OK) sort_by_id(a);
    if (status == PLIM_OK) status = build_tries(&b);
    for (int stage = 0; stage < 2; stage++) a->trie[stage].quota = NULL;
    if (status == PLIM_OK)
        *out = a;
    else
        added_tokens_free(a);
    return status;
}

void added_tokens_free(struct added_tokens *a)
{
    if (!a) return;
    for (size_t i = 0; i < a->count; i++) free(a->token[i].text), free(a->token[i].normal);
    for (int stage = 0; stage < 2; stage++) free(a->trie[stage].node);
    free(a->token);
    free(a->slots);
    free(a->by_id);
    free(a);
}

size_t added_tokens_bytes(const struct added_tokens *a)
{
    size_t bytes = sizeof *a + (a->count + 1) * sizeof *a->token + (a->mask + 1) * sizeof *a->slots +
                   (a->count + 1) * sizeof *a->by_id;
    for (size_t i = 0; i < a->count; i++) bytes += a->token[i].len + a->token[i].normal_len + 2;
    for (int stage = 0; stage < 2; stage++) bytes += a->trie[stage].cap * sizeof *a->trie[stage].node;
    return bytes;
}

/* --- asking ------------------------------------------------------------------------------------------------ */

int64_t added_tokens_size(const struct added_tokens *a) { return a->size; }

int32_t added_tokens_id(const struct added_tokens *a, const char *text, size_t len)
{
    int32_t slot = *slot_of(a, text, len);
    return slot ? a->token[slot - 1].id : -1;
}

static const struct added_token *find_id(const struct added_tokens *a, int32_t id)
{
    size_t low = 0, high = a->by_ids;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct added_token *token = &a->token[a->by_id[mid]];
        if (token->id == id) return token;
        if (token->id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

const char *added_tokens_text(const struct added_tokens *a, int32_t id, size_t *len)
{
    const struct added_token *token = find_id(a, id);
    if (!token) return NULL;
    if (len) *len = token->normal ? token->normal_len : token->len;
    return token->normal ? token->normal : token->text;
}

bool added_tokens_special_id(const struct added_tokens *a, int32_t id)
{
    const struct added_token *token = find_id(a, id);
    return token && token->special;
}

bool added_tokens_special(const struct added_tokens *a, const char *text, size_t len)
{
    int32_t slot = *slot_of(a, text, len);
    return slot && a->token[slot - 1].special;
}

bool added_tokens_strip(const struct added_tokens *added)
{
    bool strip = false;
    for (size_t i = 0; added && i < added->count; i++)
        strip |= added->token[i].lstrip || added->token[i].rstrip;
    return strip;
}

bool added_tokens_any(const struct added_tokens *a, enum added_stage stage)
{
    return a->trie[stage].count > 0;
}

static bool word_at(const char *text, size_t at)
{
    size_t len = 0;
    return unicode_is_word(text_point(text + at, &len));
}

static bool space_at(const char *text, size_t at, size_t *next)
{
    *next = at;
    return unicode_is_space(text_point(text + at, next));
}

static size_t spaces_before(const char *text, size_t at)
{
    size_t next;
    while (at > 0 && space_at(text, text_before(text, at), &next)) at = text_before(text, at);
    return at;
}

static size_t spaces_after(const char *text, size_t at, size_t len)
{
    size_t next;
    while (at < len && space_at(text, at, &next)) at = next;
    return at;
}

static bool stands_alone(const struct added_search *s, size_t start, size_t end)
{
    bool left = start == 0 || !word_at(s->text, text_before(s->text, start));
    return left && (end == s->len || !word_at(s->text, end));
}

bool added_next(const struct added_tokens *a, enum added_stage stage, struct added_search *s,
                struct added_hit *hit)
{
    const struct trie *t = &a->trie[stage];
    while ((s->at = trie_skip(t, s->text, s->at, s->len)) < s->len) {
        size_t start = s->at, end = start;
        int32_t index = trie_match(t, s->text, start, s->len, &end);
        if (index < 0) {
            s->at++;
            continue;
        }
        const struct added_token *token = &a->token[index];
        s->at = end;
        if (token->single_word && !stands_alone(s, start, end)) continue;
        if (token->lstrip) {
            start = spaces_before(s->text, start);
            if (start < s->taken) start = s->taken;
        }
        if (token->rstrip) end = spaces_after(s->text, end, s->len);
        s->taken = end;
        *hit = (struct added_hit){start, end, token->id};
        return true;
    }
    return false;
}
