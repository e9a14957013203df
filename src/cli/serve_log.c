/* serve_log.c - see serve_log.h. */
#include "cli/serve_log.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "mem/os.h"

#include <stdio.h>
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

/* "host 12.3 MiB, device 1.20 GiB". */
static const char *memory_text(const struct serve_log *s, char *text, size_t size)
{
    struct os_process me = {0};
    char host[BYTES_TEXT], device[BYTES_TEXT];
    os_process_memory(&me, NULL);
    bool own = s->device && s->device->ops->used;
    size_t used = own ? s->device->ops->used((struct device *)s->device) : 0;
    snprintf(text, size, "host %s, device %s", bytes_format(host, me.rss),
             own ? bytes_format(device, used) : "is the host");
    return text;
}

void serve_log_hear(void *serve_log, const char *stage)
{
    struct serve_log *s = serve_log;
    char memory[96];
    int at = 0;
    while (at < STAGES && strcmp(stages[at], stage)) at++;
    if (at == STAGES || at < s->heard) return;
    memory_text(s, memory, sizeof memory);
    for (int i = s->heard; i <= at; i++)
        log_info(s->log, "stage %2d/%d %-20s %7.3f s, %s%s%s", i + 1, STAGES, stages[i],
                 clock_seconds() - s->began, memory, i < at ? ", part of " : "", i < at ? stage : "");
    s->heard = at + 1;
}

const char *serve_log_at(const struct serve_log *s)
{
    return stages[s->heard < STAGES ? s->heard : STAGES - 1];
}

const char *serve_log_class(enum plim_status status)
{
    switch (status) {
    case PLIM_NO_MEMORY:
        return "RESOURCE_EXHAUSTED";
    case PLIM_NO_FIT:
        return "buffer allocation";
    case PLIM_UNSUPPORTED:
        return "compile";
    case PLIM_IO:
        return "device lost";
    default:
        return "failed";
    }
}

void serve_log_failure(const struct serve_log *s, enum plim_status status)
{
    char memory[96];
    bool ready = s->heard == STAGES;
    if (s->heard < MODEL_BEGINS) return;
    log_error(s->log, "%s %s %s; %s", serve_log_class(status),
              ready ? "while serving, after" : "before stage", serve_log_at(s),
              memory_text(s, memory, sizeof memory));
}
