/* utf8.h - reading, writing and measuring UTF-8, independent of the locale. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Decodes one code point from text[0..len). Returns its length in bytes, or 0 when the bytes are not valid
 * UTF-8 (this includes overlong forms, surrogates and values above U+10FFFF). len must be at least 1. */
size_t utf8_decode(const char *text, size_t len, uint32_t *point);

/* Encodes a code point below U+110000; returns the bytes written (1 to 4). */
size_t utf8_encode(uint32_t point, char out[4]);

/* Length of the longest valid prefix of text[0..len); equal to len when all of it is valid. */
size_t utf8_valid_prefix(const char *text, size_t len);

/* Copies text[0..len) into out as one line that cannot move a cursor, NUL-terminated. Control characters and
 * line separators become \n, \x1b or \u2028, and invalid bytes \xff. One byte becomes at most 4. Text that
 * does not fit in `size` is left out. Returns the bytes written. */
size_t utf8_one_line(const char *text, size_t len, char *out, size_t size);

/* Columns a terminal uses for text[0..len): combining marks and ANSI colour sequences count 0, East Asian
 * wide characters and emoji 2. An invalid byte counts 1. */
size_t utf8_width(const char *text, size_t len);
