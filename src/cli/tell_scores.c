/* tell_scores.c - an evaluation's result, for people and for programs. See cli.h. */
#include "base/json.h"
#include "cli/cli.h"
#include "train/scoring.h"

#include <math.h>

void cli_tell_scores(struct strbuf *out, double loss, int digits, const struct scores *s)
{
    strbuf_addf(out, "loss %.*f", digits, loss);
    if (s->kind <= SCORE_TOKENS) strbuf_addf(out, ", perplexity %.*f", digits - 2, exp(loss));
    if (s->kind == SCORE_TOKENS) strbuf_addf(out, ", accuracy of masked tokens %.4f", s->accuracy);
    if (s->kind == SCORE_ENTITIES)
        strbuf_addf(out,
                    ", entity precision %.4f, recall %.4f, F1 %.4f (%lld of the data, %lld found), label "
                    "accuracy %.4f",
                    s->entities.precision, s->entities.recall, s->entities.f1, (long long)s->wanted,
                    (long long)s->predicted, s->entities.accuracy);
    if (s->kind == SCORE_PAIRS)
        strbuf_addf(out, ", cosine of pairs %.4f, retrieval accuracy %.4f", s->cosine, s->retrieval);
    if (s->kind == SCORE_PREFERENCES) strbuf_addf(out, ", margin %.4f", s->preferences.margin);
    if (s->kind == SCORE_PREFERENCES && s->preferences.kind != PREFERENCE_KTO)
        strbuf_addf(out, ", accuracy %.4f", s->preferences.accuracy);
    if (s->scored) strbuf_addf(out, ", with scores Spearman %.4f, Pearson %.4f", s->spearman, s->pearson);
}

static void put_number(struct json_writer *w, const char *key, double value)
{
    if (isfinite(value))
        json_double(w, key, value);
    else
        json_null(w, key);
}

static void put_preference(void *arg, const char *name, double value) { put_number(arg, name, value); }

void cli_json_scores(struct json_writer *w, double loss, const struct scores *s)
{
    json_double(w, "loss", loss);
    if (s->kind <= SCORE_TOKENS) json_double(w, "perplexity", exp(loss));
    if (s->kind == SCORE_TOKENS) json_double(w, "accuracy", s->accuracy);
    if (s->kind == SCORE_ENTITIES) {
        json_double(w, "precision", s->entities.precision);
        json_double(w, "recall", s->entities.recall);
        json_double(w, "f1", s->entities.f1);
        json_double(w, "accuracy", s->entities.accuracy);
        json_int(w, "entities", s->wanted);
        json_int(w, "entities_found", s->predicted);
    }
    if (s->kind == SCORE_PAIRS) {
        json_double(w, "cosine", s->cosine);
        json_double(w, "retrieval_accuracy", s->retrieval);
    }
    if (s->kind == SCORE_PREFERENCES) preferences_each(&s->preferences, put_preference, w);
    if (s->scored) {
        put_number(w, "spearman", s->spearman);
        put_number(w, "pearson", s->pearson);
        json_int(w, "scored_pairs", s->scored);
    }
}
