/* explain_words.c - an explanation for people and for programs. See explain.h. */
#include "base/bytes.h"
#include "report/report.h"
#include "watch/explain.h"

static const char *const cause_words[CAUSES] = {
    [CAUSE_EVALUATION] = "an evaluation takes more than a training step",
    [CAUSE_LEAK] = "memory is held that no tensor uses",
    [CAUSE_OTHERS] = "the job would fit if others did not hold the memory",
    [CAUSE_ATTENTION] = "attention over long rows grows with the square of data.max_length",
    [CAUSE_MODEL] = "weights, state and activations do not fit",
};

static const char *words_of(const struct explanation *why)
{
    if (why->refusal.job) return cause_words[why->cause];
    return why->cause == CAUSE_OTHERS ? "the server would fit if others did not hold the memory"
                                      : "weights, a request's cache and a step do not fit";
}

static void put_remedies(const struct explanation *why, struct strbuf *out)
{
    char keys[256], bytes[BYTES_TEXT], seconds[DURATION_TEXT];
    strbuf_addf(out, why->nremedies ? "  what would help, each planned:\n"
                                    : "  nothing was found that would help\n");
    for (int i = 0; i < why->nremedies; i++) {
        const struct remedy *r = &why->remedies[i];
        strbuf_addf(out, "    %s: %s", remedy_text(r, keys, sizeof keys),
                    bytes_format(bytes, (uint64_t)r->total));
        if (r->step_seconds > 0) strbuf_addf(out, ", %s a step", report_duration(seconds, r->step_seconds));
        strbuf_addf(out, "; %s\n", r->cost);
    }
}

void explanation_text(const struct explanation *why, struct strbuf *out)
{
    const struct refusal *r = &why->refusal;
    char needed[BYTES_TEXT], line[BYTES_TEXT], bytes[BYTES_TEXT], total[BYTES_TEXT];
    strbuf_addf(out, "memory was refused in %s after step %lld: %s (%s)\n", refusal_stage_name(r->stage),
                (long long)r->step, refusal_cause_name(why->cause), words_of(why));
    strbuf_addf(out, "  needed %s of a line of %s", bytes_format(needed, (uint64_t)why->needed),
                bytes_format(line, (uint64_t)r->budget));
    if (why->total)
        strbuf_addf(out, "; of the machine's %s this process may have %s",
                    bytes_format(total, (uint64_t)why->total), bytes_format(bytes, (uint64_t)why->available));
    strbuf_addc(out, '\n');
    if (*why->peak.tensor)
        strbuf_addf(out, "  the largest thing at the peak, in %s: %s, %s of class %s\n", why->peak.op,
                    why->peak.tensor, bytes_format(bytes, (uint64_t)why->peak.bytes), why->peak.cls);
    if (r->leak && r->leak->found) strbuf_add(out, "  "), leak_text(r->leak, out), strbuf_addc(out, '\n');
    if (why->nholders) {
        strbuf_add(out, "  memory is held by ");
        holders_text(why->holders, why->nholders, out);
        strbuf_addc(out, '\n');
    }
    put_remedies(why, out);
}

static void remedies_json(const struct explanation *why, struct json_writer *w)
{
    char keys[256];
    json_begin_array(w, "remedies");
    for (int i = 0; i < why->nremedies; i++) {
        const struct remedy *r = &why->remedies[i];
        json_begin_object(w, NULL);
        json_str(w, "change", remedy_text(r, keys, sizeof keys));
        json_int(w, "bytes", r->total);
        json_double(w, "step_seconds", r->step_seconds);
        json_str(w, "cost", r->cost);
        json_end_object(w);
    }
    json_end_array(w);
}

void explanation_json(const struct explanation *why, struct json_writer *w)
{
    const struct refusal *r = &why->refusal;
    json_str(w, "cause", refusal_cause_name(why->cause));
    json_str(w, "stage", refusal_stage_name(r->stage));
    json_str(w, "error", r->error);
    json_int(w, "needed", why->needed);
    json_int(w, "budget", r->budget);
    json_int(w, "machine_total", why->total);
    json_int(w, "machine_available", why->available);
    json_str(w, "tensor", why->peak.tensor);
    json_str(w, "class", why->peak.cls);
    json_int(w, "tensor_bytes", why->peak.bytes);
    json_str(w, "op", why->peak.op);
    if (r->leak && r->leak->found) json_str(w, "leak", leak_part_name(r->leak->who));
    holders_json(why->holders, why->nholders, w, "holders");
    remedies_json(why, w);
}
