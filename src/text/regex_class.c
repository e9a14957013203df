/* regex_class.c - escapes and [classes]. */
#include "base/utf8.h"
#include "text/regex_program.h"
#include "text/unicode.h"
#include <string.h>

static bool take_hex(struct regex_parse *p, size_t least, size_t most, uint32_t *value)
{
    size_t n = 0;
    *value = 0;
    for (; n < most && p->at < p->end; n++, p->at++) {
        char c = *p->at, low = (char)(c | 32);
        uint32_t digit;
        if (c >= '0' && c <= '9')
            digit = (uint32_t)(c - '0');
        else if (low >= 'a' && low <= 'f')
            digit = (uint32_t)(low - 'a') + 10;
        else
            break;
        *value = *value << 4 | digit;
    }
    return n >= least;
}

static bool parse_hex(struct regex_parse *p, uint32_t *point)
{
    const char *start = p->at;
    bool fine;
    if (*p->at == 'u') {
        p->at++;
        fine = take_hex(p, 4, 4, point);
    } else if (p->end - p->at > 1 && p->at[1] == '{') {
        p->at += 2;
        fine = take_hex(p, 1, 8, point) && p->at < p->end && *p->at == '}';
        p->at += fine;
    } else {
        p->at++;
        fine = take_hex(p, 1, 2, point) && *point < 0x80;
    }
    if (fine && *point < 0x110000 && *point - 0xd800 >= 0x800) return true;
    p->at = start;
    regex_refuse(p, PLIM_UNSUPPORTED, "this \\x or \\u");
    return false;
}

