/* regex_parse.c - a pattern's text into a tree, by recursive descent: choice, sequence, quantified atom. */
#include "base/utf8.h"
#include "text/regex_program.h"
#include "text/unicode.h"
#include <string.h>

enum { DEPTH_MOST = 64 };

struct regex_tree *regex_refuse(struct regex_parse *p, enum plim_status status, const char *what)
{
    if (p->status != PLIM_OK) return NULL;
    p->status = status;
    if (status == PLIM_UNSUPPORTED)
        plim_fail(p->err, status, "%s is not supported in a regular expression", what);
    else if (status == PLIM_NO_MEMORY)
        plim_fail(p->err, status, "no memory for a regular expression");
    else
        plim_fail(p->err, status, "regular expression: %s", what);
    return NULL;
}

uint32_t regex_take(struct regex_parse *p)
{
    uint32_t point = 0xfffd;
    size_t n = utf8_decode(p->at, (size_t)(p->end - p->at), &point);
    p->at += n ? n : 1;
    return point;
}

static bool accept(struct regex_parse *p, const char *text)
{
    size_t n = strlen(text);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, text, n) != 0) return false;
    p->at += n;
    return true;
}

static struct regex_tree *tree_new(struct regex_parse *p, enum regex_kind kind)
{
    struct regex_tree *tree = bump_alloc(&p->store, sizeof *tree);
    if (!tree) return regex_refuse(p, PLIM_NO_MEMORY, "");
    tree->kind = kind;
    tree->set = -1;
    return tree;
}

static struct regex_tree *tree_set(struct regex_parse *p, int32_t set)
{
    struct regex_tree *tree = set < 0 ? NULL : tree_new(p, REGEX_SET);
    if (tree) tree->set = set;
    return tree;
}

static struct regex_tree *one_item(struct regex_parse *p, struct regex_item item)
{
    int32_t set = regex_set_new(p->sets);
    if (set < 0 || !regex_set_add(p->sets, set, item)) return regex_refuse(p, PLIM_NO_MEMORY, "");
    regex_set_finish(p->sets, set);
    return tree_set(p, set);
}

static struct regex_tree *literal(struct regex_parse *p, uint32_t point)
{
    struct regex_item item = {.first = point, .last = point, .set = -1};
    if (!p->fold || !(unicode_classes(point) & UNICODE_L)) return one_item(p, item);
    if (point >= 0x80) return regex_refuse(p, PLIM_UNSUPPORTED, "(?i) with letters beyond ASCII");
    int32_t set = regex_set_new(p->sets);
    if (set < 0 || !regex_set_add_folded(p->sets, set, point, point))
        return regex_refuse(p, PLIM_NO_MEMORY, "");
    regex_set_finish(p->sets, set);
    return tree_set(p, set);
}

static struct regex_tree *anchor(struct regex_parse *p, enum regex_anchor which)
{
    struct regex_tree *tree = tree_new(p, REGEX_ANCHOR);
    if (tree) tree->anchor = which;
    return tree;
}

static struct regex_tree *escape(struct regex_parse *p)
{
    static const struct {
        char letter;
        enum regex_anchor which;
    } anchors[] = {{'A', REGEX_TEXT_START},
                   {'z', REGEX_TEXT_END},
                   {'Z', REGEX_TEXT_END_LINE},
                   {'b', REGEX_WORD_EDGE},
                   {'B', REGEX_NO_WORD_EDGE}};
    struct regex_item item;
    uint32_t point;
    if (p->at == p->end) return regex_refuse(p, PLIM_BAD_INPUT, "it ends with a backslash");
    for (size_t i = 0; i < sizeof anchors / sizeof *anchors; i++)
        if (*p->at == anchors[i].letter) {
            p->at++;
            return anchor(p, anchors[i].which);
        }
    if (regex_parse_property(p, &item)) return one_item(p, item);
    if (p->status != PLIM_OK) return NULL;
    if (regex_parse_point(p, &point)) return literal(p, point);
    if (p->status != PLIM_OK) return NULL;
    char what[] = "escape \\?";
    what[sizeof what - 2] = *p->at;
    return regex_refuse(p, PLIM_UNSUPPORTED, what);
}

