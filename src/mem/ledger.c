/* ledger.c - a few numbers behind one lock.
 *
 * Invariants (ledger_check):
 * 1. by_class sums to current; at_peak sums to peak.
 * 2. peak >= current, and each class's peak >= its use.
 * 3. current may exceed budget only because the budget was lowered; a reservation never makes it so.
 */
#include "mem/ledger.h"
#include "base/bytes.h"
#include <string.h>

void ledger_init(struct ledger *ledger, const char *tier, uint64_t budget, const char *const *classes,
                 int class_count)
{
    memset(ledger, 0, sizeof *ledger);
    pthread_mutex_init(&ledger->lock, NULL);
    ledger->tier = tier;
    ledger->class_count = class_count < LEDGER_CLASSES_MAX ? class_count : LEDGER_CLASSES_MAX;
    for (int i = 0; i < ledger->class_count; i++) ledger->classes[i] = classes[i];
    ledger->state.budget = budget;
}

void ledger_destroy(struct ledger *ledger) { pthread_mutex_destroy(&ledger->lock); }

static enum plim_status refuse(const struct ledger *ledger, int cls, uint64_t bytes,
                               const struct ledger_state *s, struct plim_error *err)
{
    char want[BYTES_TEXT], miss[BYTES_TEXT], exact[BYTES_TEXT], used[BYTES_TEXT], budget[BYTES_TEXT];
    uint64_t left = s->budget > s->current ? s->budget - s->current : 0, missing = bytes - left;
    return plim_fail(
        err, PLIM_NO_MEMORY,
        "%s memory: cannot reserve %s for '%s': %s (%s bytes) missing; %s of the budget of %s are in use",
        ledger->tier, bytes_format(want, bytes), ledger->classes[cls], bytes_format(miss, missing),
        bytes_format_exact(exact, missing), bytes_format(used, s->current), bytes_format(budget, s->budget));
}

static void note_peaks(struct ledger_state *s, int cls)
{
    if (s->by_class[cls] > s->peak_by_class[cls]) s->peak_by_class[cls] = s->by_class[cls];
    if (s->current <= s->peak) return;
    s->peak = s->current;
    memcpy(s->at_peak, s->by_class, sizeof s->at_peak);
}

enum plim_status ledger_reserve(struct ledger *ledger, int cls, uint64_t bytes, struct plim_error *err)
{
    if (cls < 0 || cls >= ledger->class_count)
        return plim_fail(err, PLIM_BUG, "%s memory: there is no class %d", ledger->tier, cls);
    if (fault_hit(ledger->fault, FAULT_RESERVE)) {
        char want[BYTES_TEXT];
        return plim_fail(err, PLIM_NO_MEMORY, "%s memory: cannot reserve %s for '%s': injected fault",
                         ledger->tier, bytes_format(want, bytes), ledger->classes[cls]);
    }
    struct ledger_state *s = &ledger->state;
    enum plim_status status = PLIM_OK;
    pthread_mutex_lock(&ledger->lock);
    if (bytes > 0 && (s->current > s->budget || bytes > s->budget - s->current)) {
        s->refused++;
        status = refuse(ledger, cls, bytes, s, err);
    } else {
        s->by_class[cls] += bytes;
        s->current += bytes;
        note_peaks(s, cls);
    }
    pthread_mutex_unlock(&ledger->lock);
    return status;
}

void ledger_release(struct ledger *ledger, int cls, uint64_t bytes)
{
    struct ledger_state *s = &ledger->state;
    pthread_mutex_lock(&ledger->lock);
    if (cls < 0 || cls >= ledger->class_count) {
        s->broken++;
    } else {
        if (bytes > s->by_class[cls]) {
            s->broken++;
            bytes = s->by_class[cls];
        }
        s->by_class[cls] -= bytes;
        s->current -= bytes;
    }
    pthread_mutex_unlock(&ledger->lock);
}

void ledger_set_budget(struct ledger *ledger, uint64_t budget)
{
    pthread_mutex_lock(&ledger->lock);
    ledger->state.budget = budget;
    pthread_mutex_unlock(&ledger->lock);
}

void ledger_read(struct ledger *ledger, struct ledger_state *out)
{
    pthread_mutex_lock(&ledger->lock);
    *out = ledger->state;
    pthread_mutex_unlock(&ledger->lock);
}

uint64_t ledger_over(struct ledger *ledger)
{
    struct ledger_state s;
    ledger_read(ledger, &s);
    return s.current > s.budget ? s.current - s.budget : 0;
}

uint64_t ledger_left(struct ledger *ledger)
{
    struct ledger_state s;
    ledger_read(ledger, &s);
    return s.budget > s.current ? s.budget - s.current : 0;
}

uint64_t ledger_current(struct ledger *ledger)
{
    struct ledger_state s;
    ledger_read(ledger, &s);
    return s.current;
}

uint64_t ledger_peak(struct ledger *ledger)
{
    struct ledger_state s;
    ledger_read(ledger, &s);
    return s.peak;
}

void ledger_reset_peak(struct ledger *ledger)
{
    struct ledger_state *s = &ledger->state;
    pthread_mutex_lock(&ledger->lock);
    s->peak = s->current;
    memcpy(s->peak_by_class, s->by_class, sizeof s->peak_by_class);
    memcpy(s->at_peak, s->by_class, sizeof s->at_peak);
    pthread_mutex_unlock(&ledger->lock);
}

enum plim_status ledger_check(struct ledger *ledger, struct plim_error *err)
{
    struct ledger_state s;
    ledger_read(ledger, &s);
    uint64_t sum = 0, sum_at_peak = 0;
    for (int i = 0; i < LEDGER_CLASSES_MAX; i++) {
        sum += s.by_class[i];
        sum_at_peak += s.at_peak[i];
        if (s.peak_by_class[i] < s.by_class[i])
            return plim_fail(err, PLIM_BUG, "%s memory: class %d is above its own peak", ledger->tier, i);
    }
    if (s.broken)
        return plim_fail(err, PLIM_BUG, "%s memory: %llu releases of more than was reserved", ledger->tier,
                         (unsigned long long)s.broken);
    if (sum != s.current)
        return plim_fail(err, PLIM_BUG, "%s memory: classes do not sum to the use", ledger->tier);
    if (sum_at_peak != s.peak)
        return plim_fail(err, PLIM_BUG, "%s memory: classes at the peak do not sum to it", ledger->tier);
    if (s.peak < s.current) return plim_fail(err, PLIM_BUG, "%s memory: use is above the peak", ledger->tier);
    return PLIM_OK;
}
