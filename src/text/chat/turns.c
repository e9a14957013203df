/* turns.c - see turns.h. A walk over head and loop that allows the list of messages where rule 1 does. */
#include "text/chat/turns.h"
#include <string.h>

enum { LIST_NAMES = 8, LOOP_NAME = 0, NESTING_MAX = 200 };

enum region { IN_HEAD, IN_MACRO, IN_LOOP, IN_INNER /* a loop inside the loop, or one in the head */ };

struct proof {
    const struct chat_stmt *loop;
    int list[LIST_NAMES]; /* names that stand for the messages, or for all but the first of them */
    int lists;
    int64_t most;  /* the largest n of messages[n] */
    int64_t shift; /* slices leave out so many messages at most, all of them together */
};

static bool is_list(const struct proof *p, int name)
{
    for (int i = 0; i < p->lists; i++)
        if (p->list[i] == name) return true;
    return false;
}

static bool is_word(const struct chat_value *v, const char *const *words)
{
    for (; *words; words++)
        if (chat_is_text(v, *words)) return true;
    return false;
}

/* A number that is written down, not below 0. */
static bool is_number(const struct chat_expr *e, int64_t *out)
{
    return e && e->kind == E_CONST && e->value.kind == CHAT_INT && (*out = e->value.as.integer) >= 0 &&
           *out < INT32_MAX;
}

static bool check(struct proof *p, const struct chat_expr *e, enum region in, bool read_at_once);

static bool check_some(struct proof *p, const struct chat_expr *e, enum region in)
{
    return !e || check(p, e, in, false);
}

/* The list itself: a name of it, an open slice, or one of two such. */
static bool is_whole(struct proof *p, const struct chat_expr *e, enum region in)
{
    int64_t first = 0;
    if (e->kind == E_NAME) return is_list(p, e->name);
    if (e->kind == E_COND && e->c)
        return is_whole(p, e->b, in) && is_whole(p, e->c, in) && check(p, e->a, in, false);
    if (e->kind != E_SLICE || !is_whole(p, e->a, in) || e->items[1] || e->items[2]) return false;
    if (e->items[0] && !is_number(e->items[0], &first)) return false;
    p->shift += first;
    return true;
}

/* loop.index0 + n or loop.index0 - n of the loop itself. */
static bool is_near(const struct chat_expr *e)
{
    static const char *const index[] = {"index0", NULL};
    int64_t n;
    if (e->kind == E_BINARY && (e->op == CHAT_ADD || e->op == CHAT_SUB)) {
        if (!is_number(e->b, &n) || (e->op == CHAT_ADD && n > 1)) return false;
        e = e->a;
    }
    return e->kind == E_ATTR && e->a->kind == E_NAME && e->a->name == LOOP_NAME && is_word(&e->value, index);
}

static bool check_item(struct proof *p, const struct chat_expr *e, enum region in)
{
    int64_t n;
    if (e->a->kind != E_NAME || !is_list(p, e->a->name))
        return check(p, e->a, in, false) && check(p, e->b, in, false);
    if (in == IN_LOOP && is_near(e->b)) return true;
    if (!is_number(e->b, &n)) return false;
    if (n > p->most) p->most = n;
    return true;
}

static bool check_attr(struct proof *p, const struct chat_expr *e, enum region in)
{
    static const char *const known[] = {"first",    "last",  "index",  "index0", "previtem",
                                        "nextitem", "depth", "depth0", NULL};
    if (e->a->kind != E_NAME || e->a->name != LOOP_NAME) return check(p, e->a, in, false);
    return in != IN_LOOP || is_word(&e->value, known);
}

/* A filter's iterator can be read only once, so it must be read where it is made. */
static bool check_filter(struct proof *p, const struct chat_expr *e, enum region in, bool read_at_once)
{
    static const char *const iterators[] = {"reverse",    "items",      "map",    "select", "reject",
                                            "selectattr", "rejectattr", "unique", NULL};
    if (in == IN_HEAD && !read_at_once && is_word(&e->value, iterators)) return false;
    return !e->a || check(p, e->a, in, true);
}

/* To see whether the list is there, or empty, tells nothing: the shortest prefix has a message. */
static bool is_glance(const struct proof *p, const struct chat_expr *e)
{
    static const char *const length[] = {"length", "count", NULL};
    int64_t n;
    if (e->kind == E_COMPARE && e->count == 1 && is_number(e->items[0], &n) && n == 0 &&
        e->a->kind == E_FILTER && is_word(&e->a->value, length) && e->a->a)
        e = e->a->a; /* messages | length != 0 */
    return e->kind == E_NAME && is_list(p, e->name);
}

