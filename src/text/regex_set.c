/* regex_set.c - sets of characters: ASCII by a bitmap, the rest by walking a few items. */
#include "text/regex_program.h"
#include "text/unicode.h"
#include <stdlib.h>
#include <string.h>

int32_t regex_set_new(struct regex_sets *sets)
{
    if (sets->count == sets->cap) {
        size_t cap = sets->cap ? 2 * sets->cap : 16;
        struct regex_set *grown = realloc(sets->set, cap * sizeof *grown);
        if (!grown) return -1;
        sets->set = grown, sets->cap = cap;
    }
    sets->set[sets->count] = (struct regex_set){.both = -1};
    return (int32_t)sets->count++;
}

bool regex_set_add(struct regex_sets *sets, int32_t set, struct regex_item item)
{
    struct regex_set *s = &sets->set[set];
    if (s->count == s->cap) {
        size_t cap = s->cap ? 2 * s->cap : 4;
        struct regex_item *grown = bump_alloc(&sets->store, cap * sizeof *grown);
        if (!grown) return false;
        if (s->count) memcpy(grown, s->items, s->count * sizeof *grown);
        s->items = grown, s->cap = cap;
    }
    s->items[s->count++] = item;
    return true;
}

static bool add_point(struct regex_sets *sets, int32_t set, uint32_t point)
{
    return regex_set_add(sets, set, (struct regex_item){.first = point, .last = point, .set = -1});
}

bool regex_set_add_folded(struct regex_sets *sets, int32_t set, uint32_t first, uint32_t last)
{
    bool fine = true;
    for (uint32_t letter = 'a'; letter <= 'z' && fine; letter++) {
        uint32_t upper = letter - 32;
        bool in = (letter >= first && letter <= last) || (upper >= first && upper <= last);
        if (!in) continue;
        fine = add_point(sets, set, letter) && add_point(sets, set, upper);
        if (fine && letter == 's') fine = add_point(sets, set, 0x17f);  /* long s     */
        if (fine && letter == 'k') fine = add_point(sets, set, 0x212a); /* kelvin sign */
    }
    return fine;
}

static bool item_has(const struct regex_sets *sets, const struct regex_item *item, uint32_t point)
{
    bool in;
    if (item->set >= 0) {
        in = regex_set_has_slow(sets, item->set, point);
    } else if (item->mask) {
        uint32_t classes = unicode_classes(point);
        in = (classes & item->mask) != 0;
        if (item->in_class && item->mask == UNICODE_WORD && point < 0x100 && classes & UNICODE_NO) in = false;
    } else {
        in = point >= item->first && point <= item->last;
    }
    return in != item->negated;
}

bool regex_set_has_slow(const struct regex_sets *sets, int32_t set, uint32_t point)
{
    const struct regex_set *s = &sets->set[set];
    bool in = false;
    for (size_t i = 0; i < s->count && !in; i++) in = item_has(sets, &s->items[i], point);
    if (in && s->both >= 0) in = regex_set_has_slow(sets, s->both, point);
    return in != s->negated;
}

void regex_set_finish(struct regex_sets *sets, int32_t set)
{
    for (uint32_t point = 0; point < 128; point++)
        if (regex_set_has_slow(sets, set, point))
            sets->set[set].ascii[point >> 6] |= (uint64_t)1 << (point & 63);
}

/* --- names ------------------------------------------------------------------------------------------------- */

struct named_mask {
    const char *name;
    uint32_t mask;
};

static const struct named_mask properties[] = {
    {"l", UNICODE_L},
    {"letter", UNICODE_L},
    {"lu", UNICODE_LU},
    {"uppercaseletter", UNICODE_LU},
    {"ll", UNICODE_LL},
    {"lowercaseletter", UNICODE_LL},
    {"lt", UNICODE_LT},
    {"titlecaseletter", UNICODE_LT},
    {"lm", UNICODE_LM},
    {"modifierletter", UNICODE_LM},
    {"lo", UNICODE_LO},
    {"otherletter", UNICODE_LO},
    {"m", UNICODE_M},
    {"mark", UNICODE_M},
    {"mn", UNICODE_MN},
    {"nonspacingmark", UNICODE_MN},
    {"mc", UNICODE_MC},
    {"spacingmark", UNICODE_MC},
    {"me", UNICODE_ME},
    {"enclosingmark", UNICODE_ME},
    {"n", UNICODE_N},
    {"number", UNICODE_N},
    {"nd", UNICODE_ND},
    {"decimalnumber", UNICODE_ND},
    {"digit", UNICODE_ND},
    {"nl", UNICODE_NL},
    {"letternumber", UNICODE_NL},
    {"no", UNICODE_NO},
    {"othernumber", UNICODE_NO},
    {"p", UNICODE_P},
    {"punctuation", UNICODE_P},
    {"s", UNICODE_S},
    {"symbol", UNICODE_S},
    {"z", UNICODE_Z},
    {"separator", UNICODE_Z},
    {"c", UNICODE_CC | UNICODE_CF | UNICODE_CO | UNICODE_CS | UNICODE_CN},
    {"other", UNICODE_CC | UNICODE_CF | UNICODE_CO | UNICODE_CS | UNICODE_CN},
    {"cc", UNICODE_CC},
    {"control", UNICODE_CC},
    {"cf", UNICODE_CF},
    {"format", UNICODE_CF},
    {"co", UNICODE_CO},
    {"privateuse", UNICODE_CO},
    {"cs", UNICODE_CS},
    {"surrogate", UNICODE_CS},
    {"cn", UNICODE_CN},
    {"unassigned", UNICODE_CN},
    {"space", UNICODE_SPACE},
    {"whitespace", UNICODE_SPACE},
    {"word", UNICODE_WORD},
    {"alpha", UNICODE_ALPHA},
    {"alphabetic", UNICODE_ALPHA},
    {"alnum", UNICODE_ALPHA | UNICODE_ND},
    {"han", UNICODE_HAN},
    {"hiragana", UNICODE_HIRAGANA},
    {"katakana", UNICODE_KATAKANA},
    {NULL, 0},
};

static const struct named_mask brackets[] = {
    {"alpha", UNICODE_ALPHA},
    {"digit", UNICODE_ND},
    {"alnum", UNICODE_ALPHA | UNICODE_ND},
    {"space", UNICODE_SPACE},
    {"word", UNICODE_WORD},
    {"punct", UNICODE_P | UNICODE_S},
    {"cntrl", UNICODE_CC},
    {NULL, 0},
};

/* Blanks, '-' and '_' do not count, nor does case. */
static uint32_t find_mask(const struct named_mask *row, const char *name, size_t len)
{
    char plain[32];
    size_t n = 0;
    for (size_t i = 0; i < len; i++) {
        char c = name[i];
        if (c == ' ' || c == '-' || c == '_') continue;
        if (n + 1 == sizeof plain) return 0;
        plain[n++] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
    }
    plain[n] = '\0';
    for (; row->name; row++)
        if (strcmp(row->name, plain) == 0) return row->mask;
    return 0;
}

uint32_t regex_property(const char *name, size_t len) { return find_mask(properties, name, len); }
uint32_t regex_bracket(const char *name, size_t len) { return find_mask(brackets, name, len); }
