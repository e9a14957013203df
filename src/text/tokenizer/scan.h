/* scan.h - hand-written scanners for the regular expressions that almost every byte-level tokenizer uses.
 *
 *     token_scan *scan = scan_of(pattern, len);                  // NULL: not one of them
 *     for (size_t at = 0, end; at < len; at = end) end = scan(text, at, len);
 *
 * Each of these patterns matches at every place, so its matches tile the text. A scanner returns the end of the match that
 * begins at `at`.
 */
#pragma once

#include <stddef.h>

/* text is valid UTF-8; at < len. */
typedef size_t token_scan(const char *text, size_t at, size_t len);

token_scan scan_gpt2; /* used by the ByteLevel pre-tokenizer */

/* The scanner of exactly this pattern, or NULL. */
token_scan *scan_of(const char *pattern, size_t len);
/* The pattern's text, for tests; NULL beyond the last. */
const char *scan_pattern(size_t index);
