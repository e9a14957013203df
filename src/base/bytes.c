/* bytes.c - the number is read exactly as an integer where it is one, so that every byte count up to 2^64-1
 * reads back equal; only a fraction goes through floating point. */
#include "base/bytes.h"
#include "base/number.h"
#include <ctype.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

struct unit {
    const char *name;
    uint64_t bytes;
};

static const struct unit *unit_find(const char *name, size_t len)
{
    static const struct unit units[] = {
        {"", 1},
        {"B", 1},
        {"kB", 1000},
        {"KB", 1000},
        {"MB", 1000000},
        {"GB", 1000000000},
        {"TB", 1000000000000},
        {"K", 1ull << 10},
        {"M", 1ull << 20},
        {"G", 1ull << 30},
        {"T", 1ull << 40},
        {"KiB", 1ull << 10},
        {"MiB", 1ull << 20},
        {"GiB", 1ull << 30},
        {"TiB", 1ull << 40},
    };
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++)
        if (strlen(units[i].name) == len && memcmp(units[i].name, name, len) == 0) return &units[i];
    return NULL;
}

/* number * unit, rounded to the nearest byte; false when the number is junk or the product is too large. */
static bool multiply(const char *number, size_t len, uint64_t unit, uint64_t *out)
{
    bool whole = true;
    uint64_t value = 0;
    for (size_t i = 0; i < len; i++) {
        if (!isdigit((unsigned char)number[i])) {
            whole = false;
            break;
        }
        if (__builtin_mul_overflow(value, 10u, &value)) return false;
        if (__builtin_add_overflow(value, (uint64_t)(number[i] - '0'), &value)) return false;
    }
    if (whole) return !__builtin_mul_overflow(value, unit, out);
    double real;
    if (!number_parse_double(number, len, &real)) return false;
    real = nearbyint(real * (double)unit);
    if (!(real < 18446744073709551616.0)) return false;
    *out = (uint64_t)real;
    return true;
}

/* Say which right forms a misspelt unit such as "Gb" or "gib" may stand for. */
static enum plim_status bad_unit(const char *text, const char *number, int digits, const char *unit,
                                 struct plim_error *err)
{
    static const char letters[] = "kmgt";
    const char *at = strchr(letters, tolower((unsigned char)unit[0]));
    size_t len = strlen(unit);
    if (!at || len > 5)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "'%s': unknown unit '%s'; write e.g. %.*sMiB, %.*sGiB or plain bytes", text, unit,
                         digits, number, digits, number);
    uint64_t decimal = 1, value;
    for (const char *p = letters; p <= at; p++) decimal *= 1000;
    char upper = (char)toupper((unsigned char)*at), exact[BYTES_TEXT] = "too many";
    if (multiply(number, (size_t)digits, decimal, &value)) bytes_format_exact(exact, value);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "'%s': unknown unit '%s'; did you mean %.*s%cB (%s bytes) or %.*s%ciB?", text, unit,
                     digits, number, upper, exact, digits, number, upper);
}

enum plim_status bytes_parse(const char *text, uint64_t *out, struct plim_error *err)
{
    const char *number = text + strspn(text, " \t");
    size_t digits = strspn(number, "0123456789.");
    const char *unit = number + digits + strspn(number + digits, " \t");
    size_t len = strlen(unit);
    while (len > 0 && strchr(" \t", unit[len - 1])) len--;
    if (number[0] == '-')
        return plim_fail(err, PLIM_BAD_INPUT, "'%s': an amount of memory cannot be negative", text);
    double real;
    if (digits == 0 || digits > 40 || !number_parse_double(number, digits, &real))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "'%s': expected an amount of memory; write e.g. 64MiB or 1.5GiB", text);
    const struct unit *found = unit_find(unit, len);
    if (!found) {
        char name[24];
        snprintf(name, sizeof name, "%.*s", (int)(len < 20 ? len : 20), unit);
        return bad_unit(text, number, (int)digits, name, err);
    }
    if (!multiply(number, digits, found->bytes, out))
        return plim_fail(err, PLIM_BAD_INPUT, "'%s': too large; the most is 18,446,744,073,709,551,615 bytes",
                         text);
    return PLIM_OK;
}

char *bytes_format(char buf[BYTES_TEXT], uint64_t n)
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (n < 1024) {
        snprintf(buf, BYTES_TEXT, "%u B", (unsigned)n);
        return buf;
    }
    double value = (double)n;
    size_t unit = 0;
    while (value >= 1023.5 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1024;
        unit++;
    }
    /* The limits are where rounding would add a digit: 9.995 prints as 10.0, 99.95 as 100. */
    int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    /* By hand rather than %f, which writes a comma in some locales. */
    uint64_t scale = decimals == 2 ? 100 : decimals == 1 ? 10 : 1;
    uint64_t scaled = (uint64_t)(value * (double)scale + 0.5);
    if (decimals == 0)
        snprintf(buf, BYTES_TEXT, "%llu %s", (unsigned long long)scaled, units[unit]);
    else
        snprintf(buf, BYTES_TEXT, "%llu.%0*llu %s", (unsigned long long)(scaled / scale), decimals,
                 (unsigned long long)(scaled % scale), units[unit]);
    return buf;
}

char *bytes_format_exact(char buf[BYTES_TEXT], uint64_t n)
{
    char reversed[BYTES_TEXT];
    size_t len = 0, count = 0;
    do {
        if (count && count % 3 == 0) reversed[len++] = ',';
        reversed[len++] = (char)('0' + n % 10);
        n /= 10;
        count++;
    } while (n);
    for (size_t i = 0; i < len; i++) buf[i] = reversed[len - 1 - i];
    buf[len] = '\0';
    return buf;
}
