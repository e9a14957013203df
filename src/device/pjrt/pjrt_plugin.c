/* pjrt_plugin.c - see pjrt_plugin.h. */
#include "device/pjrt/pjrt_plugin.h"
#include "base/file.h"
#include "device/pjrt/pjrt_settings.h"

#include <dlfcn.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define UP_TO(part, field) (offsetof(union pjrt_args, part.field) + sizeof((union pjrt_args *)0)->part.field)

/* Functions we cannot do without, and the size of their arguments. */
static const struct {
    const char *name;
    size_t size;
    bool optional;
} functions[PJRT_FUNCTIONS] = {
    [PJRT_ERROR_DESTROY] = {"PJRT_Error_Destroy", UP_TO(one, handle)},
    [PJRT_ERROR_MESSAGE] = {"PJRT_Error_Message", UP_TO(message, text_size)},
    [PJRT_ERROR_CODE] = {"PJRT_Error_GetCode", UP_TO(code, code)},
    [PJRT_PLUGIN_INITIALIZE] = {"PJRT_Plugin_Initialize", sizeof(struct pjrt_head), true},
    [PJRT_PLUGIN_ATTRIBUTES] = {"PJRT_Plugin_Attributes", UP_TO(attributes, count), true},
    [PJRT_EVENT_DESTROY] = {"PJRT_Event_Destroy", UP_TO(one, handle)},
    [PJRT_EVENT_AWAIT] = {"PJRT_Event_Await", UP_TO(one, handle)},
    [PJRT_CLIENT_CREATE] = {"PJRT_Client_Create", UP_TO(create, try_get_arg)},
    [PJRT_CLIENT_DESTROY] = {"PJRT_Client_Destroy", UP_TO(one, handle)},
    [PJRT_CLIENT_PLATFORM_NAME] = {"PJRT_Client_PlatformName", UP_TO(text, text_size)},
    [PJRT_CLIENT_PLATFORM_VERSION] = {"PJRT_Client_PlatformVersion", UP_TO(text, text_size)},
    [PJRT_CLIENT_DEVICES] = {"PJRT_Client_AddressableDevices", UP_TO(devices, count)},
    [PJRT_CLIENT_COMPILE] = {"PJRT_Client_Compile", UP_TO(compile, loaded)},
    [PJRT_CLIENT_BUFFER_FROM_HOST] = {"PJRT_Client_BufferFromHostBuffer", UP_TO(from_host, buffer)},
    [PJRT_DESCRIPTION_KIND] = {"PJRT_DeviceDescription_Kind", UP_TO(text, text_size)},
    [PJRT_DEVICE_DESCRIPTION] = {"PJRT_Device_GetDescription", UP_TO(description, description)},
    [PJRT_DEVICE_MEMORY_STATS] = {"PJRT_Device_MemoryStats", UP_TO(stats, peak_pool.is_set), true},
    [PJRT_EXECUTABLE_DESTROY] = {"PJRT_Executable_Destroy", UP_TO(one, handle)},
    [PJRT_EXECUTABLE_SERIALIZE] = {"PJRT_Executable_Serialize", UP_TO(serialize, release), true},
    [PJRT_LOADED_DESTROY] = {"PJRT_LoadedExecutable_Destroy", UP_TO(one, handle)},
    [PJRT_LOADED_EXECUTABLE] = {"PJRT_LoadedExecutable_GetExecutable", UP_TO(executable, executable)},
    [PJRT_LOADED_EXECUTE] = {"PJRT_LoadedExecutable_Execute", UP_TO(execute, chip)},
    [PJRT_EXECUTABLE_LOAD] = {"PJRT_Executable_DeserializeAndLoad", UP_TO(load, options_size), true},
    [PJRT_BUFFER_DESTROY] = {"PJRT_Buffer_Destroy", UP_TO(one, handle)},
    [PJRT_BUFFER_TO_HOST] = {"PJRT_Buffer_ToHostBuffer", UP_TO(to_host, done)},
    [PJRT_BUFFER_POINTER] = {"PJRT_Buffer_UnsafePointer", UP_TO(pointer, address), true},
    [PJRT_EXECUTABLE_MEMORY] = {"PJRT_Executable_GetCompiledMemoryStats", UP_TO(memory, peak), true},
};

