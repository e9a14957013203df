/* report.h - a plan for people, for programs and for the eye. All write into a strbuf; nothing is printed. */
#ifndef PLIM_JOB_REPORT_H
#define PLIM_JOB_REPORT_H

#include "base/json.h"
#include "job/savings.h"

/* Everything a report may show. savings and remedies may be empty. */
struct plan_report {
    struct job *job;
    const struct plan_request *request;
    const struct plan *plan;
    int64_t naive_total; /* no tricks, the whole batch at once; 0: unknown */
    struct saving savings[SAVINGS_MAX];
    int nsavings;
    struct remedy remedies[REMEDIES_MAX];
    int nremedies;
};

/* Ask for savings (and remedies when the plan does not fit). */
enum plim_status report_fill(struct plan_report *report, struct job *job, const struct plan_request *request,
                             const struct plan *plan, struct plim_error *err);

/* One JSON object; see docs/cli.md for its fields. */
void report_json(const struct plan_report *report, struct strbuf *out);
/* The knobs as a JSON object value, shared with the train events. */
void report_json_knobs(struct json_writer *w, const char *key, const struct job *job,
                       const struct knobs *knobs);

/* A table with bars. */
void report_text(const struct plan_report *report, bool colour, struct strbuf *out);

/* The arena as one self-contained page: address x time, coloured by class. */
void report_html(const struct plan_report *report, struct strbuf *out);

#endif
