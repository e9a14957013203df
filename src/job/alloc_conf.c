/* alloc_conf.c - see alloc_conf.h: tokens, and a table of what each option takes. */
#include "job/alloc_conf.h"
#include "base/nearest.h"
#include "base/number.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { WORD = 64 };

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

static enum plim_status expect(struct reader *r, const char *token, const char *after)
{
    if (is(r, token)) return PLIM_OK;
    return plim_fail(r->err, PLIM_BAD_INPUT, "expected '%s' after '%s', found '%s'", token, after,
                     *r->word ? r->word : "the end");
}

/* ---- values: the token is the first of them; afterwards it is the one behind ---- */

struct option;
typedef enum plim_status take(struct reader *r, const struct option *option, struct alloc_conf *out);

struct option {
    const char *name, *wants;
    take *take;
    double min, max;
};

static enum plim_status wrong(struct reader *r, const struct option *o)
{
    return plim_fail(r->err, PLIM_BAD_INPUT, "option '%s': expected %s, found '%s'", o->name, o->wants,
                     *r->word ? r->word : "nothing");
}

/* One of the two words of `wants`. */
static enum plim_status take_word(struct reader *r, const struct option *o, struct alloc_conf *)
{
    const char *second = strstr(o->wants, " or ") + strlen(" or ");
    size_t first = strcspn(o->wants, " ");
    if (!is(r, second) && (strlen(r->word) != first || strncmp(r->word, o->wants, first))) return wrong(r, o);
    next(r);
    return PLIM_OK;
}

static bool number(const struct reader *r, const struct option *o, double *value)
{
    return number_parse_double(r->word, strlen(r->word), value) && *value >= o->min && *value <= o->max;
}

static enum plim_status take_whole(struct reader *r, const struct option *o, struct alloc_conf *)
{
    int64_t whole;
    double value;
    if (!number_parse_int64(r->word, strlen(r->word), &whole) || !number(r, o, &value)) return wrong(r, o);
    next(r);
    return PLIM_OK;
}

static enum plim_status take_share(struct reader *r, const struct option *o, struct alloc_conf *out)
{
    double value;
    bool fraction = !strcmp(o->name, "per_process_memory_fraction");
    if (!number(r, o, &value) || (!fraction && (value <= 0 || value >= 1))) return wrong(r, o);
    if (fraction) out->fraction = value;
    next(r);
    return PLIM_OK;
}

static bool is_power(const char *word)
{
    int64_t n;
    return number_parse_int64(word, strlen(word), &n) && n > 0 && !(n & (n - 1));
}

/* N, or [64:8,256:4,>:1] */
static enum plim_status take_divisions(struct reader *r, const struct option *o, struct alloc_conf *)
{
    bool list = is(r, "[");
    if (!list && !is_power(r->word)) return wrong(r, o);
    while (list) {
        next(r);
        if (!is(r, ">") && !is_power(r->word)) return wrong(r, o);
        next(r);
        if (!is(r, ":")) return wrong(r, o);
        next(r);
        if (!is_power(r->word)) return wrong(r, o);
        next(r);
        if (is(r, "]")) break;
        if (!is(r, ",")) return wrong(r, o);
    }
    next(r);
    return PLIM_OK;
}

static const struct option options[] = {
    {"expandable_segments", "True or False", take_word, 0, 0},
    {"max_split_size_mb", "a whole number of at least 20", take_whole, 20, 1e9},
    {"max_non_split_rounding_mb", "a whole number of at least 20", take_whole, 20, 1e9},
    {"garbage_collection_threshold", "a number between 0 and 1", take_share, 0, 1},
    {"roundup_power2_divisions", "a power of two, or a list such as [64:8,256:4,>:1]", take_divisions, 0, 0},
    {"per_process_memory_fraction", "a number from 0 to 1", take_share, 0, 1},
    {"backend", "native or cudaMallocAsync", take_word, 0, 0},
    {"release_lock_on_cudamalloc", "True or False", take_word, 0, 0},
    {"release_lock_on_hipmalloc", "True or False", take_word, 0, 0},
    {"graph_capture_record_stream_reuse", "True or False", take_word, 0, 0},
    {"pinned_use_cuda_host_register", "True or False", take_word, 0, 0},
    {"pinned_use_hip_host_register", "True or False", take_word, 0, 0},
    {"pinned_use_background_threads", "True or False", take_word, 0, 0},
    {"pinned_num_register_threads", "a whole number from 1 to 128", take_whole, 1, 128},
    {"pinned_reserve_segment_size_mb", "a whole number above 0", take_whole, 1, 1e9},
};
enum { OPTIONS = sizeof options / sizeof *options };

static enum plim_status unknown(struct reader *r)
{
    struct nearest near = nearest_begin(r->word);
    for (int i = 0; i < OPTIONS; i++) nearest_offer(&near, options[i].name);
    return plim_fail(r->err, PLIM_BAD_INPUT, "'%s' is no option of the allocator%s%s%s",
                     *r->word ? r->word : "nothing", near.best ? "; did you mean '" : "",
                     near.best ? near.best : "", near.best ? "'?" : "");
}

static enum plim_status read_option(struct reader *r, struct alloc_conf *out)
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

enum plim_status alloc_conf_parse(const char *text, struct alloc_conf *out, struct plim_error *err)
{
    struct reader r = {.at = text, .err = err};
    enum plim_status status = PLIM_OK;
    *out = (struct alloc_conf){0};
    next(&r);
    while (*r.word && status == PLIM_OK) {
        status = read_option(&r, out);
        if (status != PLIM_OK || !*r.word) return status;
        status = expect(&r, ",", "a value");
        next(&r);
    }
    return status;
}