static bool check(struct proof *p, const struct chat_expr *e, enum region in, bool read_at_once)
{
    static const char *const defined[] = {"defined", NULL};
    bool good = true;
    if (e->kind == E_NAME) return !is_list(p, e->name) && (e->name != LOOP_NAME || in != IN_LOOP);
    if (e->kind == E_ITEM) return check_item(p, e, in);
    if (e->kind == E_ATTR) return check_attr(p, e, in);
    if (e->kind == E_NSREF) return in == IN_HEAD;
    if (e->kind == E_FILTER)
        good = check_filter(p, e, in, read_at_once);
    else if ((e->kind == E_AND || e->kind == E_NOT || (e->kind == E_TEST && is_word(&e->value, defined))) &&
             is_glance(p, e->a))
        good = true;
    else
        good = check_some(p, e->a, in);
    good = good && check_some(p, e->b, in) && check_some(p, e->c, in);
    for (size_t i = 0; i < e->count && good; i++) good = check_some(p, e->items[i], in);
    return good;
}

/* Where only truth is asked for. */
static bool check_test(struct proof *p, const struct chat_expr *e, enum region in)
{
    return !e || is_glance(p, e) || check(p, e, in, false);
}

static bool walk(struct proof *p, const struct chat_stmt *s, enum region in, int depth);

static bool check_set(struct proof *p, const struct chat_stmt *s, enum region in)
{
    const struct chat_expr *to = s->target;
    bool name = to->kind == E_NAME;
    if (in == IN_HEAD && name && is_whole(p, s->expr, in)) {
        if (is_list(p, to->name)) return true;
        if (p->lists == LIST_NAMES) return false;
        p->list[p->lists++] = to->name;
        return true;
    }
    return check(p, to, in, false) && check(p, s->expr, in, false);
}

static bool check_params(const struct proof *p, const struct chat_stmt *s)
{
    for (size_t i = 0; i < s->count; i++)
        if (is_list(p, s->params[i])) return false;
    return true;
}

static bool check_stmt(struct proof *p, const struct chat_stmt *s, enum region in, int depth)
{
    enum region body = s->kind == S_MACRO && in == IN_HEAD ? IN_MACRO : s->kind == S_FOR ? IN_INNER : in;
    bool good = check_params(p, s);
    if (s->kind == S_SET) return check_set(p, s, in);
    if (s->kind == S_IF) {
        for (; s && good; s = s->other) good = check_test(p, s->test, in) && walk(p, s->body, in, depth + 1);
        return good;
    }
    if (s->target) good = good && check(p, s->target, in == IN_LOOP ? IN_INNER : in, false);
    if (s->expr) good = good && check(p, s->expr, in, s->kind == S_FOR);
    if (s->test) good = good && check(p, s->test, in, false);
    for (size_t i = 0; i < s->count && good; i++) good = check_some(p, s->values[i], in);
    /* A loop in the head runs before any turn; what it sets of a namespace is the same for all. */
    if (s->kind == S_FOR && in == IN_HEAD) body = IN_HEAD;
    return good && walk(p, s->body, body, depth + 1) && (!s->other || walk(p, s->other, in, depth + 1));
}

static bool walk(struct proof *p, const struct chat_stmt *s, enum region in, int depth)
{
    bool good = depth < NESTING_MAX;
    for (; s && good; s = s->next) good = check_stmt(p, s, in, depth);
    return good;
}

enum found { NOT_HERE, FOUND, NOT_PROVED };

/* The head up to the loop, and the loop. What stands behind it is the tail. */
static enum found find(struct proof *p, const struct chat_stmt *s, int depth)
{
    for (; s && depth < NESTING_MAX; s = s->next) {
        if (s->kind == S_FOR && is_whole(p, s->expr, IN_HEAD)) {
            p->loop = s;
            bool plain = !s->test && check(p, s->target, IN_INNER, false);
            return plain && walk(p, s->body, IN_LOOP, depth + 1) ? FOUND : NOT_PROVED;
        }
        if (s->kind != S_IF) {
            if (!check_stmt(p, s, IN_HEAD, depth)) return NOT_PROVED;
            continue;
        }
        for (const struct chat_stmt *branch = s; branch; branch = branch->other) {
            if (!check_test(p, branch->test, IN_HEAD)) return NOT_PROVED;
            enum found found = find(p, branch->body, depth + 1);
            if (found != NOT_HERE) return found;
        }
    }
    return depth < NESTING_MAX ? NOT_HERE : NOT_PROVED;
}

const struct chat_stmt *turns_loop(const struct chat_template *tmpl, size_t *need)
{
    struct proof p = {0};
    for (size_t i = 0; i < tmpl->name_count && !p.lists; i++)
        if (tmpl->names[i].len == 8 && !memcmp(tmpl->names[i].text, "messages", 8))
            p.list[p.lists++] = (int)i;
    if (!p.lists || find(&p, tmpl->body, 0) != FOUND) return NULL;
    *need = (size_t)(p.most + p.shift + 1);
    return p.loop;
}
