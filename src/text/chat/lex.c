/* lex.c - text and tags apart, then tags into tokens.
 *
 * Outside of tags the text runs to the next "{{", "{%" or "{#". What of the white space around a tag is printed
 * is decided there and then, as Jinja does it with trim_blocks and lstrip_blocks:
 *   - "{%-" takes all white space before it, "-%}" all after it (also with {{ }} and {# #});
 *   - a block or comment that is first on its line takes the blanks before it, unless written "{%+";
 *   - the first newline after a block or comment goes, unless written "+%}".
 * Line ends become "\n" first, and one newline at the template's end is dropped.
 *
 * Inside of tags, "}}" and "%}" end the tag only when every bracket is closed.
 */
#include "text/chat/lex.h"
#include "base/number.h"
#include "base/utf8.h"
#include "text/chat/unicode_text.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BRACKETS_MAX = 250 };

struct lexer {
    const char *name, *text;
    size_t len, at;
    int line;
    size_t line_at;     /* `line` is right for this offset */
    bool line_starting; /* what was read last ended with a newline */
    struct bump *store;
    struct chat_token *tokens;
    size_t count, cap;
    char brackets[BRACKETS_MAX];
    size_t open;
    struct plim_error *err;
    enum plim_status status;
};

static int line_of(struct lexer *lx, size_t at)
{
    for (; lx->line_at < at; lx->line_at++) lx->line += lx->text[lx->line_at] == '\n';
    return lx->line;
}

static bool out_of_memory(struct lexer *lx)
{
    lx->status = plim_fail(lx->err, PLIM_NO_MEMORY, "%s: out of memory", lx->name);
    return false;
}

#define lex_fail(lx, offset, ...) lex_fail_line(lx, line_of(lx, offset), __VA_ARGS__)

static bool lex_fail_line(struct lexer *lx, int line, const char *what, size_t len, const char *detail)
{
    lx->status = plim_fail(lx->err, PLIM_BAD_INPUT, "%s:%d: %s%.*s", lx->name, line, what, (int)len, detail);
    return false;
}

enum { TOKENS_MOST = 200000 };

static struct chat_token *push(struct lexer *lx, enum chat_token_kind kind, size_t begin, size_t end)
{
    if (lx->count == TOKENS_MOST)
        return lex_fail(lx, begin, "more than 200,000 words and signs in tags, the most for a template", 0,
                        ""),
               NULL;
    if (lx->count == lx->cap) {
        size_t cap = lx->cap ? lx->cap * 2 : 256;
        struct chat_token *tokens = realloc(lx->tokens, cap * sizeof *tokens);
        if (!tokens) return out_of_memory(lx), NULL;
        lx->tokens = tokens;
        lx->cap = cap;
    }
    struct chat_token *token = &lx->tokens[lx->count++];
    *token = (struct chat_token){kind, line_of(lx, begin), lx->text + begin, end - begin, {0}};
    return token;
}

static bool starts(const struct lexer *lx, size_t at, const char *what)
{
    size_t n = strlen(what);
    return lx->len - at >= n && memcmp(lx->text + at, what, n) == 0;
}

static bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

static size_t skip_space(const struct lexer *lx, size_t at)
{
    size_t end = lx->len;
    utext_strip(lx->text, &at, &end, NULL, 0, UTEXT_LEFT);
    return at;
}

/* ---- text between tags ---- */

/* The text before a tag, less what the tag's sign and place take away. */
static bool push_data(struct lexer *lx, size_t begin, size_t end, char sign, bool is_print)
{
    if (sign == '-') {
        utext_strip(lx->text, &begin, &end, NULL, 0, UTEXT_RIGHT);
    } else if (sign != '+' && !is_print) {
        size_t line = end;
        while (line > begin && lx->text[line - 1] != '\n') line--;
        size_t blank = line, stop = end;
        utext_strip(lx->text, &blank, &stop, NULL, 0, UTEXT_LEFT);
        if (blank == stop && (line > begin || lx->line_starting)) end = line;
    }
    return begin == end || push(lx, T_DATA, begin, end) != NULL;
}

/* After a closing mark: "-" takes all white space, blocks and comments take one newline. */
static void after_tag(struct lexer *lx, char sign, bool trims)
{
    if (sign == '-')
        lx->at = skip_space(lx, lx->at);
    else if (sign != '+' && trims && lx->at < lx->len && lx->text[lx->at] == '\n')
        lx->at++;
    lx->line_starting = lx->at > 0 && lx->text[lx->at - 1] == '\n';
}

