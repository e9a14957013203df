/* torch_step.c - finding the period of a trace, and packing one of it.
 *
 * The sequence is that of allocations: size and stream. Frees are left out, because their order may change from step to step
 * (Python's garbage collector, autograd's thread) without the sizes changing.
 *
 * For a given end of the sequence, z[p] says how far it equals itself moved by p: then the last p + z[p] allocations have period
 * p. The Z algorithm finds all z[p] in one pass. A program rarely stops exactly after a step, so a few ends are tried. Inner
 * loops (layers, parameters in the optimizer) have short periods that cover little; the step covers most of the trace.
 */
#include "report/torch_step.h"

#include <stdlib.h>

enum {
    LEAST_COVERED =
        60, /* per cent of the trace: a step and its repetitions; the layers of one step stay below */
    MOST_OUTLIVING = 20, /* of a step's bytes one in twenty may outlive it; layers keep more for backward */
};

struct period {
    int end, length, covered; /* allocations [end - covered, end) repeat with this length */
};

struct finder {
    const struct torch_life **order; /* the trace's allocations */
    uint64_t *token;
    int *z;
    int n;
};

static uint64_t token_of(const struct torch_life *l)
{
    uint64_t h = ((uint64_t)l->bytes ^ l->stream * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu;
    return h ^ h >> 29;
}

/* The Z algorithm over the sequence read backwards from `end`. */
static void match_backwards(struct finder *f, int end)
{
    const uint64_t *last = f->token + end - 1;
    for (int i = 1, left = 0, right = 0; i < end; i++) {
        int k = i < right ? (f->z[i - left] < right - i ? f->z[i - left] : right - i) : 0;
        while (i + k < end && last[-k] == last[-i - k]) k++;
        f->z[i] = k;
        if (i + k > right) left = i, right = i + k;
    }
}

/* The shortest period that covers nearly as much as the best. */
static struct period period_at(struct finder *f, int end)
{
    struct period best = {.end = end};
    int most = 0;
    match_backwards(f, end);
    for (int p = 1; p < end; p++)
        if (f->z[p] >= p && p + f->z[p] > most) most = p + f->z[p];
    for (int p = 1; p < end && !best.length; p++)
        if (f->z[p] >= p && p + f->z[p] >= most - most / 20) best.length = p, best.covered = p + f->z[p];
    return best;
}

static struct period find_period(struct finder *f)
{
    static const int per_cent[] = {0, 1, 2, 5, 10, 20, 35, 50};
    struct period best = {0};
    for (size_t i = 0; i < sizeof per_cent / sizeof per_cent[0]; i++) {
        int end = f->n - (int)((int64_t)f->n * per_cent[i] / 100);
        if (end < 2 || end <= best.covered) break;
        struct period p = period_at(f, end);
        if (p.covered > best.covered) best = p;
    }
    return best;
}

/* --- lives within the step ------------------------------------------------------------------------------------------ */

/* How many allocations were made before a time. */
static int made_before(const struct finder *f, int64_t time)
{
    int low = 0, high = f->n;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (f->order[middle]->begin < time)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest life of each place of the period, in allocations; 0: never freed, or too long for a step. */
static void measure_lives(const struct finder *f, const struct torch_lives *lives, const struct period *p,
                          int *life)
{
    int begin = p->end - p->covered;
    for (int i = 0; i < p->length; i++) life[i] = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int k = begin; k < p->end; k++) {
            const struct torch_life *l = f->order[k];
            int *longest = &life[(k - begin) % p->length], seen = made_before(f, l->end) - k;
            bool freed = l->end < lives->end;
            if (pass == 0 && freed && seen > *longest) *longest = seen;
            if (pass == 1 && !freed && seen > *longest)
                *longest = p->length + 1; /* already lives longer than any other */
        }
    for (int i = 0; i < p->length; i++)
        if (life[i] > p->length) life[i] = 0;
}

/* The place of the period before which the fewest bytes are alive. `change` has room for two periods: a life may reach into the
 * next one. */
static int quietest(const struct finder *f, const struct period *p, const int *life, int64_t *change)
{
    int n = p->length, best = 0;
    for (int i = 0; i <= 2 * n; i++) change[i] = 0;
    for (int i = 0; i < n; i++) {
        if (!life[i]) continue;
        change[i + 1] += f->order[p->end - p->covered + i]->bytes;
        change[i + life[i]] -= f->order[p->end - p->covered + i]->bytes;
    }
    for (int i = 1; i <= 2 * n; i++) change[i] += change[i - 1];
    for (int i = 1; i < n; i++)
        if (change[i] + change[i + n] < change[best] + change[best + n]) best = i;
    return best;
}

/* --- all of it ------------------------------------------------------------------------------------------------------ */

/* The step from place `start` of the period on, and its lives in allocations of the step. */
static void lay_out(struct torch_step *step, const struct finder *f, const struct period *p, const int *life,
                    int start, struct torch_life *lives)
{
    for (int i = 0; i < p->length; i++) {
        int place = (start + i) % p->length, end = i + life[place];
        const struct torch_life *l = f->order[p->end - p->covered + place];
        bool wraps = end > p->length;
        step->items[i] = (struct torch_step_item){
            .bytes = l->bytes, .stream = l->stream, .offset = -1, .life = life[place]};
        lives[i] = (struct torch_life){.begin = wraps ? 0 : i,
                                       .end = wraps ? p->length : end,
                                       .bytes = life[place] ? l->bytes : 0,
                                       .stream = l->stream};
        if (!life[place]) lives[i].end = i + 1;
    }
}

static enum plim_status pack_step(struct torch_step *step, const struct finder *f,
                                  const struct torch_lives *all, const struct period *p,
                                  const struct torch_pack_limits *limits, struct plim_error *err)
{
    size_t n = (size_t)p->length;
    int *life = malloc(n * sizeof *life);
    int64_t *numbers = malloc((2 * n + 1) * sizeof *numbers);
    struct torch_life *lives = malloc(n * sizeof *lives);
    step->items = malloc(n * sizeof *step->items);
    enum plim_status status = PLIM_NO_MEMORY;
    if (life && numbers && lives && step->items) {
        measure_lives(f, all, p, life);
        lay_out(step, f, p, life, quietest(f, p, life, numbers), lives);
        status = torch_pack_lives(lives, p->length, limits, numbers, &step->arena, &step->lower_bound, err);
        step->count = p->length;
        step->repeats = p->covered / p->length;
        for (int i = 0; i < step->count && status == PLIM_OK; i++) {
            step->items[i].offset = numbers[i];
            step->unpacked += numbers[i] < 0;
        }
    } else {
        plim_fail(err, PLIM_NO_MEMORY, "no memory for a step of %d allocations", p->length);
    }
    free(life);
    free(numbers);
    free(lives);
    return status;
}

static enum plim_status finder_init(struct finder *f, const struct torch_lives *lives, struct plim_error *err)
{
    size_t n = (size_t)lives->allocations + 1;
    *f = (struct finder){malloc(n * sizeof *f->order), malloc(n * sizeof *f->token), malloc(n * sizeof *f->z),
                         lives->allocations};
    if (!f->order || !f->token || !f->z)
        return plim_fail(err, PLIM_NO_MEMORY, "no memory for a sequence of %d allocations",
                         lives->allocations);
    for (int i = 0; i < lives->count; i++)
        if (lives->items[i].order >= 0) {
            f->order[lives->items[i].order] = &lives->items[i];
            f->token[lives->items[i].order] = token_of(&lives->items[i]);
        }
    return PLIM_OK;
}

/* A loop over layers or parameters leaves much behind: activations for backward, state of the optimizer. */
static bool is_inner_loop(const struct torch_step *step)
{
    double all = 0, outliving = 0;
    for (int i = 0; i < step->count; i++) {
        all += (double)step->items[i].bytes;
        if (step->items[i].offset < 0) outliving += (double)step->items[i].bytes;
    }
    return outliving * MOST_OUTLIVING > all;
}

enum plim_status torch_step_find(struct torch_step *out, const struct torch_lives *lives,
                                 const struct torch_pack_limits *limits, struct plim_error *err)
{
    struct finder f;
    *out = (struct torch_step){0};
    enum plim_status status = finder_init(&f, lives, err);
    struct period p = {0};
    if (status == PLIM_OK) p = find_period(&f);
    if (status == PLIM_OK && (int64_t)p.covered * 100 < (int64_t)lives->allocations * LEAST_COVERED + 1)
        status = plim_fail(err, PLIM_NOT_FOUND,
                           "no step repeats: the longest sequence that does covers %d of %d allocations; "
                           "record more "
                           "steps with equal shapes",
                           p.covered, lives->allocations);
    if (status == PLIM_OK) status = pack_step(out, &f, lives, &p, limits, err);
    if (status == PLIM_OK && is_inner_loop(out))
        status = plim_fail(err, PLIM_NOT_FOUND,
                           "no step repeats: only a loop inside one does, and %d of its %d allocations "
                           "outlive it; record "
                           "more steps with equal shapes",
                           out->unpacked, out->count);
    free(f.order);
    free(f.token);
    free(f.z);
    if (status != PLIM_OK) torch_step_release(out);
    return status;
}

void torch_step_release(struct torch_step *step)
{
    free(step->items);
    *step = (struct torch_step){0};
}

/* --- the file ------------------------------------------------------------------------------------------------------- */

enum { STREAMS_MOST = 64 };

static int number_of(uint64_t *streams, int *count, uint64_t stream)
{
    int i = 0;
    while (i < *count && streams[i] != stream) i++;
    if (i == *count && *count < STREAMS_MOST) streams[(*count)++] = stream;
    return i;
}

void torch_step_json(const struct torch_step *step, int device, struct strbuf *out)
{
    struct json_writer w;
    uint64_t streams[STREAMS_MOST];
    int count = 0;
    json_writer_init(&w, out, 0);
    json_begin_object(&w, NULL);
    json_str(&w, "format", "plimsoll-step");
    json_int(&w, "version", 1);
    json_int(&w, "device", device);
    json_int(&w, "align", TORCH_ALIGN);
    json_int(&w, "arena_bytes", step->arena);
    json_int(&w, "lower_bound_bytes", step->lower_bound);
    json_int(&w, "repeats", step->repeats);
    json_begin_array(&w, "allocations");
    for (int i = 0; i < step->count; i++) {
        const struct torch_step_item *item = &step->items[i];
        json_begin_array(&w, NULL);
        json_int(&w, NULL, item->bytes);
        json_int(&w, NULL, number_of(streams, &count, item->stream));
        json_int(&w, NULL, item->offset);
        json_int(&w, NULL, item->life);
        json_end_array(&w);
    }
    json_end_array(&w);
    json_begin_array(&w, "streams");
    for (int i = 0; i < count; i++) json_uint(&w, NULL, streams[i]);
    json_end_array(&w);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}
