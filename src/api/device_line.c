/* device_line.c - see device_line.h. */
#include "api/device_line.h"
#include "base/bytes.h"
#include "job/job.h"
#include "mem/os.h"

/* As train does: nine tenths of the limit, and no more than 95 % of what others leave. Whole MiB, so that the same container gives
 * the same line at every start. */
uint64_t device_line_default(void)
{
    struct os_allowance may;
    if (os_allowance(&may, NULL) != PLIM_OK || !may.limited) return 0;
    uint64_t share = may.total / 10 * 9, left = may.bytes / 20 * 19;
    uint64_t line = (share < left ? share : left) >> 20 << 20;
    return line ? line : 1 << 20;
}

uint64_t device_line_host(const struct device_line *line)
{
    return line->given ? line->budget : line->fallback;
}

int64_t device_line_on(const struct device_line *line, const struct device_facts *facts)
{
    if (line->given) return (int64_t)line->budget;
    return facts->unified_memory ? (int64_t)line->fallback : 0;
}

enum plim_status device_line_check(const struct context *context, const char *command,
                                   const struct device_line *line, const struct device_facts *facts,
                                   struct plim_error *err)
{
    char asked[BYTES_TEXT], spare[BYTES_TEXT];
    if (!line->given || !facts->free_bytes) return PLIM_OK; /* free_bytes 0: a device that is not here */
    const char *name = line->name ? line->name : "option '--budget'";
    enum plim_status status = budget_check(command, name, (int64_t)line->budget, facts, err);
    if (status == PLIM_OK && line->budget > facts->free_bytes)
        log_info(context_log(context), "%s: %s: %s is more than %s has free now (%s)", command, name,
                 bytes_format(asked, line->budget), facts_holder(facts),
                 bytes_format(spare, facts->free_bytes));
    return status;
}