bool regex_parse_point(struct regex_parse *p, uint32_t *point)
{
    static const char letters[] = "rntfvae", values[] = "\r\n\t\f\v\a\x1b";
    if (p->at == p->end) return false;
    char c = *p->at;
    const char *known = c ? strchr(letters, c) : NULL;
    if (known) {
        p->at++;
        *point = (uint32_t)(unsigned char)values[known - letters];
        return true;
    }
    if (c == 'x' || c == 'u') return parse_hex(p, point);
    if ((c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z')) return false;
    *point = regex_take(p);
    return true;
}

static bool parse_braced_property(struct regex_parse *p, struct regex_item *item)
{
    const char *start = p->at + 2, *close;
    if (p->end - p->at < 3 || p->at[1] != '{' || !(close = memchr(start, '}', (size_t)(p->end - start)))) {
        regex_refuse(p, PLIM_UNSUPPORTED, "\\p without {name}");
        return false;
    }
    bool turned = *start == '^';
    item->mask = regex_property(start + turned, (size_t)(close - start) - turned);
    item->negated = (*p->at == 'P') != turned;
    if (!item->mask) {
        char text[64];
        size_t len = (size_t)(close - start) < 40 ? (size_t)(close - start) : 40;
        memcpy(text, "\\p{", 3), memcpy(text + 3, start, len), memcpy(text + 3 + len, "}", 2);
        regex_refuse(p, PLIM_UNSUPPORTED, text);
        return false;
    }
    p->at = close + 1;
    return true;
}

bool regex_parse_property(struct regex_parse *p, struct regex_item *item)
{
    static const struct {
        char letter;
        uint32_t mask;
    } short_names[] = {{'s', UNICODE_SPACE}, {'d', UNICODE_ND}, {'w', UNICODE_WORD}};
    *item = (struct regex_item){.set = -1};
    if (p->at == p->end) return false;
    char c = *p->at;
    if (c == 'p' || c == 'P') return parse_braced_property(p, item);
    for (size_t i = 0; i < sizeof short_names / sizeof *short_names; i++)
        if ((c | 32) == short_names[i].letter) {
            item->mask = short_names[i].mask;
            item->negated = c < 'a';
            p->at++;
            return true;
        }
    if (c != 'h' && c != 'H') return false;
    p->at++; /* a hexadecimal digit */
    item->negated = c == 'H';
    item->set = regex_set_new(p->sets);
    static const char ranges[] = "09afAF";
    bool fine = item->set >= 0;
    for (size_t i = 0; i < 6 && fine; i += 2)
        fine = regex_set_add(p->sets, item->set,
                             (struct regex_item){.first = (unsigned char)ranges[i],
                                                 .last = (unsigned char)ranges[i + 1],
                                                 .set = -1});
    if (!fine) regex_refuse(p, PLIM_NO_MEMORY, "");
    if (fine) regex_set_finish(p->sets, item->set);
    return fine;
}

/* [:name:] after its '['; false: it is not one. */
static bool parse_bracket(struct regex_parse *p, struct regex_item *item)
{
    size_t left = (size_t)(p->end - p->at), len;
    if (left < 4 || p->at[0] != ':') return false;
    bool negated = p->at[1] == '^';
    const char *name = p->at + 1 + negated;
    for (len = 0; name + len < p->end && (name[len] | 32) >= 'a' && (name[len] | 32) <= 'z';) len++;
    if (p->end - (name + len) < 2 || name[len] != ':' || name[len + 1] != ']') return false;
    *item = (struct regex_item){.mask = regex_bracket(name, len), .set = -1, .negated = negated};
    if (!item->mask) {
        regex_refuse(p, PLIM_UNSUPPORTED, "this [[:name:]]");
        return false;
    }
    p->at = name + len + 2;
    return true;
}

static bool looking_at(const struct regex_parse *p, const char *text)
{
    size_t n = strlen(text);
    return (size_t)(p->end - p->at) >= n && memcmp(p->at, text, n) == 0;
}

/* One character of a class, or (false) a whole set in *item. */
static bool class_atom(struct regex_parse *p, uint32_t *point, struct regex_item *item)
{
    if (*p->at == '[') {
        p->at++;
        if (parse_bracket(p, item) || p->status != PLIM_OK) return false;
        *item = (struct regex_item){.set = regex_parse_class(p)};
        return false;
    }
    if (*p->at != '\\') {
        *point = regex_take(p);
        return true;
    }
    p->at++;
    if (p->at < p->end && *p->at == 'b') { /* a backspace, here */
        p->at++;
        *point = '\b';
        return true;
    }
    if (regex_parse_property(p, item)) return false;
    if (p->status == PLIM_OK && regex_parse_point(p, point)) return true;
    if (p->status == PLIM_OK) regex_refuse(p, PLIM_UNSUPPORTED, "this escape in a class");
    return false;
}

static void add_range(struct regex_parse *p, int32_t set, uint32_t first, uint32_t last)
{
    struct regex_item item = {.first = first, .last = last, .set = -1};
    if (p->fold && last >= 0x80 && (unicode_classes(first) | unicode_classes(last)) & UNICODE_L) {
        regex_refuse(p, PLIM_UNSUPPORTED, "(?i) with letters beyond ASCII");
        return;
    }
    if (!regex_set_add(p->sets, set, item) || (p->fold && !regex_set_add_folded(p->sets, set, first, last)))
        regex_refuse(p, PLIM_NO_MEMORY, "");
}

static void class_member(struct regex_parse *p, int32_t set)
{
    uint32_t first, last;
    struct regex_item item;
    if (!class_atom(p, &first, &item)) {
        item.in_class = true;
        if (p->status == PLIM_OK && !regex_set_add(p->sets, set, item)) regex_refuse(p, PLIM_NO_MEMORY, "");
        return;
    }
    last = first;
    if (p->end - p->at >= 2 && p->at[0] == '-' && p->at[1] != ']') {
        p->at++;
        if (!class_atom(p, &last, &item)) {
            if (p->status == PLIM_OK) regex_refuse(p, PLIM_UNSUPPORTED, "a range up to a class");
            return;
        }
    }
    if (last < first)
        regex_refuse(p, PLIM_BAD_INPUT, "a range that runs backwards");
    else
        add_range(p, set, first, last);
}

/* The members up to ']' or "&&", which is left to the caller. */
static int32_t class_part(struct regex_parse *p, bool first_part)
{
    int32_t set = regex_set_new(p->sets);
    if (set < 0) regex_refuse(p, PLIM_NO_MEMORY, "");
    bool begin = first_part;
    while (p->status == PLIM_OK) {
        if (p->at == p->end) {
            regex_refuse(p, PLIM_BAD_INPUT, "a '[' without ']'");
            break;
        }
        if ((*p->at == ']' && !begin) || looking_at(p, "&&")) break;
        begin = false;
        class_member(p, set);
    }
    return set;
}

int32_t regex_parse_class(struct regex_parse *p)
{
    if (++p->depth > 64) regex_refuse(p, PLIM_UNSUPPORTED, "more than 64 levels");
    bool negated = p->at < p->end && *p->at == '^';
    p->at += negated;
    int32_t set = p->status == PLIM_OK ? class_part(p, true) : -1, tail = set;
    while (p->status == PLIM_OK && looking_at(p, "&&")) {
        p->at += 2;
        int32_t more = class_part(p, false);
        if (p->status != PLIM_OK) break;
        p->sets->set[tail].both = more;
        tail = more;
    }
    p->depth--;
    if (p->status != PLIM_OK) return -1;
    p->at++; /* ']' */
    p->sets->set[set].negated = negated;
    regex_set_finish(p->sets, set);
    return set;
}
