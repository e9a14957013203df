/* unicode_text.h - strings as Python sees them: sequences of code points.
 *
 * Strings are valid UTF-8 throughout (the template and the messages are checked when they come in).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the code point that begins with this byte. */
size_t utext_step(char first);
/* Number of code points in text[0..len). */
size_t utext_count(const char *text, size_t len);
/* Byte offset of code point `n`; len when there are fewer. */
size_t utext_offset(const char *text, size_t len, size_t n);

bool utext_is_space(uint32_t point);
/* Approximates Python's str.isprintable for one code point: false for separators, controls and unassigned
 * planes. */
bool utext_is_printable(uint32_t point);
/* Case mapping of a code point; returns the number of code points in `to`. */
enum utext_case { UTEXT_UPPER, UTEXT_LOWER, UTEXT_TITLE, UTEXT_CASES };
enum { UTEXT_CASE_MOST = 3 };
size_t utext_change_case(enum utext_case how, uint32_t point, uint32_t to[UTEXT_CASE_MOST]);
/* True for letters with case: upper, lower or title case. */
bool utext_has_case(uint32_t point);
bool utext_is_ignored_by_case(uint32_t point); /* marks and signs inside words */

/* Python's int(text) and float(text): surrounding blanks, single underscores between digits, digits of any
 * script. Return false where Python would raise. *huge: a whole number beyond 64 bits. */
bool utext_int(const char *text, size_t len, int64_t *out, bool *huge);
bool utext_float(const char *text, size_t len, double *out);

/* Narrows [*begin, *end) by removing code points in `set` (NULL: white space) from the given sides. */
enum utext_side { UTEXT_LEFT = 1, UTEXT_RIGHT = 2 };
void utext_strip(const char *text, size_t *begin, size_t *end, const char *set, size_t set_len, int sides);
