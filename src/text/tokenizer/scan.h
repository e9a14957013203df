/* scan.h - the regular expressions almost every byte-level tokenizer uses, as hand-written scanners.
 *
 *     token_scan *scan = scan_of(pattern, len);                  // NULL: not one of them
 *     for (size_t at = 0, end; at < len; at = end) end = scan(text, at, len);
 *
 * Each of these patterns matches at every place, so that its matches tile the text: a scanner says where the match
 * that begins at `at` ends.
 */
#ifndef PLIM_TEXT_TOKENIZER_SCAN_H
#define PLIM_TEXT_TOKENIZER_SCAN_H

#include <stddef.h>

/* text is valid UTF-8; at < len. */
typedef size_t token_scan(const char *text, size_t at, size_t len);

token_scan scan_gpt2; /* the ByteLevel pre-tokenizer's own */

/* The scanner of exactly this pattern, or NULL. */
token_scan *scan_of(const char *pattern, size_t len);
/* The pattern's text, for tests; NULL beyond the last. */
const char *scan_pattern(size_t index);

#endif
