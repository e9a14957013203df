/* serve_log.c - see serve_log.h. */
#include "cli/serve_log.h"
#include "base/clock.h"

#include <string.h>

static const char *const stages[] = {"start",
                                     "config_loaded",
                                     "tokenizer_loaded",
                                     "weights_mapped",
                                     "model_loaded_cpu",
                                     "inputs_on_device",
                                     "model_on_device",
                                     "compilation_started",
                                     "compilation_complete",
                                     "warmup_complete",
                                     "model_saved",
                                     "final_cleanup",
                                     "ready"};
enum { STAGES = sizeof stages / sizeof stages[0], MODEL_BEGINS = 3 };

void serve_log_open(struct serve_log *s, const struct log *log)
{
    *s = (struct serve_log){.log = log, .began = clock_seconds()};
}

void serve_log_hear(void *serve_log, const char *stage)
{
    struct serve_log *s = serve_log;
    char memory[MEMORY_TEXT];
    int at = 0;
    while (at < STAGES && strcmp(stages[at], stage)) at++;
    if (at == STAGES || at < s->heard) return;
    memory_text(s->device, memory);
    for (int i = s->heard; i <= at; i++)
        log_info(s->log, "stage %2d/%d %-20s %7.3f s, %s%s%s", i + 1, STAGES, stages[i],
                 clock_seconds() - s->began, memory, i < at ? ", part of " : "", i < at ? stage : "");
    s->heard = at + 1, s->stage = stages[at];
}

const char *serve_log_at(const struct serve_log *s)
{
    return stages[s->heard < STAGES ? s->heard : STAGES - 1];
}

void serve_log_failure(const struct serve_log *s, enum plim_status status, const char *memory)
{
    char now[MEMORY_TEXT];
    bool ready = s->heard == STAGES;
    if (s->heard < MODEL_BEGINS) return;
    enum failure cause = failure_of(status, ready ? NULL : s->stage, (struct device *)s->device);
    log_error(s->log, "%s %s %s; %s", failure_name(cause), ready ? "while serving, after" : "before stage",
              serve_log_at(s), *memory ? memory : memory_text(s->device, now));
}