static char sign_at(const struct lexer *lx, size_t at)
{
    char c = at < lx->len ? lx->text[at] : '\0';
    return c == '-' || c == '+' ? c : '\0';
}

static bool lex_comment(struct lexer *lx, size_t tag)
{
    size_t begin = lx->at, at = begin;
    while (at < lx->len && !starts(lx, at, "#}")) at++;
    if (at >= lx->len) return lex_fail(lx, tag, "comment without an end '#}'", 0, "");
    char sign = at > begin ? sign_at(lx, at - 1) : '\0';
    lx->at = at + 2;
    after_tag(lx, sign, true);
    return true;
}

/* "{% raw %}" at `tag`? Then the offset of its "%}" and the sign before that. */
static bool is_block_word(const struct lexer *lx, size_t tag, const char *word, size_t *close, char *sign)
{
    size_t at = skip_space(lx, tag + 2 + (sign_at(lx, tag + 2) != '\0'));
    if (!starts(lx, at, word)) return false;
    at = skip_space(lx, at + strlen(word));
    *sign = sign_at(lx, at);
    *close = at + (*sign != '\0');
    return starts(lx, *close, "%}");
}

/* Text up to {% endraw %}. The newline after {% raw %} stays, as in Jinja; the one after {% endraw %} goes. */
static bool lex_raw(struct lexer *lx, size_t tag, size_t close, char sign)
{
    lx->at = close + 2;
    after_tag(lx, sign, false);
    size_t begin = lx->at, end_close;
    char end_sign;
    for (size_t at = begin; at < lx->len; at++) {
        if (!starts(lx, at, "{%") || !is_block_word(lx, at, "endraw", &end_close, &end_sign)) continue;
        if (!push_data(lx, begin, at, sign_at(lx, at + 2), false)) return false;
        lx->at = end_close + 2;
        after_tag(lx, end_sign, true);
        return true;
    }
    return lex_fail(lx, tag, "{% raw %} without its {% endraw %}", 0, "");
}

/* ---- numbers and strings ---- */

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_word(char c)
{
    return c == '_' || is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (unsigned char)c >= 0x80;
}

static size_t digits(const struct lexer *lx, size_t at)
{
    while (at < lx->len && (is_digit(lx->text[at]) ||
                            (lx->text[at] == '_' && at + 1 < lx->len && is_digit(lx->text[at + 1]))))
        at++;
    return at;
}

static bool lex_number(struct lexer *lx)
{
    size_t begin = lx->at, at = digits(lx, begin), n = 0;
    bool real = false;
    bool after_dot = begin > 0 && lx->text[begin - 1] == '.'; /* x.0.1 is two steps, not a fraction */
    if (!after_dot && at + 1 < lx->len && lx->text[at] == '.' && is_digit(lx->text[at + 1]))
        real = true, at = digits(lx, at + 1);
    if (!after_dot && at < lx->len && (lx->text[at] | 32) == 'e') {
        size_t power = at + 1 + (sign_at(lx, at + 1) != '\0');
        if (power < lx->len && is_digit(lx->text[power])) real = true, at = digits(lx, power);
    }
    char plain[64];
    for (size_t i = begin; i < at && n < sizeof plain; i++)
        if (lx->text[i] != '_') plain[n++] = lx->text[i];
    struct chat_token *token = push(lx, real ? T_FLOAT : T_INT, begin, at);
    if (!token) return false;
    token->value = real ? chat_float(0) : chat_int(0);
    bool ok = n < sizeof plain && (real ? number_parse_double(plain, n, &token->value.as.real)
                                        : number_parse_int64(plain, n, &token->value.as.integer));
    ok = ok && (real || n == 1 || plain[0] != '0') && (at == lx->len || !is_word(lx->text[at]));
    if (!ok) return lex_fail(lx, begin, "not a number that fits: ", at - begin, lx->text + begin);
    lx->at = at;
    return true;
}

