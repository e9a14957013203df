/* cache_conf.c - see cache_conf.h: tokens, a table that says what each option takes, and the rounding that follows from it. */
#include "mem/cache_conf.h"
#include "base/nearest.h"
#include "base/number.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum { WORD = 64 };

#define MIB ((uint64_t)1 << 20)

struct reader {
    const char *at;
    char word[WORD]; /* the token last read */
    struct plim_error *err;
};

/* The next token: one of , : [ ] by itself, or the letters up to one of them. Empty at the end. */
static void next(struct reader *r)
{
    size_t n = 0;
    while (*r->at == ' ' || *r->at == '\t') r->at++;
    if (*r->at && strchr(",:[]", *r->at)) {
        r->word[n++] = *r->at++;
    } else {
        while (*r->at && !strchr(",:[]", *r->at) && n + 1 < WORD) {
            if (*r->at != ' ' && *r->at != '\t') r->word[n++] = *r->at;
            r->at++;
        }
    }
    r->word[n] = '\0';
}

static bool is(const struct reader *r, const char *token) { return !strcmp(r->word, token); }

static const char *found(const struct reader *r) { return *r->word ? r->word : "the end"; }

static enum plim_status expect(struct reader *r, const char *token, const char *after)
{
    if (is(r, token)) return PLIM_OK;
    return plim_fail(r->err, PLIM_BAD_INPUT,
                     "Error parsing CachingAllocator settings, expected '%s' after '%s', found '%s'", token,
                     after, found(r));
}

/* ---- values: the token is the first of them; afterwards it is the one behind ---- */

struct option;
typedef enum plim_status take(struct reader *r, const struct option *option, struct cache_conf *out);

struct option {
    const char *name;
    const char *refusal; /* how a message about a wrong value begins; NULL: as for True and False */
    take *take;
    double min, max;
    size_t member; /* offset in struct cache_conf; 0: checked only */
};

static enum plim_status wrong(struct reader *r, const struct option *o)
{
    if (!o->refusal)
        return plim_fail(r->err, PLIM_BAD_INPUT, "Expected a single True/False argument for %s, found '%s'",
                         o->name, found(r));
    return plim_fail(r->err, PLIM_BAD_INPUT, "%s; %s has '%s'", o->refusal, o->name, found(r));
}

static void *member(const struct option *o, struct cache_conf *out)
{
    return o->member ? (char *)out + o->member : NULL;
}

static enum plim_status take_bool(struct reader *r, const struct option *o, struct cache_conf *out)
{
    bool *into = member(o, out);
    if (!is(r, "True") && !is(r, "False")) return wrong(r, o);
    if (into) *into = is(r, "True");
    next(r);
    return PLIM_OK;
}

static bool number(const struct reader *r, const struct option *o, double *value)
{
    return number_parse_double(r->word, strlen(r->word), value) && *value >= o->min && *value <= o->max;
}

static bool whole(const struct reader *r, int64_t *value)
{
    return number_parse_int64(r->word, strlen(r->word), value);
}

static enum plim_status take_mib(struct reader *r, const struct option *o, struct cache_conf *out)
{
    int64_t mib;
    uint64_t *into = member(o, out);
    if (!whole(r, &mib)) {
        return plim_fail(r->err, PLIM_BAD_INPUT, "Error, expecting %s value, a whole number, found '%s'",
                         o->name, found(r));
    }
    if ((double)mib < o->min) return wrong(r, o);
    if (into) *into = (uint64_t)mib > (uint64_t)o->max ? CACHE_NO_LIMIT : (uint64_t)mib * MIB;
    next(r);
    return PLIM_OK;
}

static enum plim_status take_share(struct reader *r, const struct option *o, struct cache_conf *out)
{
    double value;
    bool open = o->member == offsetof(struct cache_conf, gc_threshold); /* neither 0 nor 1 */
    if (!number(r, o, &value) || (open && (value <= 0 || value >= 1))) return wrong(r, o);
    *(double *)member(o, out) = value;
    next(r);
    return PLIM_OK;
}