static bool has(const struct pjrt_api *api, int function)
{
    size_t end = offsetof(struct pjrt_api, functions) + (size_t)(function + 1) * sizeof(pjrt_call *);
    return end <= api->head.size && api->functions[function];
}

bool pjrt_has(const struct pjrt_plugin *p, enum pjrt_function function) { return has(p->api, (int)function); }

static enum plim_status fail_missing(const struct pjrt_plugin *p, int function, struct plim_error *err)
{
    return plim_fail(err, PLIM_UNSUPPORTED, "%s: this PJRT plug-in (version %d.%d) lacks %s", p->path,
                     p->api->version.major, p->api->version.minor, functions[function].name);
}

/* The number after `word` in a message; 0: there is none. */
static size_t number_after(const char *text, const char *word)
{
    const char *at = strstr(text, word);
    return at ? strtoul(at + strlen(word), NULL, 10) : 0;
}

/* Reads an error and destroys it. *wanted: the size of arguments that it asks for; 0: it is about something else. */
static enum plim_status read_error(struct pjrt_plugin *p, struct pjrt_error *error, int function,
                                   size_t *wanted, struct plim_error *err)
{
    char text[900];
    union pjrt_args message = {.message = {{functions[PJRT_ERROR_MESSAGE].size, NULL}, error, NULL, 0}};
    union pjrt_args code = {.code = {{functions[PJRT_ERROR_CODE].size, NULL}, error, 0}};
    union pjrt_args end = {.one = {{functions[PJRT_ERROR_DESTROY].size, NULL}, error}};
    p->api->functions[PJRT_ERROR_MESSAGE](&message);
    struct pjrt_error *none = p->api->functions[PJRT_ERROR_CODE](&code);
    snprintf(text, sizeof text, "%.*s", (int)(message.message.text ? message.message.text_size : 0),
             message.message.text ? message.message.text : "");
    for (char *c = text; *c; c++)
        if (*c == '\n') *c = ' '; /* an error is one line */
    p->api->functions[PJRT_ERROR_DESTROY](&end);
    if (none) {
        end.one.handle = none;
        p->api->functions[PJRT_ERROR_DESTROY](&end);
        code.code.code = 0;
    }
    p->code = code.code.code;
    p->lost = p->lost || p->code == PJRT_UNAVAILABLE;
    *wanted =
        p->code == PJRT_INVALID_ARGUMENT && strstr(text, "size") ? number_after(text, ": expected ") : 0;
    static const enum plim_status statuses[] = {
        [PJRT_RESOURCE_EXHAUSTED] = PLIM_NO_MEMORY, [PJRT_UNIMPLEMENTED] = PLIM_UNSUPPORTED};
    enum { KNOWN = sizeof statuses / sizeof *statuses };
    enum plim_status status = p->code > 0 && p->code < KNOWN ? statuses[p->code] : PLIM_OK;
    return plim_fail(err, status == PLIM_OK ? PLIM_IO : status, "%s: %s", functions[function].name,
                     *text ? text : "failed without a reason");
}

enum plim_status pjrt_do(struct pjrt_plugin *p, enum pjrt_function function, union pjrt_args *args,
                         struct plim_error *err)
{
    union pjrt_args tried = *args;
    size_t wanted = 0;
    if (!has(p->api, function)) return fail_missing(p, function, err);
    tried.head.size = p->sizes[function] ? p->sizes[function] : functions[function].size;
    struct pjrt_error *error = p->api->functions[function](&tried);
    enum plim_status status = error ? read_error(p, error, function, &wanted, err) : PLIM_OK;
    if (status != PLIM_OK && wanted && wanted != tried.head.size && wanted <= sizeof *args) {
        tried = *args;
        tried.head.size = p->sizes[function] = wanted;
        error = p->api->functions[function](&tried);
        status = error ? read_error(p, error, function, &wanted, err) : PLIM_OK;
    }
    *args = tried;
    return status;
}

void pjrt_destroy(struct pjrt_plugin *p, enum pjrt_function function, void *handle)
{
    union pjrt_args args = {.one = {.handle = handle}};
    if (handle) pjrt_do(p, function, &args, NULL);
}

