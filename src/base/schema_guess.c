/* schema_guess.c - which key was meant. See schema.h.
 *
 * Tried in this order, the first that finds one wins: a word of the schema's own list ("lr"), the same last part in another
 * section, an abbreviation, a slip of the pen. A slip may be in the section and in the last part, each measured by its own
 * length: beside a long section every short key would be near. */
#include "base/nearest.h"
#include "base/schema.h"

#include <ctype.h>
#include <string.h>

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static bool same_section(const char *a, const char *b)
{
    size_t n = (size_t)(last_part(a) - a);
    return (size_t)(last_part(b) - b) == n && !strncmp(a, b, n);
}

static bool is_meant(const struct schema_row *row) { return row->kind != SCHEMA_NOTHING || row->alias; }

static bool same_letters(const char *a, const char *b)
{
    for (; *a && *b; a++, b++)
        if (tolower((unsigned char)(*a == '-' ? '_' : *a)) != *b) return false;
    return *a == *b;
}

/* "lr" for learning_rate: the first letter of each part. */
static bool is_initials(const char *word, const char *full)
{
    bool parts = strchr(full, '_');
    for (; *word && full; word++) {
        if (tolower((unsigned char)*word) != *full) return false;
        full = strchr(full, '_');
        full += full != NULL;
    }
    return parts && !*word && !full;
}

/* "grad_accum" for gradient_accumulation_steps: its parts begin the first parts of the other, with three letters or more. */
static bool is_shortened(const char *word, const char *full)
{
    while (*word) {
        size_t n = strcspn(word, "_-"), m = strcspn(full, "_");
        if (n > m || (n < 3 && n != m) || strncmp(word, full, n)) return false;
        word += n + (word[n] != 0), full += m + (full[m] != 0);
        if (*word && !*full) return false;
    }
    return true;
}

static bool is_equal_part(const char *word, const char *full) { return same_letters(word, full); }

/* The row whose last part is so related to the word; one of the same section goes first, then the shortest. */
static const char *related(const struct schema *schema, const char *path,
                           bool (*relation)(const char *word, const char *full))
{
    const char *best = NULL, *word = last_part(path);
    bool best_near = false;
    for (size_t i = 0; i < schema->count; i++) {
        const char *candidate = schema->rows[i].path;
        bool near = same_section(path, candidate);
        if (!is_meant(&schema->rows[i]) || !*word || !relation(word, last_part(candidate))) continue;
        if (best && (best_near > near || (best_near == near && strlen(best) <= strlen(candidate)))) continue;
        best = candidate, best_near = near;
    }
    return best;
}

/* Letters that are wrong; -1: too many of them. */
static int wrong_letters(const char *word, const char *candidate)
{
    struct nearest near = nearest_begin(word);
    nearest_offer(&near, candidate);
    return near.best ? near.distance : -1;
}

static const char *mistyped(const struct schema *schema, const char *path)
{
    const char *best = NULL;
    char section[128], other[128];
    size_t n = (size_t)(last_part(path) - path);
    int least = 1000;
    if (n >= sizeof section) return NULL;
    memcpy(section, path, n), section[n] = 0;
    for (size_t i = 0; i < schema->count; i++) {
        const char *candidate = schema->rows[i].path, *part = last_part(candidate);
        size_t m = (size_t)(part - candidate);
        if (!is_meant(&schema->rows[i]) || m >= sizeof other) continue;
        memcpy(other, candidate, m), other[m] = 0;
        int place = !strcmp(section, other) ? 0 : wrong_letters(section, other),
            key = wrong_letters(last_part(path), part);
        if (key < 0) continue;
        int sum = key + (place < 0 ? 10 : place); /* another section altogether: if nothing is nearer */
        if (sum < least) least = sum, best = candidate;
    }
    return best;
}

const char *schema_known_word(const struct schema *schema, const char *word)
{
    for (const struct schema_synonym *s = schema->words; s && s->word; s++)
        if (same_letters(word, s->word)) return s->name;
    const char *found = related(schema, word, is_equal_part);
    if (!found) found = related(schema, word, is_initials);
    return found ? found : related(schema, word, is_shortened);
}

const char *schema_guess(const struct schema *schema, const char *path)
{
    const char *word = last_part(path);
    for (const struct schema_synonym *s = schema->words; s && s->word; s++)
        if (same_letters(path, s->word) || same_letters(word, s->word)) return s->name;
    const char *found = related(schema, path, is_equal_part);
    if (!found) found = mistyped(schema, path);
    if (!found) found = related(schema, path, is_initials);
    return found ? found : related(schema, path, is_shortened);
}
