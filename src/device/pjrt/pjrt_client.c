/* pjrt_client.c - see pjrt_client.h. */
#include "device/pjrt/pjrt_client.h"
#include "device/pjrt/pjrt_find.h"
#include "device/pjrt/pjrt_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const enum pjrt_type types[DT_COUNT] = {
    [DT_F32] = PJRT_F32, [DT_BF16] = PJRT_BF16, [DT_F16] = PJRT_F16, [DT_F64] = PJRT_F64,
    [DT_I32] = PJRT_S32, [DT_U16] = PJRT_U16,   [DT_U8] = PJRT_U8,
};

static void read_text(struct pjrt *p, enum pjrt_function function, void *handle, char *to, size_t size)
{
    union pjrt_args args = {.text = {.handle = handle}};
    bool told = pjrt_do(&p->plugin, function, &args, NULL) == PLIM_OK && args.text.text;
    snprintf(to, size, "%.*s", told ? (int)args.text.text_size : 0, told ? args.text.text : "");
}

/* Drops the option that an error names; all, if it names none. */
static int drop_refused(struct pjrt_value *options, int count, const char *text)
{
    for (int i = 0; i < count; i++) {
        if (!strstr(text, options[i].name)) continue;
        memmove(&options[i], &options[i + 1], (size_t)(count - i - 1) * sizeof *options);
        return count - 1;
    }
    return 0;
}

static enum plim_status create(struct pjrt *p, int index, uint64_t budget, struct plim_error *err)
{
    struct pjrt_value options[PJRT_OPTIONS];
    struct plim_error why = {0};
    int count = pjrt_client_options(p->plugin.path, index, budget, options);
    for (;;) {
        union pjrt_args args = {.create = {.options = options, .count = (size_t)count}};
        enum plim_status status = pjrt_do(&p->plugin, PJRT_CLIENT_CREATE, &args, &why);
        if (status == PLIM_OK) return p->client = args.create.client, PLIM_OK;
        if (!count || (p->plugin.code != PJRT_INVALID_ARGUMENT && p->plugin.code != PJRT_UNIMPLEMENTED))
            return plim_fail(err, status, "%s: %s", p->plugin.path, why.text);
        count = drop_refused(options, count, why.text);
    }
}

static enum plim_status choose(struct pjrt *p, int index, struct plim_error *err)
{
    union pjrt_args args = {.devices = {.client = p->client}};
    enum plim_status status = pjrt_do(&p->plugin, PJRT_CLIENT_DEVICES, &args, err);
    if (status != PLIM_OK) return status;
    if (!args.devices.count)
        return plim_fail(err, PLIM_UNSUPPORTED, "%s: the plug-in finds no device", p->plugin.path);
    if ((size_t)index >= args.devices.count)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: there is no device %d; the plug-in has %zu, counted from 0", p->plugin.path,
                         index, args.devices.count);
    p->chip = args.devices.chips[index];
    union pjrt_args chip = {.description = {.chip = p->chip}};
    if (pjrt_do(&p->plugin, PJRT_DEVICE_DESCRIPTION, &chip, NULL) == PLIM_OK)
        read_text(p, PJRT_DESCRIPTION_KIND, chip.description.description, p->kind, sizeof p->kind);
    return PLIM_OK;
}

/* A plug-in that keeps our address lets the arena be its memory. */
static bool keeps_addresses(struct pjrt *p)
{
    struct pjrt_shape shape = {DT_F32, 1, {64}};
    struct pjrt_buffer *buffer = NULL;
    void *memory = aligned_alloc(4096, 4096);
    bool kept = memory && pjrt_upload(p, memory, &shape, true, &buffer, NULL) == PLIM_OK &&
                pjrt_address(p, buffer) == memory;
    pjrt_drop(p, buffer);
    free(memory);
    return kept;
}

