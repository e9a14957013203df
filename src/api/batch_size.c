/* batch_size.c - how many rows fit, and how to run a model. See plimsoll/device.h, which states the rule. */
#include "api/device.h"
#include "job/job.h"
#include "tape/pass.h"

#include <limits.h>
#include <stdio.h>

/* Rows of `base` are taken to need this many times the bytes of the model. */
enum { ROWS_FACTOR = 4 };

/* Variables of the context, checked and read as for a job. */
struct wishes {
    int64_t most;      /* MAX_BATCH_SIZE; 0: not set */
    double fraction;   /* CUDA_MEMORY_FRACTION; 0: not set */
    bool mixed, exact; /* ENABLE_MIXED_PRECISION: true, false */
};

static enum plim_status read_wishes(const struct context *context, struct wishes *out, struct plim_error *err)
{
    struct job job;
    job_init(&job);
    *out = (struct wishes){0};
    enum plim_status status = schema_defaults(&job_schema, &job, &job.store, err);
    if (status == PLIM_OK) status = job_take_process_environment(&job, context, err);
    bool said = job_origin(&job, "training.mixed_precision")->kind != ORIGIN_DEFAULT;
    out->most = job.training.max_micro_batch;
    out->fraction = job.wishes.cuda_fraction;
    out->mixed = said && job.training.precision == PRECISION_AUTO;
    out->exact = said && !out->mixed;
    job_release(&job);
    return status;
}

/* Bytes that may still be taken. */
static enum plim_status find_room(struct plim_device *d, const struct wishes *wishes, const char *function,
                                  double *room, struct plim_error *err)
{
    const struct device_facts *facts = &d->preset.facts;
    struct watch_reading reading;
    struct plim_memory memory = {.total = facts->memory_bytes, .reserved = facts->overhead_bytes};
    memory.free = memory.total - memory.reserved;
    enum plim_status status =
        d->backend ? device_memory_read(d, NULL, &reading, &memory, function, err) : PLIM_OK;
    *room = (double)memory.free;
    if (wishes->fraction <= 0 || facts->unified_memory) return status;
    double left = wishes->fraction * (double)memory.total - (double)memory.reserved;
    if (left < *room) *room = left;
    return status;
}

/* The rule of plimsoll/device.h. */
static int rows_for(double room, int base, uint64_t model_bytes, int64_t most)
{
    int64_t rows = base, cap = most > 0 ? most : base;
    double fits = model_bytes ? (0.9 * room - (double)model_bytes) / (ROWS_FACTOR * (double)model_bytes) : 1;
    while (rows > 1 && (double)rows > fits * base) rows /= 2;
    while (rows <= cap / 2 && 2.0 * (double)rows <= fits * base) rows *= 2;
    if (rows > cap) rows = cap;
    return rows < INT_MAX ? (int)rows : INT_MAX;
}

static enum plim_status find_rows(struct plim_device *d, const struct wishes *wishes, int base,
                                  uint64_t model_bytes, const char *function, int *out,
                                  struct plim_error *err)
{
    double room;
    enum plim_status status = find_room(d, wishes, function, &room, err);
    if (status == PLIM_OK) *out = rows_for(room, base, model_bytes, wishes->most);
    return status;
}

enum plim_status plim_batch_size(struct plim_device *d, int base, uint64_t model_bytes, int *out,
                                 struct plim_error *err)
{
    struct wishes wishes;
    if (!handle_is(d, HANDLE_DEVICE, "plim_batch_size", err)) return PLIM_BAD_INPUT;
    if (!out) return plim_fail(err, PLIM_BAD_INPUT, "plim_batch_size: out is NULL");
    if (base < 1)
        return plim_fail(err, PLIM_BAD_INPUT, "plim_batch_size: base is %d; write 1 or more, e.g. 32", base);
    enum plim_status status = read_wishes(handle_context(&d->handle), &wishes, err);
    if (status != PLIM_OK) return status;
    return find_rows(d, &wishes, base, model_bytes, "plim_batch_size", out, err);
}

/* A CPU is measured only where somebody asked for mixed precision. */
static enum plim_status choose_precision(struct plim_device *d, const struct wishes *wishes, int *out,
                                         struct plim_error *err)
{
    struct device *device;
    *out = PRECISION_F32;
    if (wishes->exact) return PLIM_OK;
    if (!d->backend) return *out = d->preset.precision, PLIM_OK;
    if (d->preset.facts.unified_memory && !wishes->mixed) return PLIM_OK;
    enum plim_status status = device_ready(d, &device, err);
    if (status == PLIM_OK) *out = job_automatic_precision(&device->facts);
    return status;
}

enum plim_status plim_inference_config(struct plim_device *d, uint64_t model_bytes,
                                       struct plim_inference_config *out, struct plim_error *err)
{
    struct plim_inference_config config = {0};
    struct wishes wishes;
    int precision;
    if (!handle_is(d, HANDLE_DEVICE, "plim_inference_config", err)) return PLIM_BAD_INPUT;
    enum plim_status status = read_wishes(handle_context(&d->handle), &wishes, err);
    if (status == PLIM_OK) status = choose_precision(d, &wishes, &precision, err);
    if (status == PLIM_OK)
        status = find_rows(d, &wishes, 32, model_bytes, "plim_inference_config", &config.batch_size, err);
    if (status != PLIM_OK) return status;
    if (d->backend && d->backend->numbered)
        snprintf(config.device, sizeof config.device, "%s:%d", d->backend->name, d->index);
    else
        snprintf(config.device, sizeof config.device, "%s",
                 d->backend ? d->backend->name : d->preset.facts.name);
    snprintf(config.precision, sizeof config.precision, "%s", precision_name((enum precision)precision));
    return figures_give(out, &config, sizeof config, "plim_inference_config", err);
}
