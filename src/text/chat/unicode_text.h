/* unicode_text.h - strings as Python sees them: sequences of code points.
 *
 * Strings are valid UTF-8 throughout (the template and the messages are checked when they come in).
 */
#ifndef PLIM_DATA_CHAT_UNICODE_TEXT_H
#define PLIM_DATA_CHAT_UNICODE_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of the code point that begins with this byte. */
size_t utext_step(char first);
/* How many code points text[0..len) has. */
size_t utext_count(const char *text, size_t len);
/* Byte offset of code point `n`; len when there are fewer. */
size_t utext_offset(const char *text, size_t len, size_t n);

bool utext_is_space(uint32_t point);
/* Python's str.isprintable for one code point, near enough: separators, controls and unassigned planes are not. */
bool utext_is_printable(uint32_t point);
/* Simple case mapping of ASCII, Latin-1, Greek and Cyrillic letters; others stay. */
uint32_t utext_upper(uint32_t point);
uint32_t utext_lower(uint32_t point);

/* Narrow [*begin, *end) of text by the code points at its ends that are in `set` (NULL: white space). */
enum utext_side { UTEXT_LEFT = 1, UTEXT_RIGHT = 2 };
void utext_strip(const char *text, size_t *begin, size_t *end, const char *set, size_t set_len, int sides);

#endif
