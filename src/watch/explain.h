/* explain.h - why memory was refused: one report with what was wanted, who holds what, which of five causes it is, and what
 * would help.
 *
 *     struct refusal refusal = {.status = PLIM_NO_FIT, .error = err.text, .stage = STAGE_PLAN, .job = &job,
 *                               .request = &request, .plan = &smallest, .reading = &state.now};
 *     struct explanation why;
 *     explain(&refusal, &why);
 *     explanation_text(&why, &out);
 *
 * A server has no job: serve/ladder_explain.h adds the remedies to what explain_plan says.
 *
 * Causes are those people meet (docs/watching.md): the model is too large; something leaks, or the arena is fragmented; an
 * evaluation is larger than a step; attention over long rows; other processes. Each is a predicate, and the first that holds
 * is named. Every remedy is a plan that was found (report/savings.h). Planning takes memory of its own: a run that explains
 * has given its arena back, and what cannot be compared under the line (plan.h, search_line) is not offered.
 */
#ifndef PLIM_WATCH_EXPLAIN_H
#define PLIM_WATCH_EXPLAIN_H

#include "report/savings.h"
#include "watch/holders.h"
#include "watch/leak.h"
#include "watch/peak.h"

enum refusal_stage { STAGE_PLAN, STAGE_COMMIT, STAGE_REPLAN, STAGE_STEP, STAGE_EVALUATION, STAGES };

enum refusal_cause { CAUSE_EVALUATION, CAUSE_LEAK, CAUSE_OTHERS, CAUSE_ATTENTION, CAUSE_MODEL, CAUSES };

struct refusal {
    enum plim_status status;
    const char *error; /* the line that ends the run */
    enum refusal_stage stage;
    int64_t step;
    int64_t budget; /* the line that was missed */
    bool budget_given;
    const struct job *job; /* NULL: a server's */
    const struct plan_request *request;
    /* The plan that was refused, or the smallest one; explain releases it; NULL: explain finds it. */
    struct plan *plan;
    int64_t arena; /* STAGE_EVALUATION: bytes of an arena that would do; 0: unknown */
    const struct watch_reading *reading;
    const struct leak *leak; /* NULL: nobody watched */
};

struct explanation {
    struct refusal refusal;
    enum refusal_cause cause;
    struct peak peak;
    int64_t needed, arena;    /* of the plan, in all and of its arena */
    int64_t total, available; /* of the memory it lies in, ours included in available; 0: unknown */
    struct holder holders[HOLDERS_MAX];
    int nholders;
    struct remedy remedies[REMEDIES_MAX];
    int nremedies;
};

void explain(const struct refusal *refusal, struct explanation *out);

/* Everything but remedies, for a refusal without a job, of a plan that takes `needed` bytes in the memory of `facts`. */
void explain_plan(const struct refusal *refusal, const struct device_facts *facts, const struct peak *peak,
                  int64_t needed, struct explanation *out);

const char *refusal_cause_name(enum refusal_cause cause);
const char *refusal_stage_name(enum refusal_stage stage);

void explanation_text(const struct explanation *why, struct strbuf *out);
/* Members of the object that is open. */
void explanation_json(const struct explanation *why, struct json_writer *w);

/* What a run stands on: device, system, limits, and the variables that people set for allocators (environment.c). */
void environment_json(const struct device *device, struct json_writer *w, const char *key);

#endif
