/* fake_pjrt.c - see fake_pjrt.h. */
#include "support/fake_pjrt.h"
#include "device/pjrt/pjrt_abi.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUNCTIONS(F)                                                                                         \
    F(ERROR_DESTROY, "Error_Destroy", one.handle)                                                            \
    F(ERROR_MESSAGE, "Error_Message", message.text_size)                                                     \
    F(ERROR_CODE, "Error_GetCode", code.code)                                                                \
    F(PLUGIN_INITIALIZE, "Plugin_Initialize", head.extensions)                                               \
    F(PLUGIN_ATTRIBUTES, "Plugin_Attributes", attributes.count)                                              \
    F(EVENT_DESTROY, "Event_Destroy", one.handle)                                                            \
    F(EVENT_AWAIT, "Event_Await", one.handle)                                                                \
    F(CLIENT_CREATE, "Client_Create", create.client)                                                         \
    F(CLIENT_DESTROY, "Client_Destroy", one.handle)                                                          \
    F(CLIENT_PLATFORM_NAME, "Client_PlatformName", text.text_size)                                           \
    F(CLIENT_PLATFORM_VERSION, "Client_PlatformVersion", text.text_size)                                     \
    F(CLIENT_DEVICES, "Client_AddressableDevices", devices.count)                                            \
    F(CLIENT_COMPILE, "Client_Compile", compile.loaded)                                                      \
    F(CLIENT_BUFFER_FROM_HOST, "Client_BufferFromHostBuffer", from_host.buffer)                              \
    F(DESCRIPTION_KIND, "DeviceDescription_Kind", text.text_size)                                            \
    F(DEVICE_DESCRIPTION, "Device_GetDescription", description.description)                                  \
    F(DEVICE_MEMORY_STATS, "Device_MemoryStats", stats.limit)                                                \
    F(EXECUTABLE_DESTROY, "Executable_Destroy", one.handle)                                                  \
    F(EXECUTABLE_SERIALIZE, "Executable_Serialize", serialize.release)                                       \
    F(LOADED_DESTROY, "LoadedExecutable_Destroy", one.handle)                                                \
    F(LOADED_EXECUTABLE, "LoadedExecutable_GetExecutable", executable.executable)                            \
    F(LOADED_EXECUTE, "LoadedExecutable_Execute", execute.done)                                              \
    F(EXECUTABLE_LOAD, "Executable_DeserializeAndLoad", load.loaded)                                         \
    F(BUFFER_DESTROY, "Buffer_Destroy", one.handle)                                                          \
    F(BUFFER_TO_HOST, "Buffer_ToHostBuffer", to_host.done)                                                   \
    F(BUFFER_POINTER, "Buffer_UnsafePointer", pointer.address)                                               \
    F(EXECUTABLE_MEMORY, "Executable_GetCompiledMemoryStats", memory.temp)

enum { UNAVAILABLE = 14, ITEMS = 4096 };
enum { NONE, CALL, EVENT };

/* Every object begins with this. */
struct thing {
    enum fake_kind kind;
    int code; /* of an error or an event */
    char text[200];
};

struct pjrt_buffer {
    struct thing thing;
    size_t size;
    char *data; /* NULL: donated */
    bool own;
};

/* A program's operands; both kinds of executable are one of these. */
struct program {
    struct thing thing;
    struct program *of;
    char *source;
    size_t length;
    int arguments, results;
    size_t argument[ITEMS], result[ITEMS];
    int donor[ITEMS]; /* of a result: the argument; -1: none */
};

static struct fake_pjrt state;
static _Atomic long held; /* bytes of buffers */
static char settings[1024];
static atomic_bool lost;

/* --- settings -------------------------------------------------------------------------------------------------- */

/* The value of the nth setting of that name; NULL: there are fewer. */
static const char *setting(const char *name, int nth)
{
    size_t len = strlen(name);
    for (const char *at = settings; *at; at += strcspn(at, ",") + (at[strcspn(at, ",")] == ',')) {
        if (strncmp(at, name, len) != 0 || at[len] != '=') continue;
        if (!nth--) return at + len + 1;
    }
    return NULL;
}

static long long number(const char *name, long long otherwise)
{
    const char *value = setting(name, 0);
    return value ? strtoll(value, NULL, 10) : otherwise;
}

static bool starts(const char *value, const char *call, const char **rest)
{
    size_t len = strlen(call);
    *rest = value + len + 1;
    return !strncmp(value, call, len) && value[len] == ':';
}