static struct regex_tree *choice(struct regex_parse *p);

static struct regex_tree *wrapped(struct regex_parse *p, enum regex_kind kind)
{
    struct regex_tree *tree = tree_new(p, kind);
    struct regex_tree *body = tree ? choice(p) : NULL;
    if (!body) return NULL;
    tree->first = body;
    if (!accept(p, ")")) return regex_refuse(p, PLIM_BAD_INPUT, "a '(' without ')'");
    return tree;
}

static struct regex_tree *look(struct regex_parse *p, bool behind, bool negated)
{
    struct regex_tree *tree = wrapped(p, REGEX_LOOK);
    if (tree) tree->behind = behind, tree->negated = negated;
    return tree;
}

/* (?imx-imx) and (?imx-imx:...), after "(?". Options hold to the end of the group they stand in. */
static struct regex_tree *options(struct regex_parse *p)
{
    bool fold = p->fold, dot_all = p->dot_all, on = true;
    for (; p->at < p->end && strchr("im-", *p->at) && *p->at; p->at++) {
        if (*p->at == '-')
            on = false;
        else if (*p->at == 'i')
            fold = on;
        else
            dot_all = on;
    }
    bool whole_rest = accept(p, ")");
    if (!whole_rest && !accept(p, ":")) return regex_refuse(p, PLIM_UNSUPPORTED, "this (?...)");
    bool old_fold = p->fold, old_dot = p->dot_all;
    p->fold = fold, p->dot_all = dot_all;
    if (whole_rest) { /* the rest of the group, alternatives included */
        struct regex_tree *rest = choice(p);
        p->fold = old_fold, p->dot_all = old_dot;
        return rest;
    }
    struct regex_tree *tree = wrapped(p, REGEX_SEQUENCE);
    p->fold = old_fold, p->dot_all = old_dot;
    return tree;
}

static struct regex_tree *group(struct regex_parse *p)
{
    if (!accept(p, "?")) return wrapped(p, REGEX_SEQUENCE);
    if (accept(p, ":")) return wrapped(p, REGEX_SEQUENCE);
    if (accept(p, ">")) return wrapped(p, REGEX_ATOMIC);
    if (accept(p, "=")) return look(p, false, false);
    if (accept(p, "!")) return look(p, false, true);
    if (accept(p, "<=")) return look(p, true, false);
    if (accept(p, "<!")) return look(p, true, true);
    if (accept(p, "<")) {
        while (p->at < p->end && *p->at != '>') p->at++;
        if (!accept(p, ">")) return regex_refuse(p, PLIM_BAD_INPUT, "a group name without '>'");
        return wrapped(p, REGEX_SEQUENCE);
    }
    return options(p);
}

static struct regex_tree *dot(struct regex_parse *p)
{
    struct regex_item item = {.first = '\n', .last = '\n', .set = -1, .negated = true};
    if (p->dot_all) item = (struct regex_item){.first = 0, .last = 0x10ffff, .set = -1};
    return one_item(p, item);
}

static struct regex_tree *atom(struct regex_parse *p)
{
    char c = *p->at;
    if (c == '*' || c == '+' || c == '?') return regex_refuse(p, PLIM_BAD_INPUT, "nothing to repeat");
    if (accept(p, "(")) {
        bool fold = p->fold, dot_all = p->dot_all;
        if (++p->depth > DEPTH_MOST) return regex_refuse(p, PLIM_UNSUPPORTED, "more than 64 levels");
        struct regex_tree *tree = group(p);
        p->depth--;
        p->fold = fold, p->dot_all = dot_all;
        return tree;
    }
    if (accept(p, "[")) return tree_set(p, regex_parse_class(p));
    if (accept(p, ".")) return dot(p);
    if (accept(p, "^")) return anchor(p, REGEX_LINE_START);
    if (accept(p, "$")) return anchor(p, REGEX_LINE_END);
    if (accept(p, "\\")) return escape(p);
    return literal(p, regex_take(p));
}

