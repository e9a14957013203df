/* unicode.c - lookups in the generated tables.
 *
 * Every code point has a kind (a byte, through two stages), every kind a row of 64 property bits. Code points
 * with a mapping have a record of three places in one pool, where each text is its length and its code points;
 * place 0 is the empty text and means "itself".
 */
#include "text/unicode.h"

struct mapping {
    uint16_t canonical, compatible, lower;
};
struct composition {
    uint32_t first, second, composed;
};

#include "text/unicode_tables.inc"

static const struct mapping *mapping_of(uint32_t point)
{
    if (point >= 0x110000) return &mappings[0];
    return &mappings[mapping_block[(size_t)mapping_stage[point >> 7] << 7 | (point & 127)]];
}

const uint32_t *unicode_decomposition(uint32_t point, bool compatible, size_t *count)
{
    const struct mapping *m = mapping_of(point);
    const uint32_t *text = mapping_pool + (compatible ? m->compatible : m->canonical);
    *count = text[0];
    return text[0] ? text + 1 : NULL;
}

size_t unicode_lower(uint32_t point, uint32_t out[UNICODE_LOWER_MOST])
{
    if (point < 0x80) {
        out[0] = point - 'A' < 26 ? point + 32 : point;
        return 1;
    }
    const uint32_t *text = mapping_pool + mapping_of(point)->lower;
    out[0] = point;
    for (size_t i = 0; i < text[0] && i < UNICODE_LOWER_MOST; i++) out[i] = text[i + 1];
    return text[0] ? text[0] : 1;
}

uint32_t unicode_composition(uint32_t first, uint32_t second)
{
    size_t low = 0, high = sizeof compositions / sizeof compositions[0];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        const struct composition *c = &compositions[mid];
        if (c->first == first && c->second == second) return c->composed;
        if (c->first < first || (c->first == first && c->second < second))
            low = mid + 1;
        else
            high = mid;
    }
    return 0;
}

bool unicode_is_bert_ideograph(uint32_t point)
{
    static const struct {
        uint32_t first, last;
    } blocks[] = {{0x3400, 0x4dbf},   {0x4e00, 0x9fff},   {0xf900, 0xfaff},  {0x20000, 0x2a6df},
                  {0x2a700, 0x2b81f}, {0x2b920, 0x2ceaf}, {0x2f800, 0x2fa1f}};
    if (point < blocks[0].first) return false;
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++)
        if (point >= blocks[i].first && point <= blocks[i].last) return true;
    return false;
}