/* --- objects --------------------------------------------------------------------------------------------------- */

static void *make(enum fake_kind kind, size_t size)
{
    struct thing *t = calloc(1, size);
    if (!t) abort();
    t->kind = kind;
    state.live[kind]++;
    return t;
}

static void end(void *object, enum fake_kind kind)
{
    struct thing *t = object;
    if (!t || t->kind != kind) {
        state.misuses++;
        return;
    }
    state.live[kind]--;
    t->kind = FAKE_KINDS;
    free(t);
}

__attribute__((format(printf, 2, 3))) static struct pjrt_error *error(int code, const char *format, ...)
{
    struct thing *t = make(FAKE_ERRORS, sizeof *t);
    va_list args;
    va_start(args, format);
    t->code = code;
    vsnprintf(t->text, sizeof t->text, format, args);
    va_end(args);
    return (struct pjrt_error *)t;
}

static struct pjrt_event *event(int code, const char *call)
{
    struct thing *t = make(FAKE_EVENTS, sizeof *t);
    t->code = code;
    snprintf(t->text, sizeof t->text, "%s was ordered to fail later", call);
    return (struct pjrt_event *)t;
}

static struct pjrt_error *refuse(const char *what, size_t size)
{
    return error(PJRT_RESOURCE_EXHAUSTED, "Out of memory allocating %zu bytes for %s;\nthere is no more",
                 size, what);
}

static bool fits(size_t size) { return held + (long)size <= number("holds", (long long)1 << 50); }

static struct pjrt_buffer *buffer_new(size_t size)
{
    struct pjrt_buffer *b = make(FAKE_BUFFERS, sizeof *b);
    b->size = size, b->own = true;
    b->data = calloc(1, size + 1);
    if (!b->data) abort();
    held += (long)size;
    return b;
}

static void buffer_empty(struct pjrt_buffer *b)
{
    if (b->own && b->data) {
        held -= (long)b->size;
        free(b->data);
    }
    b->data = NULL;
}

/* --- programs -------------------------------------------------------------------------------------------------- */