static enum plim_status take_backend(struct reader *r, const struct option *o, struct cache_conf *out)
{
    if (!is(r, "native") && !is(r, "cudaMallocAsync")) return wrong(r, o);
    out->async_backend = is(r, "cudaMallocAsync");
    next(r);
    return PLIM_OK;
}

static bool read_power(const struct reader *r, int64_t *n)
{
    return whole(r, n) && *n > 0 && !(*n & (*n - 1));
}

static enum plim_status take_threads(struct reader *r, const struct option *o, struct cache_conf *)
{
    int64_t n;
    if (!read_power(r, &n) || (double)n > o->max) return wrong(r, o);
    next(r);
    return PLIM_OK;
}

static int log2_floor(uint64_t n) { return 63 - __builtin_clzll(n); }

/* "64:8" or ">:1". The first key fills the entries below it, too; `>` fills those above the last. */
static enum plim_status take_interval(struct reader *r, const struct option *o, uint32_t *divisions,
                                      int *last)
{
    int64_t key = 0, value;
    bool rest = is(r, ">");
    if (!rest && !read_power(r, &key)) return wrong(r, o);
    next(r);
    enum plim_status status = expect(r, ":", rest ? ">" : "an interval");
    if (status != PLIM_OK) return status;
    next(r);
    if (!whole(r, &value) || value < 0 || (value & (value - 1))) return wrong(r, o);
    int index = rest ? CACHE_DIVISIONS - 1 : log2_floor((uint64_t)key);
    if (index >= CACHE_DIVISIONS) index = CACHE_DIVISIONS - 1;
    for (int i = rest || *last < 0 ? *last + 1 : index; i <= index; i++)
        divisions[i] = value > UINT32_MAX ? 0 : (uint32_t)value;
    if (!rest) *last = index;
    next(r);
    return PLIM_OK;
}

/* N, or [64:8,256:4,>:1] */
static enum plim_status take_divisions(struct reader *r, const struct option *o, struct cache_conf *out)
{
    int64_t n;
    int last = -1;
    if (!is(r, "[")) {
        if (!read_power(r, &n) || n > UINT32_MAX) return wrong(r, o);
        for (int i = 0; i < CACHE_DIVISIONS; i++) out->divisions[i] = (uint32_t)n;
        next(r);
        return PLIM_OK;
    }
    next(r);
    while (!is(r, "]")) {
        enum plim_status status = take_interval(r, o, out->divisions, &last);
        if (status == PLIM_OK && !is(r, "]")) status = expect(r, ",", "an interval");
        if (status != PLIM_OK) return status;
        if (is(r, ",")) next(r);
    }
    next(r);
    return PLIM_OK;
}

#define MEMBER(name) offsetof(struct cache_conf, name)
#define MIB_MAX      ((double)(UINT64_MAX / 2 / MIB))
#define POWER_OF_2   "For roundups, intervals and divisions have to be power of 2, or 0 to disable roundup"

