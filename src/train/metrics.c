/* metrics.c - see metrics.h. */
#include "train/metrics.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- entities ---------------------------------------------------------------------------------------------------- */

/* A label apart: its letter, 'O' outside, and its type; "B-PER" is B of PER. */
struct tag {
    char letter;
    const char *type;
};

static struct tag tag_of(const char *const *names, int count, int32_t label)
{
    const char *name = label >= 0 && label < count ? names[label] : "O";
    const char *dash = strchr(name, '-');
    return dash ? (struct tag){name[0], dash + 1} : (struct tag){'O', ""};
}

static bool one_of(char letter, const char *letters) { return letter && strchr(letters, letter); }

/* Does an entity end between two labels? */
static bool ends(struct tag before, struct tag here)
{
    if (before.letter == 'O') return false;
    if (one_of(before.letter, "ESLU")) return true;
    return one_of(here.letter, "OBSU") || strcmp(before.type, here.type);
}

/* Does one begin at the second? */
static bool begins(struct tag before, struct tag here)
{
    if (here.letter == 'O') return false;
    if (one_of(here.letter, "BSU")) return true;
    return one_of(before.letter, "OESLU") || strcmp(before.type, here.type);
}

/* Both label rows in step: an entity is right when both begin and end together with the same type. */
struct walk {
    struct tag tag;
    bool inside;
    size_t begin;
    const char *type;
    bool closed; /* here, one ended */
    size_t from;
    const char *ended;
};

static void step(struct walk *w, struct tag here, size_t at)
{
    w->closed = w->inside && ends(w->tag, here);
    if (w->closed) w->from = w->begin, w->ended = w->type, w->inside = false;
    if (begins(w->tag, here)) w->inside = true, w->begin = at, w->type = here.type;
    w->tag = here;
}

void entity_score_add(struct entity_score *score, const char *const *names, int count,
                      const int32_t *predicted, const int32_t *wanted, size_t n)
{
    const struct tag outside = {'O', ""};
    struct walk p = {.tag = outside}, w = {.tag = outside};
    size_t at = 0;
    for (size_t i = 0; i <= n; i++) {
        bool last = i == n;
        if (!last && wanted[i] < 0) continue;
        step(&p, last ? outside : tag_of(names, count, predicted[i]), at);
        step(&w, last ? outside : tag_of(names, count, wanted[i]), at);
        score->predicted += p.closed, score->wanted += w.closed;
        score->right += p.closed && w.closed && p.from == w.from && !strcmp(p.ended, w.ended);
        if (last) return;
        score->labels++, score->labels_right += predicted[i] == wanted[i];
        at++;
    }
}

static double share(double part, double whole) { return whole > 0 ? part / whole : 0; }

struct f1 entity_f1(const struct entity_score *s)
{
    struct f1 out = {.precision = share((double)s->right, (double)s->predicted),
                     .recall = share((double)s->right, (double)s->wanted),
                     .accuracy = share((double)s->labels_right, (double)s->labels)};
    out.f1 = share(2 * out.precision * out.recall, out.precision + out.recall);
    return out;
}

/* --- vectors and correlations ------------------------------------------------------------------------------------ */

double metric_cosine(const float *a, const float *b, size_t n)
{
    double ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) {
        ab += (double)a[i] * (double)b[i];
        aa += (double)a[i] * (double)a[i], bb += (double)b[i] * (double)b[i];
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

double metric_pearson(const double *a, const double *b, size_t n)
{
    double mean_a = 0, mean_b = 0, ab = 0, aa = 0, bb = 0;
    for (size_t i = 0; i < n; i++) mean_a += a[i] / (double)n, mean_b += b[i] / (double)n;
    for (size_t i = 0; i < n; i++) {
        double x = a[i] - mean_a, y = b[i] - mean_b;
        ab += x * y, aa += x * x, bb += y * y;
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : NAN;
}

struct place {
    double value;
    size_t at;
};

static int less(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->value != y->value) return x->value < y->value ? -1 : 1;
    return x->at < y->at ? -1 : 1;
}

static void rank(const double *values, size_t n, struct place *places, double *out)
{
    for (size_t i = 0; i < n; i++) places[i] = (struct place){values[i], i};
    qsort(places, n, sizeof *places, less);
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && places[end].value == places[i].value;) end++;
        for (size_t k = i; k < end; k++) out[places[k].at] = (double)(i + end - 1) / 2;
    }
}

bool metric_spearman(const double *a, const double *b, size_t n, double *out)
{
    struct place *places = malloc((n + 1) * sizeof *places);
    double *ranks = malloc((2 * n + 1) * sizeof *ranks);
    bool good = places && ranks;
    if (good) {
        rank(a, n, places, ranks);
        rank(b, n, places, ranks + n);
        *out = metric_pearson(ranks, ranks + n, n);
    }
    free(places);
    free(ranks);
    return good;
}