/* An escape of n hexadecimal digits, or of up to three octal ones. */
static bool escape_number(const char *text, size_t len, size_t n, int base, uint32_t *out, size_t *used)
{
    uint32_t value = 0;
    size_t i = 0;
    for (; i < n && i < len; i++) {
        char c = (char)(text[i] | 32);
        uint32_t digit = is_digit(text[i])      ? (uint32_t)(text[i] - '0')
                         : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                                                : 99;
        if (digit >= (uint32_t)base) break;
        value = value * (uint32_t)base + digit;
    }
    *out = value;
    *used = i;
    bool surrogate = value >= 0xd800 && value < 0xe000;
    return (base == 8 ? i > 0 : i == n) && value < 0x110000 && !surrogate;
}

/* One escape at text[0] (after the backslash): what it stands for, and how long it is. 0: not a valid one. */
static size_t unescape(const char *text, size_t len, char out[4], size_t *out_len)
{
    static const char plain[] = "\\\\''\"\"a\ab\bf\fn\nr\rt\tv\v";
    static const struct {
        char letter;
        size_t digits;
    } coded[] = {{'x', 2}, {'u', 4}, {'U', 8}};
    uint32_t point;
    size_t used;
    *out_len = 0;
    if (text[0] == '\n') return 1;
    for (size_t i = 0; plain[i]; i += 2)
        if (text[0] == plain[i]) return out[0] = plain[i + 1], *out_len = 1, 1;
    for (size_t i = 0; i < sizeof coded / sizeof *coded; i++)
        if (text[0] == coded[i].letter) {
            if (!escape_number(text + 1, len - 1, coded[i].digits, 16, &point, &used)) return 0;
            *out_len = utf8_encode(point, out);
            return 1 + used;
        }
    if (escape_number(text, len, 3, 8, &point, &used)) return *out_len = utf8_encode(point, out), used;
    if (text[0] == 'N') return 0;
    out[0] = '\\'; /* an unknown escape stands for itself; the letter follows as an ordinary one */
    *out_len = 1;
    return SIZE_MAX;
}

static bool lex_string(struct lexer *lx)
{
    size_t begin = lx->at, end = begin + 1;
    char quote = lx->text[begin], piece[4];
    while (end < lx->len && lx->text[end] != quote) end += lx->text[end] == '\\' ? 2 : 1;
    if (end >= lx->len) return lex_fail(lx, begin, "text without its closing quote", 0, "");
    char *out = bump_alloc(lx->store, end - begin + 1);
    struct chat_token *token = push(lx, T_STRING, begin, end + 1);
    if (!out) return out_of_memory(lx);
    if (!token) return false;
    size_t n = 0, piece_len;
    for (size_t at = begin + 1; at < end;) {
        if (lx->text[at] != '\\') {
            out[n++] = lx->text[at++];
            continue;
        }
        size_t used = unescape(lx->text + at + 1, end - at - 1, piece, &piece_len);
        if (used == 0) return lex_fail(lx, at, "escape that is not understood: ", 2, lx->text + at);
        memcpy(out + n, piece, piece_len);
        n += piece_len;
        at += used == SIZE_MAX ? 1 : 1 + used;
    }
    token->value = chat_string(out, n);
    lx->at = end + 1;
    return true;
}

/* ---- inside tags ---- */

