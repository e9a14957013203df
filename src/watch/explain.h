/* explain.h - explains why memory was refused: what was requested, who holds memory, which of five causes applies, and
 * what would help.
 *
 *     struct refusal refusal = {.status = PLIM_NO_FIT, .error = err.text, .stage = STAGE_PLAN, .job = &job,
 *                               .request = &request, .plan = &smallest, .reading = &state.now};
 *     struct explanation why;
 *     explain(&refusal, &why);
 *     explanation_text(&why, &out);
 *
 * A server has no job: serve/ladder_explain.h adds the remedies to explain_plan's result.
 *
 * The causes (docs/watching.md): the model is too large; memory leaks or the arena is fragmented; an evaluation is larger
 * than a step; attention over long rows; other processes. Each is a predicate, and the first that holds is named. Every
 * remedy is a plan that was found (report/savings.h). Planning takes memory itself: a run that explains has given its arena
 * back, and plans that cannot be compared within the search's own limit (plan.h, search_line) are not offered.
 */
#pragma once

#include "report/savings.h"
#include "watch/holders.h"
#include "watch/leak.h"
#include "watch/peak.h"

enum refusal_stage { STAGE_PLAN, STAGE_COMMIT, STAGE_REPLAN, STAGE_STEP, STAGE_EVALUATION, STAGES };

enum refusal_cause { CAUSE_EVALUATION, CAUSE_LEAK, CAUSE_OTHERS, CAUSE_ATTENTION, CAUSE_MODEL, CAUSES };

struct refusal {
    enum plim_status status;
    const char *error; /* the error that ends the run */
    enum refusal_stage stage;
    int64_t step;
    int64_t budget; /* the budget that was exceeded */
    bool budget_given;
    const struct job *job; /* NULL: a server's */
    const struct plan_request *request;
    /* The refused plan, or the smallest one; explain releases it. NULL: explain finds it. */
    struct plan *plan;
    int64_t arena; /* STAGE_EVALUATION: bytes of an arena that would be large enough; 0: unknown */
    const struct watch_reading *reading;
    const struct leak *leak; /* NULL: leaks were not watched */
};

struct explanation {
    struct refusal refusal;
    enum refusal_cause cause;
    struct peak peak;
    int64_t needed, arena;    /* bytes of the plan: in total, and of its arena */
    int64_t total, available; /* of the plan's memory; available includes our own share; 0: unknown */
    struct holder holders[HOLDERS_MAX];
    int nholders;
    struct remedy remedies[REMEDIES_MAX];
    int nremedies;
};

void explain(const struct refusal *refusal, struct explanation *out);

/* Explains a refusal without a job, for a plan that needs `needed` bytes in the memory of `facts`. Adds no
 * remedies. */
void explain_plan(const struct refusal *refusal, const struct device_facts *facts, const struct peak *peak,
                  int64_t needed, struct explanation *out);

const char *refusal_cause_name(enum refusal_cause cause);
const char *refusal_stage_name(enum refusal_stage stage);

void explanation_text(const struct explanation *why, struct strbuf *out);
/* Writes members of the open object. */
void explanation_json(const struct explanation *why, struct json_writer *w);

/* Writes a run's environment: device, system, limits, and variables that people set for allocators (environment.c). `backend`: name
 * of the device's, NULL: a preset. */
void environment_json(const struct context *context, const struct device_facts *facts, const char *backend,
                      struct json_writer *w, const char *key);