static const struct option options[] = {
    {"expandable_segments", NULL, take_bool, .member = MEMBER(expandable)},
    {"max_split_size_mb", "CachingAllocator option max_split_size_mb too small, must be >= 20", take_mib, 20,
     MIB_MAX, MEMBER(max_split)},
    {"max_non_split_rounding_mb",
     "CachingAllocator option max_non_split_rounding_mb too small, must be >= 20", take_mib, 20, MIB_MAX,
     MEMBER(max_non_split_rounding)},
    {"garbage_collection_threshold", "garbage_collect_threshold is invalid, set it in (0.0, 1.0)", take_share,
     0, 1, MEMBER(gc_threshold)},
    {"roundup_power2_divisions", POWER_OF_2, take_divisions, 0, 0, MEMBER(divisions)},
    {"per_process_memory_fraction", "per_process_memory_fraction is invalid, set it in [0.0, 1.0]",
     take_share, 0, 1, MEMBER(fraction)},
    {"backend", "Unknown allocator backend, options are native and cudaMallocAsync", take_backend, 0, 0, 0},
    {"release_lock_on_cudamalloc", NULL, take_bool, .member = MEMBER(release_lock)},
    {"release_lock_on_hipmalloc", NULL, take_bool, .member = MEMBER(release_lock)},
    {"graph_capture_record_stream_reuse", NULL, take_bool, 0, 0, 0},
    {"pinned_use_cuda_host_register", NULL, take_bool, 0, 0, 0},
    {"pinned_use_hip_host_register", NULL, take_bool, 0, 0, 0},
    {"pinned_use_background_threads", NULL, take_bool, 0, 0, 0},
    {"pinned_num_register_threads", "Number of register threads has to be power of 2, at most 128",
     take_threads, 1, 128, 0},
    {"pinned_reserve_segment_size_mb", "Error, expecting a size above 0", take_mib, 1, MIB_MAX, 0},
};
enum { OPTIONS = sizeof options / sizeof *options };

static enum plim_status unknown(struct reader *r)
{
    struct nearest near = nearest_begin(r->word);
    for (int i = 0; i < OPTIONS; i++) nearest_offer(&near, options[i].name);
    return plim_fail(r->err, PLIM_BAD_INPUT, "Unrecognized CachingAllocator option: %s%s%s%s", found(r),
                     near.best ? "; did you mean '" : "", near.best ? near.best : "", near.best ? "'?" : "");
}

static enum plim_status read_option(struct reader *r, struct cache_conf *out)
{
    int i = 0;
    while (i < OPTIONS && !is(r, options[i].name)) i++;
    if (i == OPTIONS) return unknown(r);
    next(r);
    enum plim_status status = expect(r, ":", options[i].name);
    if (status != PLIM_OK) return status;
    next(r);
    return options[i].take(r, &options[i], out);
}

void cache_conf_default(struct cache_conf *out)
{
    *out = (struct cache_conf){.max_split = CACHE_NO_LIMIT, .max_non_split_rounding = CACHE_LARGE_SEGMENT};
}

enum plim_status cache_conf_parse(const char *text, struct cache_conf *out, struct plim_error *err)
{
    struct reader r = {.at = text, .err = err};
    enum plim_status status = PLIM_OK;
    cache_conf_default(out);
    next(&r);
    while (*r.word && status == PLIM_OK) {
        status = read_option(&r, out);
        if (status != PLIM_OK || !*r.word) return status;
        status = expect(&r, ",", "a value");
        next(&r);
    }
    return status;
}

/* ---- sizes ---- */

static uint64_t round_up(uint64_t n, uint64_t step) { return (n + step - 1) / step * step; }

static uint64_t divisions_for(const struct cache_conf *conf, uint64_t bytes)
{
    int index = log2_floor(bytes) - 20;
    return conf->divisions[index < 0 ? 0 : index < CACHE_DIVISIONS ? index : CACHE_DIVISIONS - 1];
}

uint64_t cache_conf_round(const struct cache_conf *conf, uint64_t bytes)
{
    if (bytes < CACHE_MIN_BLOCK) return CACHE_MIN_BLOCK;
    uint64_t divisions = divisions_for(conf, bytes);
    if (divisions > 1 && bytes > CACHE_MIN_BLOCK * divisions)
        return round_up(bytes, ((uint64_t)1 << log2_floor(bytes)) / divisions);
    return round_up(bytes, CACHE_MIN_BLOCK);
}

uint64_t cache_segment_bytes(uint64_t rounded)
{
    if (rounded <= CACHE_SMALL_MAX) return CACHE_SMALL_SEGMENT;
    if (rounded < CACHE_MID_MAX) return CACHE_LARGE_SEGMENT;
    return round_up(rounded, CACHE_LARGE_STEP);
}