enum plim_status pjrt_await(struct pjrt_plugin *p, struct pjrt_event *event, struct plim_error *err)
{
    union pjrt_args args = {.one = {.handle = event}};
    if (!event) return PLIM_OK;
    enum plim_status status = pjrt_do(p, PJRT_EVENT_AWAIT, &args, err);
    pjrt_destroy(p, PJRT_EVENT_DESTROY, event);
    return status;
}

int64_t pjrt_attribute(struct pjrt_plugin *p, const char *name, int64_t otherwise)
{
    union pjrt_args args = {0};
    if (pjrt_do(p, PJRT_PLUGIN_ATTRIBUTES, &args, NULL) != PLIM_OK) return otherwise;
    for (size_t i = 0; i < args.attributes.count; i++) {
        const struct pjrt_value *v = &args.attributes.values[i];
        if (v->name_size != strlen(name) || memcmp(v->name, name, v->name_size) != 0) continue;
        if (v->kind == PJRT_VALUE_INT) return v->number;
        if (v->kind == PJRT_VALUE_INTS && v->value_size) return v->numbers[0];
    }
    return otherwise;
}

/* The loader maps what a library's header promises, and the process dies where the file is shorter. */
static bool is_whole(const char *path)
{
    Elf64_Ehdr e;
    Elf64_Phdr part;
    int fd;
    int64_t size = file_bytes(path);
    if (file_open(path, &fd, NULL) != PLIM_OK) return false;
    bool whole = file_pread_full(fd, &e, sizeof e, 0, path, NULL) == PLIM_OK &&
                 !memcmp(e.e_ident, ELFMAG, SELFMAG) && e.e_phentsize == sizeof part;
    for (int i = 0; whole && i < e.e_phnum; i++)
        whole = file_pread_full(fd, &part, sizeof part, e.e_phoff + (size_t)i * sizeof part, path, NULL) ==
                    PLIM_OK &&
                part.p_filesz <= (uint64_t)size && part.p_offset <= (uint64_t)size - part.p_filesz;
    close(fd);
    return whole;
}

/* A library that cannot be loaded says why. */
static enum plim_status open_library(const char *path, void **library, struct plim_error *err)
{
    if (access(path, R_OK) != 0)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: there is no such PJRT plug-in, or it cannot be read",
                         path);
    if (!is_whole(path))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: not a PJRT plug-in: no shared library, or an incomplete one", path);
    *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (*library) return PLIM_OK;
    const char *why = dlerror(), *rest = why ? strstr(why, ": ") : NULL;
    bool named = rest && !strncmp(why, path, strlen(path)); /* the path is told once */
    return plim_fail(err, PLIM_BAD_INPUT, "%s: this PJRT plug-in cannot be loaded: %s", path,
                     named ? rest + 2
                     : why ? why
                           : "no reason is known");
}

enum plim_status pjrt_load(const struct context *context, const char *path, int *index,
                           struct pjrt_plugin *out, struct plim_error *err)
{
    void *library = NULL;
    *out = (struct pjrt_plugin){0};
    snprintf(out->path, sizeof out->path, "%s", path);
    enum plim_status status = pjrt_set_environment(context, path, index, err);
    if (status == PLIM_OK) status = open_library(path, &library, err);
    if (status != PLIM_OK) return status;
    const struct pjrt_api *(*get)(void) = (const struct pjrt_api *(*)(void))dlsym(library, "GetPjrtApi");
    out->api = get ? get() : NULL;
    if (!out->api || out->api->head.size < offsetof(struct pjrt_api, functions)) {
        dlclose(library);
        return plim_fail(err, PLIM_BAD_INPUT, "%s: not a PJRT plug-in: it has no GetPjrtApi", path);
    }
    if (out->api->version.major != 0)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: version %d.%d of PJRT's interface; this program knows 0.x", path,
                         out->api->version.major, out->api->version.minor);
    for (int i = 0; i < PJRT_FUNCTIONS; i++)
        if (functions[i].name && !functions[i].optional && !has(out->api, i))
            return fail_missing(out, i, err);
    union pjrt_args none = {0};
    return has(out->api, PJRT_PLUGIN_INITIALIZE) ? pjrt_do(out, PJRT_PLUGIN_INITIALIZE, &none, err) : PLIM_OK;
}
