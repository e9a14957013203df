/* number.h - numbers to text and back, the same in every locale.
 *
 * The C library uses decimal commas if the host program selected such a locale. Files and command lines must not depend
 * on that, so these functions always use the point.
 *
 *     double d;
 *     if (!number_parse_double("3e-4", 4, &d)) ...       // whole text or nothing
 *     char buf[NUMBER_TEXT];
 *     number_format_double(buf, 0.1);                    // "0.1": the shortest text that reads back equal
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { NUMBER_TEXT = 40 };

/* Decimal digits with an optional sign; false on junk, emptiness or overflow. */
bool number_parse_int64(const char *text, size_t len, int64_t *out);

/* [sign] digits [. digits] [e [sign] digits]; false on junk, hexadecimal, "nan", "inf" or overflow. */
bool number_parse_double(const char *text, size_t len, double *out);

/* Writes the shortest of 15, 16 or 17 digits that reads back as the same double; "nan", "inf", "-inf"
 * otherwise. Returns buf. */
char *number_format_double(char buf[NUMBER_TEXT], double value);

enum { COUNT_TEXT = 32 };

/* A count for people: "812", "48.3 K", "4.5 M", "1.24 B". Returns buf. */
char *number_format_count(char buf[COUNT_TEXT], int64_t n);
