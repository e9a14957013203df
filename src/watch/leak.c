/* leak.c - see leak.h. */
#include "watch/leak.h"
#include "base/bytes.h"

static const struct {
    const char *name, *what;
} part_rows[LEAK_PARTS] = {
    [LEAK_LOADER] = {"loader", "the data loader's buffers; lower data.num_workers or data.prefetch_factor"},
    [LEAK_LIBRARIES] = {"libraries",
                        "code and data of libraries; a driver or a library that was loaded late"},
    [LEAK_PAGE_CACHE] = {"page cache",
                         "pages of mapped files, which the system takes back when it needs them"},
    [LEAK_UNKNOWN] = {"unknown", "memory that no part of the program accounts for; please report it with the "
                                 "file that plimsoll ctl RUN snapshot writes"},
};

const char *leak_part_name(enum leak_part part) { return part_rows[part].name; }

static enum leak_part grown_most(const struct leak_parts *from, const struct leak_parts *to)
{
    int best = LEAK_UNKNOWN;
    for (int i = 0; i < LEAK_PARTS; i++)
        if (to->bytes[i] - from->bytes[i] > to->bytes[best] - from->bytes[best]) best = i;
    return (enum leak_part)best;
}

/* A window is over. */
static void close_window(struct leak *l, int64_t allowed)
{
    bool rises = l->last && l->least > l->last;
    if (!rises) l->rising = 0, l->from = l->least, l->from_step = l->step, l->from_parts = l->parts;
    l->rising += rises;
    l->last = l->least;
    l->seen = 0;
    if (l->found || l->rising < LEAK_WINDOWS || l->least - l->from <= allowed) return;
    l->found = true;
    l->growth = l->least - l->from;
    l->growth_steps = l->step - l->from_step;
    l->who = grown_most(&l->from_parts, &l->parts);
}

void leak_look(struct leak *l, int64_t step, int64_t outside, int64_t allowed, const struct leak_parts *parts)
{
    if (!l->seen || outside < l->least) l->least = outside, l->parts = *parts, l->step = step;
    if (++l->seen == LEAK_WINDOW) close_window(l, allowed);
}

void leak_text(const struct leak *l, struct strbuf *out)
{
    char bytes[BYTES_TEXT];
    strbuf_addf(out, "memory outside the plan has grown by %s in %lld steps, by %s: %s",
                bytes_format(bytes, (uint64_t)l->growth), (long long)l->growth_steps, part_rows[l->who].name,
                part_rows[l->who].what);
}
