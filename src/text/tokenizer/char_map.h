/* char_map.h - SentencePiece's character map: texts and their replacements.
 *
 *     struct char_map map = {0};
 *     char_map_read(&map, node, "tokenizer.json", &err);       // node: the map in base64
 *     made = char_map_longest(&map, text, len, &taken, &made_len);
 *     char_map_release(&map);
 *
 * The map is base64 of: the trie's size in bytes (u32), the trie (u32 units, little-endian), the replacements (UTF-8, each
 * NUL-terminated). A unit has a label (bits 0-7 and 31), a flag that a value follows (8), and an offset (bits 10-30, shifted
 * 8 bits further left when bit 9 is set); offset xor next byte gives the next unit. A value is the offset of a replacement.
 *
 * The file is untrusted: every unit and offset is checked when it is used.
 */
#pragma once

#include "base/node.h"
#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct char_map {
    uint32_t *unit;
    char *text; /* replacements */
    size_t units, text_len;
};

/* PLIM_BAD_INPUT: the map is malformed. Release it even on failure. */
enum plim_status char_map_read(struct char_map *map, const struct node *base64, const char *name,
                               struct plim_error *err);
void char_map_release(struct char_map *map);

/* The replacement of the shortest or the longest key at the start of text[0..len); NULL: no key matches.
 * *taken: the key's length. */
const char *char_map_shortest(const struct char_map *map, const char *text, size_t len, size_t *made_len);
const char *char_map_longest(const struct char_map *map, const char *text, size_t len, size_t *taken,
                             size_t *made_len);
/* True if some key begins with these bytes. */
bool char_map_begins(const struct char_map *map, const char *text, size_t len);
