/* unicode.h - properties of code points that tokenizers use, from tables made by tools/make-unicode.
 *
 * The library whose results we reproduce uses several Unicode versions: 16 in regular expressions, 17 for lower case and
 * digits, 9 for normal forms and 8 for punctuation. Each predicate here names its version. All accept any value; beyond
 * U+10FFFF everything is unassigned.
 */
#pragma once

#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum unicode_class { /* one bit each, so that sets are masks; all as the regular expressions see them */
                     UNICODE_LU = 1u << 0,
                     UNICODE_LL = 1u << 1,
                     UNICODE_LT = 1u << 2,
                     UNICODE_LM = 1u << 3,
                     UNICODE_LO = 1u << 4,
                     UNICODE_MN = 1u << 5,
                     UNICODE_MC = 1u << 6,
                     UNICODE_ME = 1u << 7,
                     UNICODE_ND = 1u << 8,
                     UNICODE_NL = 1u << 9,
                     UNICODE_NO = 1u << 10,
                     UNICODE_P = 1u << 11, /* any punctuation */
                     UNICODE_S = 1u << 12, /* any symbol */
                     UNICODE_Z = 1u << 13, /* separators */
                     UNICODE_CC = 1u << 14,
                     UNICODE_CF = 1u << 15,
                     UNICODE_CO = 1u << 16,
                     UNICODE_CS = 1u << 17,
                     UNICODE_CN = 1u << 18,
                     /* White_Space, \s; this and the following are independent of the category */
                     UNICODE_SPACE = 1u << 19,
                     UNICODE_WORD = 1u << 20, /* \w */
                     UNICODE_ALPHA =
                         1u << 21, /* [[:alpha:]]; [[:alnum:]] is this or ND, [[:punct:]] is P or S */
                     UNICODE_HAN = 1u << 22, /* scripts */
                     UNICODE_HIRAGANA = 1u << 23,
                     UNICODE_KATAKANA = 1u << 24,
                     UNICODE_L = UNICODE_LU | UNICODE_LL | UNICODE_LT | UNICODE_LM | UNICODE_LO,
                     UNICODE_M = UNICODE_MN | UNICODE_MC | UNICODE_ME,
                     UNICODE_N = UNICODE_ND | UNICODE_NL | UNICODE_NO,
};

/* Tables of the inline functions: rows of properties, and three stages that lead to a row (unicode.c). */
extern const uint64_t unicode_rows[];
extern const uint8_t unicode_first[];
extern const uint16_t unicode_middle[];
extern const uint8_t unicode_last[]; /* begins with ASCII */

/* All properties: classes in the low half, flags from bit 32, grapheme class from 48, combining class from 56. */
static inline uint64_t unicode_row(uint32_t point)
{
    if (point < 0x80) return unicode_rows[unicode_last[point]];
    if (point >= 0x110000) return UNICODE_CN;
    size_t middle = (size_t)unicode_first[point >> 9] << 5 | (point >> 4 & 31);
    return unicode_rows[unicode_last[(size_t)unicode_middle[middle] << 4 | (point & 15)]];
}

/* The mask of a code point: its category's bit, UNICODE_SPACE and the bits after it. Constant time. */
static inline uint32_t unicode_classes(uint32_t point) { return (uint32_t)unicode_row(point); }

enum unicode_flag { /* bit numbers in a row */
                    UNICODE_FLAG_NUMERIC = 32,
                    UNICODE_FLAG_WORD,
                    UNICODE_FLAG_BERT_PUNCTUATION,
                    UNICODE_FLAG_BERT_CONTROL,
                    UNICODE_FLAG_BERT_SPACE,
                    UNICODE_FLAG_BERT_ACCENT,
                    UNICODE_FLAG_ACCENT,
                    UNICODE_FLAG_FORM,                          /* four: UNICODE_NFC.. in order */
                    UNICODE_FLAG_LOWER = UNICODE_FLAG_FORM + 4, /* its lower case differs */
};
static inline bool unicode_flag(uint32_t point, unsigned flag) { return unicode_row(point) >> flag & 1; }

/* White space; one definition for all parts (\s, WhitespaceSplit, Strip, BertPreTokenizer). */
static inline bool unicode_is_space(uint32_t point) { return unicode_classes(point) & UNICODE_SPACE; }
/* Class N of Unicode 17: the pre-tokenizer Digits splits here. */
static inline bool unicode_is_numeric(uint32_t point) { return unicode_flag(point, UNICODE_FLAG_NUMERIC); }
/* \w of the pre-tokenizer Whitespace, which differs from UNICODE_WORD in eight places. */
static inline bool unicode_is_word(uint32_t point) { return unicode_flag(point, UNICODE_FLAG_WORD); }
/* The pre-tokenizers Punctuation and BertPreTokenizer: ASCII punctuation and P of Unicode 8. */
static inline bool unicode_is_bert_punctuation(uint32_t point)
{
    return unicode_flag(point, UNICODE_FLAG_BERT_PUNCTUATION);
}
/* BertNormalizer: clean_text drops these; turns these into blanks; strip_accents drops these after NFD. */
static inline bool unicode_is_bert_control(uint32_t point)
{
    return unicode_flag(point, UNICODE_FLAG_BERT_CONTROL);
}
static inline bool unicode_is_bert_space(uint32_t point)
{
    return unicode_flag(point, UNICODE_FLAG_BERT_SPACE);
}
static inline bool unicode_is_bert_accent(uint32_t point)
{
    return unicode_flag(point, UNICODE_FLAG_BERT_ACCENT);
}
/* Code points that the normalizer StripAccents drops. */
static inline bool unicode_is_accent(uint32_t point) { return unicode_flag(point, UNICODE_FLAG_ACCENT); }
/* The ideographs BertNormalizer puts blanks around. */
bool unicode_is_bert_ideograph(uint32_t point);

/* Lower case of one code point (one or two of them), context-free. */
enum { UNICODE_LOWER_MOST = 2 };
size_t unicode_lower(uint32_t point, uint32_t out[UNICODE_LOWER_MOST]);

/* --- unicode_normalize.c: the four normal forms ----------------------------------------------------------- */
enum unicode_form { UNICODE_NFC, UNICODE_NFD, UNICODE_NFKC, UNICODE_NFKD };
/* True if the form may change this code point or join it with the one before. A text without such code points
 * is unchanged by the form. */
static inline bool unicode_form_touches(enum unicode_form form, uint32_t point)
{
    return unicode_flag(point, UNICODE_FLAG_FORM + (unsigned)form);
}
/* Appends the form of text[0..len), which is valid UTF-8. Out of memory is sticky in `out`. */
void unicode_normalize(enum unicode_form form, const char *text, size_t len, struct strbuf *out);

/* Full decomposition of a code point that is not a Hangul syllable. Returns the number of parts; 1 and itself when it
 * has none. */
enum { UNICODE_PARTS_MOST = 18 };
size_t unicode_decompose(uint32_t point, bool compatible, uint32_t out[UNICODE_PARTS_MOST]);
/* The code point that two compose to (Hangul not included), or 0. */
uint32_t unicode_composition(uint32_t first, uint32_t second);

/* --- unicode_grapheme.c ----------------------------------------------------------------------------------- */
/* Bytes of the extended grapheme cluster that text[0..len) begins with; valid UTF-8, len at least 1. */
size_t unicode_grapheme(const char *text, size_t len);