static bool lex_operator(struct lexer *lx)
{
    static const char *const ops[] = {"**", "//", "==", "!=", "<=", ">=", "+", "-", "/", "*", "%", "~", "[",
                                      "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
    size_t i = 0, n = sizeof ops / sizeof *ops;
    while (i < n && !starts(lx, lx->at, ops[i])) i++;
    if (i == n)
        return lex_fail(lx, lx->at, "unexpected character: ", utext_step(lx->text[lx->at]),
                        lx->text + lx->at);
    char c = ops[i][0];
    if (strchr("([{", c)) {
        if (lx->open == BRACKETS_MAX) return lex_fail(lx, lx->at, "too many open brackets", 0, "");
        lx->brackets[lx->open++] = c == '(' ? ')' : (char)(c + 2);
    } else if (strchr(")]}", c) && (lx->open == 0 || lx->brackets[--lx->open] != c)) {
        return lex_fail(lx, lx->at, "unexpected ", 1, ops[i]);
    }
    if (!push(lx, T_OP, lx->at, lx->at + strlen(ops[i]))) return false;
    lx->at += strlen(ops[i]);
    return true;
}

static bool lex_word(struct lexer *lx)
{
    size_t end = lx->at;
    while (end < lx->len && is_word(lx->text[end])) end++;
    bool ok = push(lx, T_NAME, lx->at, end) != NULL;
    lx->at = end;
    return ok;
}

/* Tokens up to the closing mark, which is consumed with what it takes of the text after it. */
static bool lex_tag(struct lexer *lx, size_t tag, bool is_print)
{
    const char *mark = is_print ? "}}" : "%}";
    lx->open = 0;
    for (;;) {
        while (lx->at < lx->len && is_blank(lx->text[lx->at])) lx->at++;
        if (lx->at >= lx->len) return lex_fail(lx, tag, "tag without its end ", 2, mark);
        char c = lx->text[lx->at], sign = sign_at(lx, lx->at);
        if (is_print && sign == '+') sign = '\0';
        if (lx->open == 0 && starts(lx, lx->at + (sign != '\0'), mark)) {
            if (!push(lx, is_print ? T_PRINT_END : T_BLOCK_END, lx->at, lx->at)) return false;
            lx->at += 2 + (sign != '\0');
            after_tag(lx, sign, !is_print);
            return true;
        }
        bool ok = is_digit(c)             ? lex_number(lx)
                  : c == '\'' || c == '"' ? lex_string(lx)
                  : is_word(c)            ? lex_word(lx)
                                          : lex_operator(lx);
        if (!ok) return false;
    }
}

/* Text up to the next tag, and the tag. */
static bool lex_part(struct lexer *lx)
{
    size_t begin = lx->at, tag = begin, close;
    char raw_sign;
    while (tag < lx->len && !(lx->text[tag] == '{' && tag + 1 < lx->len && strchr("{%#", lx->text[tag + 1]) &&
                              lx->text[tag + 1]))
        tag++;
    if (tag >= lx->len) {
        lx->at = lx->len;
        return begin == lx->len || push(lx, T_DATA, begin, lx->len) != NULL;
    }
    char sign = sign_at(lx, tag + 2);
    bool is_print = lx->text[tag + 1] == '{';
    if (!push_data(lx, begin, tag, sign, is_print)) return false;
    lx->at = tag + 2 + (sign != '\0');
    if (lx->text[tag + 1] == '#') return lex_comment(lx, tag);
    if (!is_print && is_block_word(lx, tag, "raw", &close, &raw_sign))
        return lex_raw(lx, tag, close, raw_sign);
    if (!push(lx, is_print ? T_PRINT : T_BLOCK, tag, tag + 2)) return false;
    return lex_tag(lx, tag, is_print);
}

/* Line ends as "\n", and none at the very end. */
static bool normalise(struct lexer *lx, const char *text, size_t len)
{
    char *copy = bump_alloc(lx->store, len + 1);
    if (!copy) return out_of_memory(lx);
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '\r' && i + 1 < len && text[i + 1] == '\n') i++;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (n > 0 && copy[n - 1] == '\n') n--;
    lx->text = copy;
    lx->len = n;
    return true;
}

enum plim_status chat_lex(const char *text, size_t len, const char *name, struct bump *store,
                          struct chat_token **out, struct plim_error *err)
{
    struct lexer lx = {.name = name, .line = 1, .line_starting = true, .store = store, .err = err};
    bool ok = normalise(&lx, text, len);
    size_t good = ok ? utf8_valid_prefix(lx.text, lx.len) : 0;
    if (ok && good < lx.len) ok = lex_fail(&lx, good, "the template is not UTF-8", 0, "");
    while (ok && lx.at < lx.len) ok = lex_part(&lx);
    ok = ok && push(&lx, T_END, lx.len, lx.len);
    struct chat_token *tokens = ok ? bump_alloc(store, lx.count * sizeof *tokens) : NULL;
    if (ok && !tokens) ok = out_of_memory(&lx);
    if (ok) memcpy(tokens, lx.tokens, lx.count * sizeof *tokens);
    free(lx.tokens);
    *out = tokens;
    return ok ? PLIM_OK : lx.status;
}

const char *chat_token_describe(const struct chat_token *token, char buf[64])
{
    static const char *const names[] = {
        [T_END] = "the end of the template",
        [T_DATA] = "text",
        [T_PRINT] = "'{{'",
        [T_PRINT_END] = "'}}'",
        [T_BLOCK] = "'{%'",
        [T_BLOCK_END] = "'%}'",
        [T_OP] = NULL,
    };
    if (token->kind <= T_BLOCK_END) return names[token->kind];
    snprintf(buf, 64, "'%.*s'", (int)(token->len < 40 ? token->len : 40), token->text);
    return buf;
}
