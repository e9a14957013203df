/* number.c - the C library's conversions inside the "C" locale.
 *
 * The grammar is checked here first, so that strtod never sees hexadecimal, "inf" or blanks. newlocale for
 * the "C" locale hands out a constant object and cannot fail in practice; should it fail, the thread's locale
 * is used.
 */
#include "base/number.h"
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static size_t digits(const char *text, size_t len, size_t at)
{
    while (at < len && text[at] >= '0' && text[at] <= '9') at++;
    return at;
}

bool number_parse_int64(const char *text, size_t len, int64_t *out)
{
    size_t at = len > 0 && (text[0] == '-' || text[0] == '+');
    bool negative = at && text[0] == '-';
    if (at == len || digits(text, len, at) != len) return false;
    uint64_t value = 0, most = (uint64_t)INT64_MAX + negative;
    for (; at < len; at++) {
        uint64_t digit = (uint64_t)(text[at] - '0');
        if (value > (most - digit) / 10) return false;
        value = value * 10 + digit;
    }
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return true;
}

/* [sign] (digits [. [digits]] | . digits) [e [sign] digits] */
static bool looks_decimal(const char *text, size_t len)
{
    size_t at = len > 0 && (text[0] == '-' || text[0] == '+');
    size_t whole = digits(text, len, at), count = whole - at;
    at = whole;
    if (at < len && text[at] == '.') {
        size_t fraction = digits(text, len, at + 1);
        count += fraction - at - 1;
        at = fraction;
    }
    if (count == 0) return false;
    if (at < len && (text[at] == 'e' || text[at] == 'E')) {
        at++;
        if (at < len && (text[at] == '-' || text[at] == '+')) at++;
        if (digits(text, len, at) == at) return false;
        at = digits(text, len, at);
    }
    return at == len;
}

/* Enter the "C" locale, and leave it again. */
struct c_locale {
    locale_t c, old;
};

static struct c_locale enter_c(void)
{
    locale_t c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    return (struct c_locale){c, c ? uselocale(c) : (locale_t)0};
}

static void leave_c(struct c_locale l)
{
    if (!l.c) return;
    uselocale(l.old);
    freelocale(l.c);
}

bool number_parse_double(const char *text, size_t len, double *out)
{
    if (!looks_decimal(text, len)) return false;
    char small[64], *copy = len < sizeof small ? small : malloc(len + 1);
    if (!copy) return false;
    memcpy(copy, text, len);
    copy[len] = '\0';
    struct c_locale c = enter_c();
    double value = strtod(copy, NULL);
    leave_c(c);
    if (copy != small) free(copy);
    if (!isfinite(value)) return false;
    *out = value;
    return true;
}

static void print(char buf[NUMBER_TEXT], double value)
{
    for (int precision = 15; precision <= 17; precision++) {
        snprintf(buf, NUMBER_TEXT, "%.*g", precision, value);
        if (strtod(buf, NULL) == value) return;
    }
}

char *number_format_double(char buf[NUMBER_TEXT], double value)
{
    if (!isfinite(value)) {
        strcpy(buf, isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return buf;
    }
    struct c_locale c = enter_c();
    print(buf, value);
    leave_c(c);
    return buf;
}

char *number_format_count(char buf[COUNT_TEXT], int64_t n)
{
    double x = (double)n;
    if (n < 1000)
        snprintf(buf, COUNT_TEXT, "%lld", (long long)n);
    else if (x < 99950)
        snprintf(buf, COUNT_TEXT, "%.1f K", x / 1e3);
    else
        snprintf(buf, COUNT_TEXT, x < 1e9 ? "%.1f M" : "%.2f B", x < 1e9 ? x / 1e6 : x / 1e9);
    return buf;
}