static bool take_number(struct regex_parse *p, int *value)
{
    const char *start = p->at;
    for (*value = 0; p->at < p->end && *p->at >= '0' && *p->at <= '9'; p->at++)
        if (*value <= REGEX_REPEAT_MOST) *value = *value * 10 + (*p->at - '0');
    return p->at > start;
}

/* {n} {n,} {,m} {n,m}; anything else after '{' is plain text. */
static bool interval(struct regex_parse *p, int *min, int *max)
{
    const char *start = p->at;
    if (!accept(p, "{")) return false;
    bool low = take_number(p, min), high = false, comma = accept(p, ",");
    if (comma) high = take_number(p, max);
    if (!accept(p, "}") || (!low && !high)) {
        p->at = start;
        return false;
    }
    if (!low) *min = 0;
    if (!high) *max = comma ? REGEX_NO_LIMIT : *min;
    return true;
}

static struct regex_tree *repeat(struct regex_parse *p, struct regex_tree *body, int min, int max)
{
    struct regex_tree *tree = tree_new(p, REGEX_REPEAT);
    if (!tree) return NULL;
    tree->first = body, tree->min = min, tree->max = max;
    if (min > REGEX_REPEAT_MOST || max > REGEX_REPEAT_MOST)
        return regex_refuse(p, PLIM_UNSUPPORTED, "a repeat of more than 1000");
    if (max != REGEX_NO_LIMIT && max < min)
        return regex_refuse(p, PLIM_BAD_INPUT, "a repeat {n,m} with n above m");
    return tree;
}

static struct regex_tree *quantified(struct regex_parse *p)
{
    struct regex_tree *tree = atom(p);
    while (tree && p->at < p->end) {
        int min = 0, max = REGEX_NO_LIMIT;
        bool braces = false;
        if (accept(p, "+"))
            min = 1;
        else if (accept(p, "?"))
            max = 1;
        else if (!accept(p, "*") && !(braces = interval(p, &min, &max)))
            break;
        tree = repeat(p, tree, min, max);
        if (!tree) return NULL;
        bool exact = braces && min == max; /* x{n}? is an optional x{n} */
        if (!exact && accept(p, "?")) {
            tree->mode = REGEX_LAZY;
        } else if (!braces && accept(p, "+")) {
            struct regex_tree *whole = tree_new(p, REGEX_ATOMIC);
            if (whole) whole->first = tree;
            tree = whole;
        }
    }
    return tree;
}

static struct regex_tree *sequence(struct regex_parse *p)
{
    struct regex_tree *all = tree_new(p, REGEX_SEQUENCE), **link = all ? &all->first : NULL;
    while (link && p->at < p->end && *p->at != '|' && *p->at != ')') {
        *link = quantified(p);
        if (!*link) return NULL;
        link = &(*link)->next;
    }
    return all;
}

static struct regex_tree *choice(struct regex_parse *p)
{
    struct regex_tree *one = sequence(p);
    if (!one || p->at == p->end || *p->at != '|') return one;
    struct regex_tree *all = tree_new(p, REGEX_CHOICE), **link = all ? &all->first : NULL;
    if (!all) return NULL;
    *link = one;
    while (accept(p, "|")) {
        link = &(*link)->next;
        *link = sequence(p);
        if (!*link) return NULL;
    }
    return all;
}

struct regex_tree *regex_parse(struct regex_parse *p)
{
    struct regex_tree *tree = choice(p);
    if (tree && p->at < p->end) return regex_refuse(p, PLIM_BAD_INPUT, "a ')' without '('");
    return tree;
}