enum plim_status pjrt_open(const struct context *context, const char *name, int index, uint64_t budget,
                           struct pjrt *p, struct plim_error *err)
{
    STRBUF_AUTO path = STRBUF_INIT;
    *p = (struct pjrt){0};
    enum plim_status status = pjrt_find(context, name, &path, err);
    if (status == PLIM_OK) status = pjrt_load(context, strbuf_text(&path), &index, &p->plugin, err);
    if (status == PLIM_OK) status = create(p, index, budget, err);
    if (status == PLIM_OK) status = choose(p, index, err);
    if (status == PLIM_OK) {
        read_text(p, PJRT_CLIENT_PLATFORM_NAME, p->client, p->platform, sizeof p->platform);
        read_text(p, PJRT_CLIENT_PLATFORM_VERSION, p->client, p->version, sizeof p->version);
        p->zero_copy = keeps_addresses(p);
    } else {
        pjrt_close(p);
    }
    return status;
}

void pjrt_close(struct pjrt *p)
{
    if (p->client) pjrt_destroy(&p->plugin, PJRT_CLIENT_DESTROY, p->client);
    *p = (struct pjrt){0};
}

/* --- buffers ------------------------------------------------------------------------------------------------- */

enum plim_status pjrt_upload(struct pjrt *p, const void *data, const struct pjrt_shape *shape, bool place,
                             struct pjrt_buffer **out, struct plim_error *err)
{
    union pjrt_args args = {
        .from_host = {.client = p->client,
                      .data = data,
                      .type = types[shape->type],
                      .dims = shape->dim,
                      .ndim = (size_t)shape->ndim,
                      .semantics = place ? PJRT_HOST_MUTABLE_ZERO_COPY : PJRT_HOST_UNTIL_DONE,
                      .chip = p->chip}};
    *out = NULL;
    enum plim_status status = pjrt_do(&p->plugin, PJRT_CLIENT_BUFFER_FROM_HOST, &args, err);
    if (status != PLIM_OK) return status;
    if (place) /* the event happens only when the buffer is destroyed */
        pjrt_destroy(&p->plugin, PJRT_EVENT_DESTROY, args.from_host.done);
    else
        status = pjrt_await(&p->plugin, args.from_host.done, err);
    if (status == PLIM_OK)
        *out = args.from_host.buffer;
    else
        pjrt_drop(p, args.from_host.buffer);
    return status;
}

enum plim_status pjrt_download(struct pjrt *p, struct pjrt_buffer *buffer, void *to, size_t bytes,
                               struct plim_error *err)
{
    union pjrt_args args = {.to_host = {.buffer = buffer, .to = to, .size = bytes}};
    enum plim_status status = pjrt_do(&p->plugin, PJRT_BUFFER_TO_HOST, &args, err);
    return status == PLIM_OK ? pjrt_await(&p->plugin, args.to_host.done, err) : status;
}

void pjrt_drop(struct pjrt *p, struct pjrt_buffer *buffer)
{
    pjrt_destroy(&p->plugin, PJRT_BUFFER_DESTROY, buffer);
}

void *pjrt_address(struct pjrt *p, struct pjrt_buffer *buffer)
{
    union pjrt_args args = {.pointer = {.buffer = buffer}};
    return pjrt_do(&p->plugin, PJRT_BUFFER_POINTER, &args, NULL) == PLIM_OK ? (void *)args.pointer.address
                                                                            : NULL;
}

/* --- executables --------------------------------------------------------------------------------------------- */

/* Fills in what the executable needs; a plug-in that does not say leaves it unknown. */
static void read_bytes(struct pjrt *p, struct pjrt_executable *executable, struct pjrt_bytes *out)
{
    union pjrt_args args = {.memory = {.executable = executable}};
    if (pjrt_do(&p->plugin, PJRT_EXECUTABLE_MEMORY, &args, NULL) != PLIM_OK) return;
    *out = (struct pjrt_bytes){.argument = args.memory.argument,
                               .output = args.memory.output,
                               .alias = args.memory.alias,
                               .temp = args.memory.temp,
                               .code = args.memory.code,
                               .known = true};
}

static enum plim_status executable_of(struct pjrt *p, struct pjrt_loaded *loaded,
                                      struct pjrt_executable **out, struct plim_error *err)
{
    union pjrt_args args = {.executable = {.loaded = loaded}};
    enum plim_status status = pjrt_do(&p->plugin, PJRT_LOADED_EXECUTABLE, &args, err);
    *out = status == PLIM_OK ? args.executable.executable : NULL;
    return status;
}

