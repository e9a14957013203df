/* regex_program.h - a compiled regular expression: built by regex_parse.c and regex_compile.c, executed by regex_run.c.
 *
 * Parsing gives a tree (struct regex_tree); compiling turns it into a linear program of instructions.
 */
#pragma once

#include "base/bump.h"
#include "text/regex.h"

/* --- sets of characters (regex_set.c) ---------------------------------------------------------------------- */

struct regex_item { /* a range, a mask of Unicode classes, or another set */
    uint32_t first, last;
    uint32_t mask;
    int32_t set; /* -1: none */
    bool negated;
    bool in_class; /* inside [...], where \w excludes the superscripts and fractions of Latin-1 */
};
struct regex_set {
    struct regex_item *items;
    size_t count, cap;
    int32_t both; /* a set that must also match (&&), or -1 */
    bool negated;
    uint64_t ascii[2]; /* precomputed for U+0000 to U+007F */
};
struct regex_sets {
    struct regex_set *set;
    size_t count, cap;
    struct bump store;
};

/* Number of a new empty set; -1: out of memory. */
int32_t regex_set_new(struct regex_sets *sets);
bool regex_set_add(struct regex_sets *sets, int32_t set, struct regex_item item);
/* For (?i): adds the other case of the ASCII letters in the range, and characters that fold to them. */
bool regex_set_add_folded(struct regex_sets *sets, int32_t set, uint32_t first, uint32_t last);
/* Completes a set and precomputes its ASCII members. Finish nested sets first. */
void regex_set_finish(struct regex_sets *sets, int32_t set);
bool regex_set_has_slow(const struct regex_sets *sets, int32_t set, uint32_t point);
static inline bool regex_set_has(const struct regex_sets *sets, int32_t set, uint32_t point)
{
    if (point < 0x80) return sets->set[set].ascii[point >> 6] >> (point & 63) & 1;
    return regex_set_has_slow(sets, set, point);
}
/* Mask of \p{name} or [[:name:]]; 0: unknown. */
uint32_t regex_property(const char *name, size_t len);
uint32_t regex_bracket(const char *name, size_t len);

/* --- the tree (regex_parse.c) ------------------------------------------------------------------------------ */

enum regex_kind {
    REGEX_EMPTY,
    REGEX_SET,
    REGEX_SEQUENCE,
    REGEX_CHOICE,
    REGEX_REPEAT,
    REGEX_ATOMIC,
    REGEX_LOOK,
    REGEX_ANCHOR,
};
enum regex_anchor {
    REGEX_LINE_START,
    REGEX_LINE_END,
    REGEX_TEXT_START,
    REGEX_TEXT_END,
    REGEX_TEXT_END_LINE,
    REGEX_WORD_EDGE,
    REGEX_NO_WORD_EDGE,
};
enum regex_mode { REGEX_GREEDY, REGEX_LAZY };
enum { REGEX_NO_LIMIT = -1, REGEX_REPEAT_MOST = 1000 };

struct regex_tree {
    enum regex_kind kind;
    struct regex_tree *first, *next; /* children, as a list */
    int32_t set;
    int min, max; /* REPEAT */
    enum regex_mode mode;
    enum regex_anchor anchor;
    bool behind, negated; /* LOOK */
};

struct regex_parse {
    const char *at, *end;
    struct regex_sets *sets;
    struct bump store; /* the tree */
    struct plim_error *err;
    enum plim_status status;
    bool fold, dot_all;
    int depth;
};
/* Parses the whole pattern. NULL: status and err are set. */
struct regex_tree *regex_parse(struct regex_parse *p);
/* Records a failure (the first one is kept) and returns NULL. */
struct regex_tree *regex_refuse(struct regex_parse *p, enum plim_status status, const char *what);
/* regex_class.c: parses the set after '[', including ']'; -1: refused. */
int32_t regex_parse_class(struct regex_parse *p);
/* Parses an escape after '\\' that means one character. Returns false, consuming nothing, for any other
 * escape. */
bool regex_parse_point(struct regex_parse *p, uint32_t *point);
/* Parses an escape that means a set (\s, \p{..}). Returns false for any other escape. */
bool regex_parse_property(struct regex_parse *p, struct regex_item *item);
/* The next character of the pattern. */
uint32_t regex_take(struct regex_parse *p);

/* --- the program ------------------------------------------------------------------------------------------- */

enum regex_op {
    REGEX_OP_MATCH,
    REGEX_OP_ONE,    /* one character of a set            */
    REGEX_OP_STAR,   /* as many of a set as there are     */
    REGEX_OP_SPLIT,  /* try `to`, then `other`            */
    REGEX_OP_JUMP,   /* to                                */
    REGEX_OP_ANCHOR, /* which: arg                        */
    REGEX_OP_ATOMIC, /* begins; ends with COMMIT          */
    REGEX_OP_LOOK,   /* begins; ends with LOOKED, continues at `to`; arg: characters to step back, -1: none */
    REGEX_OP_COMMIT,
    REGEX_OP_LOOKED,
};
struct regex_code {
    enum regex_op op;
    int32_t arg; /* set, anchor, characters */
    uint32_t to, other;
    uint32_t memo; /* index among the instructions that remember failures */
    bool negated;  /* LOOK, LOOKED */
};
struct regex {
    struct regex_sets sets;
    struct regex_code *code;
    size_t count, cap;
    uint32_t memos;
};
