/* unicode_grapheme.c - extended grapheme clusters, as Unicode's annex 29 cuts them.
 *
 * Whether two neighbours stay together depends on their classes and on a little history: how many regional
 * indicators stand in a row, whether a pictograph and a joiner came before, whether an Indic consonant and a
 * linker did. `struct history` is all of it; every cluster starts with a fresh one.
 */
#include "text/unicode.h"
#include "text/tokenizer/text.h"

enum grapheme_class { /* the order tools/make-unicode numbers them in */
                      BREAK_OTHER,
                      BREAK_CONTROL,
                      BREAK_EXTEND,
                      BREAK_EXTEND_INDIC,
                      BREAK_LINKER,
                      BREAK_ZWJ,
                      BREAK_REGIONAL,
                      BREAK_PREPEND,
                      BREAK_SPACING,
                      BREAK_HANGUL_L,
                      BREAK_HANGUL_V,
                      BREAK_HANGUL_T,
                      BREAK_HANGUL_LV,
                      BREAK_HANGUL_LVT,
                      BREAK_PICTOGRAPH,
                      BREAK_CONSONANT,
                      BREAK_CR,
                      BREAK_LF,
};

#define SET(c) (1u << (c))

static const unsigned CONTROLS = SET(BREAK_CONTROL) | SET(BREAK_CR) | SET(BREAK_LF);
static const unsigned EXTENDS = SET(BREAK_EXTEND) | SET(BREAK_EXTEND_INDIC) | SET(BREAK_LINKER);
static const unsigned TRAILING =
    SET(BREAK_EXTEND) | SET(BREAK_EXTEND_INDIC) | SET(BREAK_LINKER) | SET(BREAK_ZWJ) | SET(BREAK_SPACING);

struct history {
    enum grapheme_class last;
    bool odd_regional;                                        /* an odd number of them so far */
    enum { PICT_NONE, PICT_SEEN, PICT_JOINED } pict;          /* pictograph, extends; then a joiner */
    enum { INDIC_NONE, INDIC_CONSONANT, INDIC_LINKED } indic; /* consonant; then a linker */
};

static enum grapheme_class class_of(uint32_t point)
{
    return (enum grapheme_class)(unicode_row(point) >> 48 & 31);
}

static void history_add(struct history *h, enum grapheme_class c)
{
    h->odd_regional = c == BREAK_REGIONAL && !h->odd_regional;
    if (c == BREAK_PICTOGRAPH)
        h->pict = PICT_SEEN;
    else if (c == BREAK_ZWJ && h->pict == PICT_SEEN)
        h->pict = PICT_JOINED;
    else if (!(SET(c) & EXTENDS) || h->pict == PICT_JOINED)
        h->pict = PICT_NONE;
    if (c == BREAK_CONSONANT)
        h->indic = INDIC_CONSONANT;
    else if (c == BREAK_LINKER && h->indic)
        h->indic = INDIC_LINKED;
    else if (c != BREAK_ZWJ && c != BREAK_EXTEND_INDIC)
        h->indic = INDIC_NONE;
    h->last = c;
}

/* Classes that may follow inside a Hangul syllable. */
static unsigned hangul_next(enum grapheme_class c)
{
    const unsigned vt = SET(BREAK_HANGUL_V) | SET(BREAK_HANGUL_T);
    switch (c) {
    case BREAK_HANGUL_L:
        return SET(BREAK_HANGUL_L) | SET(BREAK_HANGUL_V) | SET(BREAK_HANGUL_LV) | SET(BREAK_HANGUL_LVT);
    case BREAK_HANGUL_V:
    case BREAK_HANGUL_LV:
        return vt;
    case BREAK_HANGUL_T:
    case BREAK_HANGUL_LVT:
        return SET(BREAK_HANGUL_T);
    default:
        return 0;
    }
}

static bool stays(const struct history *h, enum grapheme_class c)
{
    if (h->last == BREAK_CR && c == BREAK_LF) return true;
    if ((SET(h->last) | SET(c)) & CONTROLS) return false;
    if (SET(c) & TRAILING || h->last == BREAK_PREPEND) return true;
    if (c == BREAK_CONSONANT) return h->indic == INDIC_LINKED;
    if (c == BREAK_PICTOGRAPH) return h->pict == PICT_JOINED;
    if (c == BREAK_REGIONAL) return h->odd_regional;
    return hangul_next(h->last) & SET(c);
}

size_t unicode_grapheme(const char *text, size_t len)
{
    struct history h = {0};
    unsigned char first = (unsigned char)text[0];
    if (first < 0x80 && first != '\r' && (len == 1 || (unsigned char)text[1] < 0x80)) return 1;
    size_t at = 0;
    history_add(&h, class_of(text_point(text, &at)));
    while (at < len) {
        size_t next = at;
        enum grapheme_class c = class_of(text_point(text + at, &next));
        if (!stays(&h, c)) break;
        history_add(&h, c);
        at = next;
    }
    return at;
}
