/* char_map.c - see char_map.h. */
#include "text/tokenizer/char_map.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

static uint32_t unit_label(uint32_t unit) { return unit & (1u << 31 | 0xff); }
static size_t unit_offset(uint32_t unit) { return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6); }

/* Walks the trie from *at over one byte. False: no key goes on with it. *value: the key's that ends here, or -1. */
static bool step(const struct char_map *map, size_t *at, unsigned char byte, int64_t *value)
{
    *at ^= byte;
    if (!byte || *at >= map->units || unit_label(map->unit[*at]) != byte) return false;
    uint32_t unit = map->unit[*at];
    *at ^= unit_offset(unit);
    *value = unit >> 8 & 1 && *at < map->units ? (int64_t)(map->unit[*at] & 0x7fffffff) : -1;
    return !(unit >> 8 & 1) || *at < map->units;
}

/* A place inside a character would not be UTF-8: no replacement. */
static const char *text_at(const struct char_map *map, int64_t place, size_t *len)
{
    if (place < 0 || (size_t)place > map->text_len) return NULL;
    if (((unsigned char)map->text[place] & 0xc0) == 0x80) return NULL;
    *len = strlen(map->text + place);
    return map->text + place;
}

const char *char_map_shortest(const struct char_map *map, const char *text, size_t len, size_t *made_len)
{
    size_t at = map->units ? unit_offset(map->unit[0]) : 0;
    int64_t value = -1;
    for (size_t i = 0; i < len && value < 0 && step(map, &at, (unsigned char)text[i], &value);) i++;
    return text_at(map, value, made_len);
}

const char *char_map_longest(const struct char_map *map, const char *text, size_t len, size_t *taken,
                             size_t *made_len)
{
    size_t at = map->units ? unit_offset(map->unit[0]) : 0;
    int64_t value = -1, best = -1;
    for (size_t i = 0; i < len && step(map, &at, (unsigned char)text[i], &value);) {
        i++;
        if (value >= 0) best = value, *taken = i;
    }
    return text_at(map, best, made_len);
}

bool char_map_begins(const struct char_map *map, const char *text, size_t len)
{
    size_t at = map->units ? unit_offset(map->unit[0]) : 0, i = 0;
    for (int64_t value; i < len && step(map, &at, (unsigned char)text[i], &value);) i++;
    return i == len;
}

void char_map_release(struct char_map *map)
{
    free(map->unit);
    free(map->text);
    *map = (struct char_map){0};
}

/* --- reading ------------------------------------------------------------------------------------------------ */

static int base64_digit(char c)
{
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Padded base64 to bytes; *out has room for 3 bytes in 4. False when it is malformed. */
static bool base64_decode(const char *text, size_t len, unsigned char *out, size_t *out_len)
{
    size_t pad = 0, n = 0;
    if (len % 4) return false;
    while (pad < 2 && pad < len && text[len - 1 - pad] == '=') pad++;
    for (size_t i = 0; i < len; i += 4) {
        uint32_t word = 0;
        size_t digits = i + 4 == len ? 4 - pad : 4;
        for (size_t j = 0; j < 4; j++) {
            int digit = j < digits ? base64_digit(text[i + j]) : 0;
            if (digit < 0) return false;
            word = word << 6 | (uint32_t)digit;
        }
        if (digits < 4 && word & (digits == 3 ? 0xffu : 0xffffu)) return false;
        for (size_t j = 0; j + 1 < digits; j++) out[n++] = (unsigned char)(word >> (16 - 8 * j));
    }
    *out_len = n;
    return true;
}

static uint32_t load_u32(const unsigned char *bytes)
{
    return (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 | (uint32_t)bytes[3] << 24;
}

/* Blob to units and replacements. False: malformed. *no_memory: it was memory. */
static bool read_blob(struct char_map *map, const unsigned char *blob, size_t len, bool *no_memory)
{
    *no_memory = false;
    if (len < 4 || load_u32(blob) / 4 > (len - 4) / 4) return false;
    map->units = load_u32(blob) / 4;
    const unsigned char *text = blob + 4 + 4 * map->units;
    map->text_len = len - 4 - 4 * map->units;
    if (utf8_valid_prefix((const char *)text, map->text_len) != map->text_len) return false;
    map->unit = malloc(4 * map->units + 4);
    map->text = malloc(map->text_len + 1);
    *no_memory = !map->unit || !map->text;
    if (*no_memory) return false;
    for (size_t i = 0; i < map->units; i++) map->unit[i] = load_u32(blob + 4 + 4 * i);
    memcpy(map->text, text, map->text_len);
    map->text[map->text_len] = '\0';
    return true;
}

enum plim_status char_map_read(struct char_map *map, const struct node *base64, const char *name,
                               struct plim_error *err)
{
    size_t len = base64->as.string.len, blob_len = 0;
    unsigned char *blob = malloc(len / 4 * 3 + 1);
    bool no_memory = !blob;
    bool good = blob && base64_decode(base64->as.string.text, len, blob, &blob_len) &&
                read_blob(map, blob, blob_len, &no_memory);
    free(blob);
    if (good) return PLIM_OK;
    if (no_memory)
        return plim_fail(err, PLIM_NO_MEMORY, "%s: no memory for a character map of %zu bytes", name, len);
    return plim_fail(err, PLIM_BAD_INPUT, "%s:%d: normalizer Precompiled: the character map is malformed",
                     name, base64->line);
}