static enum plim_status finish(struct pjrt *p, struct pjrt_loaded *loaded, struct pjrt_exe *out,
                               struct plim_error *err)
{
    struct pjrt_executable *executable;
    *out = (struct pjrt_exe){.loaded = loaded};
    enum plim_status status = executable_of(p, loaded, &executable, err);
    if (status == PLIM_OK) read_bytes(p, executable, &out->bytes);
    pjrt_destroy(&p->plugin, PJRT_EXECUTABLE_DESTROY, executable);
    if (status != PLIM_OK) pjrt_exe_release(p, out);
    return status;
}

enum plim_status pjrt_compile(struct pjrt *p, const char *text, size_t length, struct pjrt_exe *out,
                              struct plim_error *err)
{
    struct pjrt_source source = {{sizeof source, NULL}, (char *)text, length, "mlir", 4};
    union pjrt_args args = {.compile = {.client = p->client,
                                        .program = &source,
                                        .options = pjrt_compile_options,
                                        .options_size = PJRT_COMPILE_OPTIONS}};
    *out = (struct pjrt_exe){0};
    enum plim_status status = pjrt_do(&p->plugin, PJRT_CLIENT_COMPILE, &args, err);
    if (status == PLIM_OK) return finish(p, args.compile.loaded, out, err);
    if (status != PLIM_IO || p->plugin.lost) return status;
    if (err) err->status = PLIM_UNSUPPORTED;
    return PLIM_UNSUPPORTED;
}

void pjrt_exe_release(struct pjrt *p, struct pjrt_exe *exe)
{
    pjrt_destroy(&p->plugin, PJRT_LOADED_DESTROY, exe->loaded);
    *exe = (struct pjrt_exe){0};
}

enum plim_status pjrt_save(struct pjrt *p, const struct pjrt_exe *exe, struct strbuf *out,
                           struct plim_error *err)
{
    struct pjrt_executable *executable;
    enum plim_status status = executable_of(p, exe->loaded, &executable, err);
    union pjrt_args args = {.serialize = {.executable = executable}};
    if (status == PLIM_OK) status = pjrt_do(&p->plugin, PJRT_EXECUTABLE_SERIALIZE, &args, err);
    if (status == PLIM_OK) {
        strbuf_addn(out, args.serialize.bytes, args.serialize.size);
        if (args.serialize.release) args.serialize.release(args.serialize.serialized);
        status = strbuf_status(out, err);
    }
    pjrt_destroy(&p->plugin, PJRT_EXECUTABLE_DESTROY, executable);
    return status;
}

enum plim_status pjrt_restore(struct pjrt *p, const void *bytes, size_t size, struct pjrt_exe *out,
                              struct plim_error *err)
{
    union pjrt_args args = {.load = {.client = p->client, .bytes = bytes, .size = size}};
    *out = (struct pjrt_exe){0};
    enum plim_status status = pjrt_do(&p->plugin, PJRT_EXECUTABLE_LOAD, &args, err);
    return status == PLIM_OK ? finish(p, args.load.loaded, out, err) : status;
}

enum plim_status pjrt_execute(struct pjrt *p, const struct pjrt_exe *exe,
                              struct pjrt_buffer *const *arguments, int count, struct pjrt_buffer **results,
                              struct pjrt_event **done, struct plim_error *err)
{
    struct pjrt_execute_options options = {.head.size = offsetof(struct pjrt_execute_options, room)};
    struct pjrt_event *event = NULL;
    union pjrt_args args = {.execute = {.loaded = exe->loaded,
                                        .options = &options,
                                        .arguments = &arguments,
                                        .devices = 1,
                                        .count = (size_t)count,
                                        .outputs = (struct pjrt_buffer * *const *)&results,
                                        .done = &event}};
    enum plim_status status = pjrt_do(&p->plugin, PJRT_LOADED_EXECUTE, &args, err);
    *done = event;
    return status;
}

bool pjrt_memory(struct pjrt *p, size_t *in_use, size_t *limit, bool *pooled)
{
    union pjrt_args args = {.stats = {.chip = p->chip}};
    if (pjrt_do(&p->plugin, PJRT_DEVICE_MEMORY_STATS, &args, NULL) != PLIM_OK) return false;
    *in_use = (size_t)args.stats.in_use;
    *limit = args.stats.limit.is_set ? (size_t)args.stats.limit.bytes : 0;
    *pooled = args.stats.pool.is_set;
    return true;
}
