/* unicode_normalize.c - NFC, NFD, NFKC and NFKD.
 *
 * Most text is already in the form that is asked for. The tables know the code points a form may touch; a run of
 * them, with the one before it when the form composes (it may be the first half of a pair), is taken apart,
 * sorted and put together again. Everything between the runs is copied. An untouched code point is a starter
 * that joins with nothing before it, so runs do not influence each other.
 */
#include "text/unicode.h"
#include "text/tokenizer/text.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

enum { /* Hangul syllables are composed by arithmetic */
       HANGUL_S = 0xac00,
       HANGUL_L = 0x1100,
       HANGUL_V = 0x1161,
       HANGUL_T = 0x11a7,
       HANGUL_LS = 19,
       HANGUL_VS = 21,
       HANGUL_TS = 28,
       HANGUL_SS = HANGUL_LS * HANGUL_VS * HANGUL_TS,
};

/* A run takes no more memory than its text may: 12 bytes a point while it grows or is sorted. */
enum { RUN_INLINE = 64, RUN_SHARE = 12 };

/* The code points of one run; they move to the heap when it is long. */
struct run {
    uint32_t *point;
    size_t count, cap, most; /* most: points; 0: any number */
    bool failed, full;
    uint32_t inline_point[RUN_INLINE];
};

static unsigned combining(uint32_t point) { return (unsigned)(unicode_row(point) >> 56); }

static bool run_grow(struct run *run)
{
    run->full = run->most && 2 * run->cap > run->most;
    uint32_t *more = !run->full && run->cap <= SIZE_MAX / 8 ? malloc(2 * run->cap * sizeof *more) : NULL;
    if (!more) {
        run->failed = true;
        return false;
    }
    memcpy(more, run->point, run->count * sizeof *more);
    if (run->point != run->inline_point) free(run->point);
    run->point = more;
    run->cap *= 2;
    return true;
}

static void run_add(struct run *run, uint32_t point)
{
    if (run->count == run->cap && !run_grow(run)) return;
    run->point[run->count++] = point;
}

static void run_decompose(struct run *run, uint32_t point, bool compatible)
{
    if (point - HANGUL_S < HANGUL_SS) {
        uint32_t s = point - HANGUL_S;
        run_add(run, HANGUL_L + s / (HANGUL_VS * HANGUL_TS));
        run_add(run, HANGUL_V + s / HANGUL_TS % HANGUL_VS);
        if (s % HANGUL_TS) run_add(run, HANGUL_T + s % HANGUL_TS);
        return;
    }
    uint32_t parts[UNICODE_PARTS_MOST];
    size_t count = unicode_decompose(point, compatible, parts);
    for (size_t i = 0; i < count; i++) run_add(run, parts[i]);
}

/* Marks of one starter by insertion; a text of nothing but marks must not cost the square of its length. */
static void sort_few(uint32_t *point, size_t count)
{
    for (size_t i = 1; i < count; i++) {
        uint32_t p = point[i];
        unsigned ccc = combining(p);
        size_t at = i;
        for (; at && combining(point[at - 1]) > ccc; at--) point[at] = point[at - 1];
        point[at] = p;
    }
}

static bool sort_many(uint32_t *point, size_t count)
{
    size_t begin[257] = {0};
    uint32_t *copy = malloc(count * sizeof *copy);
    if (!copy) return false;
    memcpy(copy, point, count * sizeof *copy);
    for (size_t i = 0; i < count; i++) begin[combining(copy[i]) + 1]++;
    for (size_t i = 1; i < 257; i++) begin[i] += begin[i - 1];
    for (size_t i = 0; i < count; i++) point[begin[combining(copy[i])]++] = copy[i];
    free(copy);
    return true;
}

static void run_sort(struct run *run)
{
    for (size_t i = 0, end; i < run->count; i = end) {
        end = i + 1;
        if (!combining(run->point[i])) continue;
        while (end < run->count && combining(run->point[end])) end++;
        if (end - i <= 32)
            sort_few(run->point + i, end - i);
        else if (!sort_many(run->point + i, end - i))
            run->failed = true;
    }
}

static uint32_t compose(uint32_t first, uint32_t second)
{
    if (first - HANGUL_L < HANGUL_LS && second - HANGUL_V < HANGUL_VS)
        return HANGUL_S + ((first - HANGUL_L) * HANGUL_VS + (second - HANGUL_V)) * HANGUL_TS;
    if (first - HANGUL_S < HANGUL_SS && (first - HANGUL_S) % HANGUL_TS == 0 &&
        second - HANGUL_T - 1 < HANGUL_TS - 1)
        return first + (second - HANGUL_T);
    return unicode_composition(first, second);
}

/* A mark composes with the starter before it unless a mark of the same or a higher class stands between. */
static void run_compose(struct run *run)
{
    size_t starter = SIZE_MAX, count = 0;
    unsigned last = 0;
    for (size_t i = 0; i < run->count; i++) {
        uint32_t p = run->point[i], joined = 0;
        unsigned ccc = combining(p);
        bool adjacent = starter != SIZE_MAX && starter + 1 == count;
        if (starter != SIZE_MAX && (adjacent || last < ccc)) joined = compose(run->point[starter], p);
        if (joined) {
            run->point[starter] = joined;
            continue;
        }
        if (!ccc) starter = count;
        last = ccc;
        run->point[count++] = p;
    }
    run->count = count;
}

static void run_write(struct run *run, const char *text, size_t len, enum unicode_form form,
                      struct strbuf *out)
{
    run->count = 0;
    for (size_t at = 0; at < len;) {
        size_t n = 0;
        uint32_t point = text_point(text + at, &n);
        run_decompose(run, point, form == UNICODE_NFKC || form == UNICODE_NFKD);
        at += n;
    }
    run_sort(run);
    if (form == UNICODE_NFC || form == UNICODE_NFKC) run_compose(run);
    for (size_t i = 0; i < run->count; i++) {
        char bytes[4];
        strbuf_addn(out, bytes, utf8_encode(run->point[i], bytes));
    }
}

/* From `at`, the first code point that is touched (or not touched); *before is where the one before it begins. */
static size_t scan(enum unicode_form form, bool touched, const char *text, size_t len, size_t at,
                   size_t *before)
{
    while (at < len) {
        size_t n = 0;
        uint32_t point = text_point(text + at, &n);
        if (unicode_form_touches(form, point) == touched) return at;
        *before = at;
        at += n;
    }
    return at;
}

void unicode_normalize(enum unicode_form form, const char *text, size_t len, struct strbuf *out)
{
    struct run run = {.cap = RUN_INLINE, .most = out->most ? out->most / RUN_SHARE + RUN_INLINE : 0};
    bool composes = form == UNICODE_NFC || form == UNICODE_NFKC;
    run.point = run.inline_point;
    for (size_t done = 0, at = 0; done < len;) {
        size_t before = done, unused = 0;
        at = scan(form, true, text, len, done, &before);
        size_t begin = composes && at < len ? before : at;
        strbuf_addn(out, text + done, begin - done);
        if (at == len) break;
        size_t end = scan(form, false, text, len, at, &unused);
        run_write(&run, text + begin, end - begin, form, out);
        done = end;
    }
    if (run.failed) out->failed = true, out->full |= run.full;
    if (run.point != run.inline_point) free(run.point);
}
