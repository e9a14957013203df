/* bytes.h - amounts of memory as people write and read them.
 *
 *     uint64_t n;
 *     bytes_parse("1.5GiB", &n, &err);                   // 1610612736
 *     char text[BYTES_TEXT];
 *     puts(bytes_format(text, n));                       // 1.50 GiB
 *
 * Units: none or B (bytes); kB/KB, MB, GB, TB (powers of 1000); KiB, MiB, GiB, TiB (powers of 1024); a bare
 * K, M, G, T means the power of 1024. Anything else is refused rather than guessed: "12Gb" could be bits,
 * and the error names what may have been meant. Both functions are pure.
 */
#pragma once

#include "base/status.h"
#include <stdint.h>

enum { BYTES_TEXT = 32 };

/* Read `text`; blanks around it and between number and unit are allowed. A fraction is rounded to the nearest
 * byte. PLIM_BAD_INPUT for empty text, a sign, an unknown unit, trailing junk or more than 2^64-1 bytes. */
enum plim_status bytes_parse(const char *text, uint64_t *out, struct plim_error *err);

/* Three significant digits and a power of 1024: "0 B", "412 KiB", "1.23 GiB". Returns buf. */
char *bytes_format(char buf[BYTES_TEXT], uint64_t n);

/* Every digit, in groups of three: "12,000,000,000". Returns buf. */
char *bytes_format_exact(char buf[BYTES_TEXT], uint64_t n);
