/* adapt.c - see adapt.h. */
#include "train/adapt.h"

/* Samples after a change until memory shows it: the one under way may have been begun before. */
#define SETTLE 2

#define STAY    ADAPT_STAY
#define SHRINK  ADAPT_SHRINK
#define TIGHTEN ADAPT_TIGHTEN
#define RESTORE ADAPT_RESTORE
static const enum adapt_act table[ADAPT_LEVELS][MEMORY_STATUSES] = {
    /*                normal   warning critical emergency */
    [ADAPT_FULL] = {STAY, STAY, SHRINK, TIGHTEN},
    [ADAPT_REDUCED] = {RESTORE, STAY, SHRINK, TIGHTEN},
    [ADAPT_TIGHT] = {RESTORE, STAY, TIGHTEN, TIGHTEN},
};

static const char *const act_texts[ADAPT_ACTS] = {
    [ADAPT_SHRINK] = "reducing batch size",
    [ADAPT_TIGHTEN] = "planning anew with less, giving pages back",
    [ADAPT_RESTORE] = "batch size restored",
};
const char *adapt_act_text(enum adapt_act act) { return act_texts[act] ? act_texts[act] : ""; }

static const char *const level_names[ADAPT_LEVELS] = {"full", "reduced", "tight"};
const char *adapt_level_name(enum adapt_level level) { return level_names[level]; }

static enum adapt_act asked_for(const struct adapt *a, const struct adapt_look *look)
{
    if (a->rules.follows && look->status >= MEMORY_WARNING) return ADAPT_TIGHTEN;
    enum adapt_act act = table[a->level][look->status];
    return act == ADAPT_SHRINK && a->rules.pinned ? ADAPT_TIGHTEN : act;
}

/* May it be done now? */
static bool allowed(const struct adapt *a, const struct adapt_look *look, enum adapt_act act)
{
    bool emergency = look->status == MEMORY_EMERGENCY;
    if (look->step < a->next && !emergency) return false;
    if (act == ADAPT_RESTORE) return a->calm >= a->rules.calm;
    return look->status > a->spent && look->over > 0 && look->ours >= look->over / 8;
}

enum adapt_act adapt_decide(struct adapt *a, const struct adapt_look *look)
{
    if (!a->rules.enabled || look->sample <= a->sample) return ADAPT_STAY;
    a->sample = look->sample, a->status = look->status;
    a->calm = look->status == MEMORY_NORMAL && look->room > look->more ? a->calm + 1 : 0;
    if (look->status == MEMORY_NORMAL) a->spent = MEMORY_NORMAL;
    enum adapt_act act = asked_for(a, look);
    return act != ADAPT_STAY && allowed(a, look, act) ? act : ADAPT_STAY;
}

void adapt_done(struct adapt *a, enum adapt_act act, int64_t step, int64_t sample, bool worked, bool whole)
{
    static const enum adapt_level after[ADAPT_ACTS] = {
        [ADAPT_SHRINK] = ADAPT_REDUCED, [ADAPT_TIGHTEN] = ADAPT_TIGHT, [ADAPT_RESTORE] = ADAPT_FULL};
    a->sample = sample + SETTLE - 1;
    a->calm = 0;
    if (worked || act == ADAPT_RESTORE) a->next = step + a->rules.every;
    if (!worked && act != ADAPT_RESTORE) a->spent = a->status;
    if (!worked) return;
    a->level = act == ADAPT_RESTORE && !whole ? ADAPT_REDUCED : after[act];
}

void adapt_reset(struct adapt *a, int64_t sample)
{
    a->level = ADAPT_FULL, a->calm = 0, a->spent = MEMORY_NORMAL;
    a->sample = sample + SETTLE - 1;
}

int64_t adapt_smaller(int64_t rows, int64_t now, int64_t least, double share)
{
    int64_t smallest = 0;
    for (int64_t m = now - 1; m >= 1 && m >= least; m--) {
        if (rows % m) continue;
        smallest = m;
        if ((double)m <= share * (double)now) return m;
    }
    return smallest;
}

int64_t adapt_larger(int64_t rows, int64_t now, int64_t most)
{
    for (int64_t m = now + 1; m <= most && m <= rows; m++)
        if (rows % m == 0) return m;
    return 0;
}