static size_t element_size(const char *type)
{
    static const struct {
        const char *name;
        size_t size;
    } types[] = {{"bf16", 2}, {"f16", 2}, {"f32", 4}, {"f64", 8}, {"i32", 4}, {"ui16", 2},
                 {"ui8", 1},  {"i1", 1},  {"i8", 1},  {"i64", 8}, {"ui32", 4}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (!strncmp(type, types[i].name, strlen(types[i].name)) && type[strlen(types[i].name)] == '>')
            return types[i].size;
    return 0;
}

/* "2x3xf32>" in bytes; 0: not understood, or no elements. */
static size_t tensor_size(const char *text)
{
    size_t count = 1;
    while (*text >= '0' && *text <= '9') {
        char *next;
        count *= strtoul(text, &next, 10);
        if (*next != 'x') return 0;
        text = next + 1;
    }
    return count * element_size(text);
}

/* Reads the types between `from` and `to`. */
static int read_types(const char *from, const char *to, size_t *sizes)
{
    int n = 0;
    while ((from = strstr(from, "tensor<")) && from < to && n < ITEMS) sizes[n++] = tensor_size(from += 7);
    return n;
}

static void read_donors(struct program *p, const char *from, const char *to)
{
    const char *at = from, *next;
    for (int i = 0; i < p->results; i++) p->donor[i] = -1;
    for (int i = 0; i < p->arguments; i++, at = next) {
        at = strstr(at, "tensor<");
        next = strstr(at + 1, "tensor<");
        const char *alias = strstr(at, "tf.aliasing_output = ");
        if (alias && alias < to && (i + 1 == p->arguments || alias < next)) {
            int result = atoi(alias + strlen("tf.aliasing_output = "));
            if (result >= 0 && result < p->results) p->donor[result] = i;
        }
    }
}

static struct program *read_program(const char *text, size_t length)
{
    struct program *p = make(FAKE_LOADED, sizeof *p);
    p->source = calloc(1, length + 1);
    if (!p->source) abort();
    memcpy(p->source, text, length);
    p->length = length;
    const char *main = strstr(p->source, "@main("), *arrow = main ? strstr(main, ") -> (") : NULL;
    const char *body = arrow ? strstr(arrow, ") {") : NULL;
    if (body) {
        p->arguments = read_types(main, arrow, p->argument);
        p->results = read_types(arrow, body, p->result);
        read_donors(p, main, arrow);
        return p;
    }
    free(p->source);
    end(p, FAKE_LOADED);
    return NULL;
}

static size_t sum(const size_t *sizes, int count)
{
    size_t total = 0;
    for (int i = 0; i < count; i++) total += sizes[i];
    return total;
}

static size_t donated(const struct program *p)
{
    size_t total = 0;
    for (int i = 0; i < p->results; i++)
        if (p->donor[i] >= 0) total += p->result[i];
    return total;
}

/* --- the functions: what they do when they work. `later` is the code of the event. ------------------------------ */

static struct pjrt_error *do_ERROR_DESTROY(union pjrt_args *a, int)
{
    end(a->one.handle, FAKE_ERRORS);
    return NULL;
}

static struct pjrt_error *do_ERROR_MESSAGE(union pjrt_args *a, int)
{
    a->message.text = ((const struct thing *)a->message.error)->text;
    a->message.text_size = strlen(a->message.text);
    return NULL;
}

static struct pjrt_error *do_ERROR_CODE(union pjrt_args *a, int)
{
    a->code.code = ((const struct thing *)a->code.error)->code;
    return NULL;
}

static struct pjrt_error *do_PLUGIN_INITIALIZE(union pjrt_args *, int) { return NULL; }

static struct pjrt_error *do_PLUGIN_ATTRIBUTES(union pjrt_args *a, int)
{
    a->attributes.count = 0;
    return NULL;
}

static struct pjrt_error *do_EVENT_DESTROY(union pjrt_args *a, int)
{
    end(a->one.handle, FAKE_EVENTS);
    return NULL;
}

static struct pjrt_error *do_EVENT_AWAIT(union pjrt_args *a, int)
{
    const struct thing *t = a->one.handle;
    if (t->kind != FAKE_EVENTS) state.misuses++;
    return t->code ? error(t->code, "%s", t->text) : NULL;
}

static bool is_known(const char *name, size_t len)
{
    const char *known = setting("known", 0);
    for (; known && *known && *known != ','; known += strcspn(known, "+,"), known += *known == '+')
        if (strcspn(known, "+,") == len && !memcmp(known, name, len)) return true;
    return false;
}

static struct pjrt_error *do_CLIENT_CREATE(union pjrt_args *a, int)
{
    state.options = (long)a->create.count, state.create[0] = 0;
    for (size_t i = 0; i < a->create.count; i++) {
        const struct pjrt_value *v = &a->create.options[i];
        size_t at = strlen(state.create);
        if (!is_known(v->name, v->name_size))
            return error(PJRT_INVALID_ARGUMENT, "Unexpected option name passed to PJRT_Client_Create: %.*s",
                         (int)v->name_size, v->name);
        double value = v->kind == PJRT_VALUE_FLOAT  ? (double)v->real
                       : v->kind == PJRT_VALUE_BOOL ? v->flag
                                                    : (double)v->number;
        snprintf(state.create + at, sizeof state.create - at, "%.*s=%.4g ", (int)v->name_size, v->name,
                 value);
    }
    a->create.client = make(FAKE_CLIENTS, sizeof(struct thing));
    return NULL;
}

static void write_report(void)
{
    const char *file = setting("report", 0);
    char path[512];
    if (!file) return;
    snprintf(path, sizeof path, "%.*s", (int)strcspn(file, ","), file);
    FILE *out = fopen(path, "a");
    if (!out) return;
    long live = 0;
    for (int i = 0; i < FAKE_KINDS; i++) live += state.live[i];
    fprintf(out, "live %ld misuses %ld compiled %ld loaded %ld executed %ld options %s\n", live,
            state.misuses, state.calls[PJRT_CLIENT_COMPILE], state.calls[PJRT_EXECUTABLE_LOAD],
            state.calls[PJRT_LOADED_EXECUTE], state.create);
    fclose(out);
}

static struct pjrt_error *do_CLIENT_DESTROY(union pjrt_args *a, int)
{
    end(a->one.handle, FAKE_CLIENTS);
    write_report();
    return NULL;
}

static struct pjrt_error *say(union pjrt_args *a, const char *text)
{
    a->text.text = text, a->text.text_size = strlen(text);
    return NULL;
}

static struct pjrt_error *do_CLIENT_PLATFORM_NAME(union pjrt_args *a, int) { return say(a, "fake"); }
static struct pjrt_error *do_CLIENT_PLATFORM_VERSION(union pjrt_args *a, int) { return say(a, "fake 1"); }
static struct pjrt_error *do_DESCRIPTION_KIND(union pjrt_args *a, int) { return say(a, "Fake chip"); }

static struct pjrt_error *do_CLIENT_DEVICES(union pjrt_args *a, int)
{
    enum { MOST = 4 };
    static int chips[MOST];
    static struct pjrt_chip *const list[MOST] = {(struct pjrt_chip *)&chips[0], (struct pjrt_chip *)&chips[1],
                                                 (struct pjrt_chip *)&chips[2],
                                                 (struct pjrt_chip *)&chips[3]};
    a->devices.chips = list, a->devices.count = (size_t)number("devices", 1);
    return NULL;
}

static struct pjrt_error *do_DEVICE_DESCRIPTION(union pjrt_args *a, int)
{
    a->description.description = (struct pjrt_description *)a->description.chip;
    return NULL;
}

static struct pjrt_error *do_DEVICE_MEMORY_STATS(union pjrt_args *a, int)
{
    if (setting("stats", 0)) return error(PJRT_UNIMPLEMENTED, "no memory statistics here");
    a->stats.in_use = held;
    a->stats.limit.bytes = number("limit", (long long)1 << 30), a->stats.limit.is_set = true;
    a->stats.pool.is_set = number("pool", 0);
    return NULL;
}

static struct pjrt_error *do_CLIENT_COMPILE(union pjrt_args *a, int)
{
    struct program *p = read_program(a->compile.program->code, a->compile.program->code_size);
    if (!p) return error(PJRT_INVALID_ARGUMENT, "the program has no @main");
    size_t temp = (size_t)number("temp", 0);
    if (temp > (size_t)number("holds", (long long)1 << 50)) {
        free(p->source);
        end(p, FAKE_LOADED);
        return refuse("a program", temp);
    }
    a->compile.loaded = (struct pjrt_loaded *)p;
    return NULL;
}

static struct pjrt_error *do_CLIENT_BUFFER_FROM_HOST(union pjrt_args *a, int later)
{
    size_t size = 1;
    static const size_t sizes[] = {[PJRT_S32] = 4, [PJRT_U8] = 1,  [PJRT_U16] = 2, [PJRT_F16] = 2,
                                   [PJRT_F32] = 4, [PJRT_F64] = 8, [PJRT_BF16] = 2};
    for (size_t i = 0; i < a->from_host.ndim; i++) size *= (size_t)a->from_host.dims[i];
    size *= sizes[a->from_host.type];
    bool place = number("own", 0) && a->from_host.semantics == PJRT_HOST_MUTABLE_ZERO_COPY;
    if (!place && !fits(size)) return refuse("a buffer", size);
    struct pjrt_buffer *b = place ? make(FAKE_BUFFERS, sizeof *b) : buffer_new(size);
    if (place)
        b->data = (char *)a->from_host.data, b->size = size;
    else
        memcpy(b->data, a->from_host.data, size);
    a->from_host.buffer = b;
    a->from_host.done = event(later, "PJRT_Client_BufferFromHostBuffer");
    return NULL;
}

static struct pjrt_error *do_EXECUTABLE_DESTROY(union pjrt_args *a, int)
{
    end(a->one.handle, FAKE_EXECUTABLES);
    return NULL;
}

static void release_serialized(struct pjrt_serialized *s) { end(s, FAKE_SERIALIZED); }

static struct pjrt_error *do_EXECUTABLE_SERIALIZE(union pjrt_args *a, int)
{
    const struct program *p = ((const struct program *)a->serialize.executable)->of;
    a->serialize.bytes = p->source, a->serialize.size = p->length;
    a->serialize.serialized = make(FAKE_SERIALIZED, sizeof(struct thing));
    a->serialize.release = release_serialized;
    return NULL;
}

static struct pjrt_error *do_LOADED_DESTROY(union pjrt_args *a, int)
{
    struct program *p = a->one.handle;
    if (p->thing.kind == FAKE_LOADED) free(p->source);
    end(p, FAKE_LOADED);
    return NULL;
}

static struct pjrt_error *do_LOADED_EXECUTABLE(union pjrt_args *a, int)
{
    struct program *p = make(FAKE_EXECUTABLES, sizeof *p);
    p->of = (struct program *)a->executable.loaded;
    a->executable.executable = (struct pjrt_executable *)p;
    return NULL;
}

static struct pjrt_error *take_arguments(const struct program *p, union pjrt_args *a)
{
    if ((int)a->execute.count != p->arguments)
        return error(PJRT_INVALID_ARGUMENT, "the program takes %d arguments, got %zu", p->arguments,
                     a->execute.count);
    for (int i = 0; i < p->arguments; i++) {
        const struct pjrt_buffer *b = a->execute.arguments[0][i];
        if (b->thing.kind != FAKE_BUFFERS || !b->data)
            return error(PJRT_INVALID_ARGUMENT, "argument %d was donated or destroyed", i);
        if (b->size != p->argument[i])
            return error(PJRT_INVALID_ARGUMENT, "argument %d has %zu bytes, not %zu", i, b->size,
                         p->argument[i]);
    }
    return NULL;
}

static struct pjrt_error *do_LOADED_EXECUTE(union pjrt_args *a, int later)
{
    struct program *p = (struct program *)a->execute.loaded;
    struct pjrt_error *wrong = take_arguments(p, a);
    size_t more = sum(p->result, p->results) - donated(p) + (size_t)number("temp", 0);
    if (wrong) return wrong;
    if (!fits(more)) return refuse("results", more);
    for (int i = 0; i < p->results; i++) {
        struct pjrt_buffer **out = &a->execute.outputs[0][i];
        if (p->donor[i] < 0) {
            *out = buffer_new(p->result[i]);
            continue;
        }
        struct pjrt_buffer *from = a->execute.arguments[0][p->donor[i]];
        *out = make(FAKE_BUFFERS, sizeof **out);
        (*out)->size = from->size, (*out)->data = from->data, (*out)->own = from->own;
        from->data = NULL;
    }
    if (a->execute.done) a->execute.done[0] = event(later, "PJRT_LoadedExecutable_Execute");
    return NULL;
}

static struct pjrt_error *do_EXECUTABLE_LOAD(union pjrt_args *a, int)
{
    struct program *p = read_program(a->load.bytes, a->load.size);
    if (!p) return error(PJRT_INVALID_ARGUMENT, "these bytes are no executable");
    a->load.loaded = (struct pjrt_loaded *)p;
    return NULL;
}

static struct pjrt_error *do_BUFFER_DESTROY(union pjrt_args *a, int)
{
    struct pjrt_buffer *b = a->one.handle;
    if (b->thing.kind == FAKE_BUFFERS) buffer_empty(b);
    end(b, FAKE_BUFFERS);
    return NULL;
}

static struct pjrt_error *do_BUFFER_TO_HOST(union pjrt_args *a, int later)
{
    struct pjrt_buffer *b = a->to_host.buffer;
    if (b->thing.kind != FAKE_BUFFERS || !b->data)
        return error(PJRT_INVALID_ARGUMENT, "the buffer was donated or destroyed");
    if (a->to_host.size < b->size) return error(PJRT_INVALID_ARGUMENT, "the buffer has %zu bytes", b->size);
    memcpy(a->to_host.to, b->data, b->size);
    a->to_host.done = event(later, "PJRT_Buffer_ToHostBuffer");
    return NULL;
}

static struct pjrt_error *do_BUFFER_POINTER(union pjrt_args *a, int)
{
    a->pointer.address = (uintptr_t)a->pointer.buffer->data;
    return NULL;
}

static struct pjrt_error *do_EXECUTABLE_MEMORY(union pjrt_args *a, int)
{
    const struct program *p = ((const struct program *)a->memory.executable)->of;
    if (setting("memory", 0)) return error(PJRT_UNIMPLEMENTED, "no memory figures here");
    a->memory.argument = (int64_t)sum(p->argument, p->arguments);
    a->memory.output = (int64_t)sum(p->result, p->results);
    a->memory.alias = (int64_t)donated(p);
    a->memory.temp = number("temp", 0);
    return NULL;
}

/* --- orders to fail -------------------------------------------------------------------------------------------- */

static bool has_event(int function)
{
    return function == PJRT_CLIENT_BUFFER_FROM_HOST || function == PJRT_LOADED_EXECUTE ||
           function == PJRT_BUFFER_TO_HOST;
}

static bool destroys(int function)
{
    return function == PJRT_ERROR_DESTROY || function == PJRT_ERROR_MESSAGE || function == PJRT_ERROR_CODE ||
           function == PJRT_EVENT_DESTROY || function == PJRT_CLIENT_DESTROY ||
           function == PJRT_EXECUTABLE_DESTROY || function == PJRT_LOADED_DESTROY ||
           function == PJRT_BUFFER_DESTROY;
}

/* How this call fails, if it does, and with which code. */
static int ordered(int function, const char *name, int *code)
{
    const char *value, *rest;
    long call = ++state.calls[function];
    for (int i = 0; (value = setting("lose", i)); i++)
        if (starts(value, name, &rest) && call >= atol(rest)) lost = true;
    if (lost && !destroys(function)) return *code = UNAVAILABLE, CALL;
    for (int i = 0; (value = setting("fail", i)); i++) {
        if (!starts(value, name, &rest)) continue;
        char *after;
        long nth = strtol(rest, &after, 10);
        if (nth && nth != call) continue;
        *code = (int)strtol(after + 1, &after, 10);
        return !strncmp(after, ":event", 6) && has_event(function) ? EVENT : CALL;
    }
    return NONE;
}

static struct pjrt_error *check_size(const char *name, const union pjrt_args *a, size_t least)
{
    const char *value, *rest;
    for (int i = 0; (value = setting("size", i)); i++)
        if (starts(value, name, &rest) && a->head.size != strtoul(rest, NULL, 10))
            return error(PJRT_INVALID_ARGUMENT, "Unexpected PJRT_%s_Args size: expected %lu, got %zu", name,
                         strtoul(rest, NULL, 10), a->head.size);
    if (a->head.size >= least) return NULL;
    return error(PJRT_INVALID_ARGUMENT, "Unexpected PJRT_%s_Args size: expected %zu, got %zu", name, least,
                 a->head.size);
}

static struct pjrt_error *call(int function, const char *name, size_t least,
                               struct pjrt_error *(*work)(union pjrt_args *, int), union pjrt_args *a)
{
    int code = 0, how = ordered(function, name, &code);
    struct pjrt_error *wrong = check_size(name, a, least);
    if (wrong) return wrong;
    if (how == CALL && destroys(function)) { /* the object goes all the same */
        wrong = work(a, 0);
        return function == PJRT_ERROR_DESTROY || function == PJRT_ERROR_MESSAGE
                   ? wrong
                   : error(code, "PJRT_%s was ordered to fail", name);
    }
    if (how == CALL) return error(code, "PJRT_%s was ordered to fail", name);
    return work(a, how == EVENT ? code : 0);
}

#define END_OF(field) (offsetof(union pjrt_args, field) + sizeof((union pjrt_args *)0)->field)
#define STUB(id, name, last)                                                                                 \
    static struct pjrt_error *fake_##id(union pjrt_args *a)                                                  \
    {                                                                                                        \
        return call(PJRT_##id, name, END_OF(last), do_##id, a);                                              \
    }
FUNCTIONS(STUB)

/* The card's driver, when this file is libcuda.so.1: a card of 1 GiB. */
__attribute__((visibility("default"))) int cuInit(unsigned flags);
__attribute__((visibility("default"))) int cuDeviceGet(int *card, int index);
__attribute__((visibility("default"))) int cuDeviceTotalMem_v2(size_t *bytes, int card);
int cuInit(unsigned flags) { return flags != 0; }
int cuDeviceGet(int *card, int index) { return *card = index, 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int card) { return *bytes = (size_t)1 << 30, card != 0; }

__attribute__((visibility("default"))) fake_pjrt_now fake_pjrt_state;
const struct fake_pjrt *fake_pjrt_state(void) { return &state; }

__attribute__((visibility("default"))) const struct pjrt_api *GetPjrtApi(void)
{
    static struct pjrt_api api;
    const char *told = getenv("FAKE_PJRT"), *value;
    snprintf(settings, sizeof settings, "%s", told ? told : "");
    lost = false;
    memset(state.calls, 0, sizeof state.calls);
    api = (struct pjrt_api){.version = {.major = (int)number("major", 0), .minor = 81}};
    api.head.size = offsetof(struct pjrt_api, functions) +
                    (size_t)number("functions", PJRT_FUNCTIONS) * sizeof(pjrt_call *);
#define ENTRY(id, name, last)                                                                                \
    api.functions[PJRT_##id] = fake_##id;                                                                    \
    for (int i = 0; (value = setting("lack", i)); i++)                                                       \
        if (!strncmp(value, name, strlen(name)) && strcspn(value, ",") == strlen(name))                      \
            api.functions[PJRT_##id] = NULL;
    FUNCTIONS(ENTRY)
    return &api;
}
