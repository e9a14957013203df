/* open_device.c - the device a command runs on: by name, or what there is. See cli.h. */
#include "cli/cli.h"
#include "base/bytes.h"

#include <stdio.h>

/* No context and libraries fit into less: a card that is not even opened leaves the whole budget to the CPU. */
#define CARD_LEAST ((uint64_t)256 << 20)

/* A card that takes the whole budget for itself. */
static enum plim_status check_room(struct device **device, uint64_t budget, struct plim_error *why)
{
    char takes[BYTES_TEXT], have[BYTES_TEXT];
    uint64_t own = (*device)->facts.overhead_bytes;
    if (!budget || own < budget) return PLIM_OK;
    (*device)->ops->close(*device), *device = NULL;
    return plim_fail(why, PLIM_NO_FIT, "the GPU's driver and libraries alone take %s of the budget of %s",
                     bytes_format(takes, own), bytes_format(have, budget));
}

enum plim_status cli_open_device_as(const struct device_wish *wish, struct device **out,
                                    struct plim_error *err)
{
    bool may_fall_back;
    int index = job_device_number(wish->name, &may_fall_back);
    struct plim_error why = {0};
    enum plim_status status = PLIM_UNSUPPORTED;
    bool hopeless = may_fall_back && wish->budget && wish->budget < CARD_LEAST;
    if (hopeless) index = -1;
    if (index >= 0) status = device_cuda_open(index, wish->threads, out, &why);
    if (status == PLIM_OK && may_fall_back) status = check_room(out, wish->budget, &why);
    if (status == PLIM_OK) return status;
    if (index >= 0 && !may_fall_back && status == PLIM_BAD_INPUT)
        return plim_fail(err, status, "%s: %s", wish->where, why.text);
    if (index >= 0 && !may_fall_back)
        return plim_fail(err, status, "%s: %s; %s goes without a GPU", wish->where, why.text, wish->cpu);
    if (index >= 0 && device_cuda_present()) /* else there is nothing to miss */
        fprintf(stderr, "plimsoll: using the CPU: %s\n", why.text);
    return device_cpu_open(wish->threads, out, err);
}

enum plim_status cli_open_device(const struct job *job, struct device **out, struct plim_error *err)
{
    struct device_wish wish = {job->name, job->training.device, "training.device: cpu",
                               (int)job->training.threads, 0};
    return cli_open_device_as(&wish, out, err);
}
