/* unicode.c - lookups in the generated tables.
 *
 * Three stages lead from a code point to a number: blocks of 512 share an entry of the first, blocks of 16 one of the
 * middle, and the last has one per code point. Properties: the number of a row of 64 bits. Decompositions: 0 for none,
 * the code point it becomes, or a number from the surrogates (a pair that composes to it) or from the private use
 * area (a place in the pool, where each text is its length and its code points). Lower case is a list of runs.
 */
#include "text/unicode.h"

enum {
    PAIR = 0xd800,
    TEXT = 0xe000,
    TEXT_END = 0xf900
}; /* what tools/make-unicode numbers pairs and texts from */

struct composition {
    uint32_t first, second, composed;
};
struct lower_run {
    uint32_t first, last, step;
    int32_t distance;
};

#include "text/unicode_tables.inc"

static uint32_t decomposition_of(uint32_t point)
{
    if (point >= 0x110000) return 0;
    size_t middle = (size_t)decomposition_first[point >> 9] << 5 | (point >> 4 & 31);
    return decomposition_last[(size_t)decomposition_middle[middle] << 4 | (point & 15)];
}

size_t unicode_decompose(uint32_t point, bool compatible, uint32_t out[UNICODE_PARTS_MOST])
{
    uint32_t to = point < 0x80 ? 0 : decomposition_of(point);
    out[0] = point;
    if (to == 0 || !(compatible || unicode_form_touches(UNICODE_NFD, point))) return 1;
    if (to < PAIR || to >= TEXT_END) return unicode_decompose(to, compatible, out);
    if (to < TEXT) {
        const struct composition *c = &compositions[to - PAIR];
        size_t count = unicode_decompose(c->first, compatible, out);
        return count + unicode_decompose(c->second, compatible, out + count);
    }
    const uint32_t *text = decomposition_pool + (to - TEXT);
    for (size_t i = 0; i < text[0]; i++) out[i] = text[i + 1];
    return text[0];
}

static uint32_t lower_of(uint32_t point)
{
    size_t low = 0, high = sizeof lower_runs / sizeof lower_runs[0];
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (lower_runs[mid].last < point)
            low = mid + 1;
        else
            high = mid;
    }
    return point + (uint32_t)lower_runs[low].distance;
}

size_t unicode_lower(uint32_t point, uint32_t out[UNICODE_LOWER_MOST])
{
    out[0] = point;
    if (point < 0x80) {
        if (point - 'A' < 26) out[0] = point + 32;
    } else if (point == 0x130) { /* capital I with a dot: the only one that becomes two */
        out[0] = 'i', out[1] = 0x307;
        return 2;
    } else if (unicode_flag(point, UNICODE_FLAG_LOWER)) {
        out[0] = lower_of(point);
    }
    return 1;
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
