/* pjrt_abi.h - the part of PJRT's C interface that we call, as our own declarations.
 *
 * A plug-in exports GetPjrtApi, which returns a struct of a version and a list of functions. A function takes one struct of
 * arguments and returns NULL or an error. Every struct begins with its size and a list of extensions, which we leave empty; fields are only
 * ever appended, so a smaller struct belongs to an older version (pjrt_plugin.h negotiates sizes). */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Position of a function in the list. */
enum pjrt_function {
    PJRT_ERROR_DESTROY = 0,
    PJRT_ERROR_MESSAGE = 1,
    PJRT_ERROR_CODE = 2,
    PJRT_PLUGIN_INITIALIZE = 3,
    PJRT_PLUGIN_ATTRIBUTES = 4,
    PJRT_EVENT_DESTROY = 5,
    PJRT_EVENT_AWAIT = 8,
    PJRT_CLIENT_CREATE = 10,
    PJRT_CLIENT_DESTROY = 11,
    PJRT_CLIENT_PLATFORM_NAME = 12,
    PJRT_CLIENT_PLATFORM_VERSION = 14,
    PJRT_CLIENT_DEVICES = 16, /* addressable ones */
    PJRT_CLIENT_COMPILE = 20,
    PJRT_CLIENT_BUFFER_FROM_HOST = 22,
    PJRT_DESCRIPTION_KIND = 26,
    PJRT_DEVICE_DESCRIPTION = 29,
    PJRT_DEVICE_MEMORY_STATS = 34,
    PJRT_EXECUTABLE_DESTROY = 40,
    PJRT_EXECUTABLE_SERIALIZE = 49,
    PJRT_LOADED_DESTROY = 50,
    PJRT_LOADED_EXECUTABLE = 51,
    PJRT_LOADED_EXECUTE = 55,
    PJRT_EXECUTABLE_LOAD = 56, /* DeserializeAndLoad */
    PJRT_BUFFER_DESTROY = 58,
    PJRT_BUFFER_TO_HOST = 70,
    PJRT_BUFFER_POINTER = 73,
    PJRT_EXECUTABLE_MEMORY = 96, /* GetCompiledMemoryStats */
    PJRT_FUNCTIONS = 118
};

enum {
    PJRT_INVALID_ARGUMENT = 3,
    PJRT_RESOURCE_EXHAUSTED = 8,
    PJRT_UNIMPLEMENTED = 12,
    PJRT_UNAVAILABLE = 14
};

/* Version of the interface that these declarations were compared with. */
#define PJRT_ABI_VERSION "0.81"

/* Element types of buffers. */
enum pjrt_type {
    PJRT_S32 = 4,
    PJRT_U8 = 6,
    PJRT_U16 = 7,
    PJRT_F16 = 10,
    PJRT_F32 = 11,
    PJRT_F64 = 12,
    PJRT_BF16 = 13,
};

/* When a host buffer may change. */
enum pjrt_host {
    PJRT_HOST_DURING_CALL,
    PJRT_HOST_UNTIL_DONE,
    PJRT_HOST_ZERO_COPY,
    PJRT_HOST_MUTABLE_ZERO_COPY
};

struct pjrt_error;
struct pjrt_event;
struct pjrt_client;
struct pjrt_chip; /* PJRT_Device */
struct pjrt_memory;
struct pjrt_description;
struct pjrt_executable;
struct pjrt_loaded;
struct pjrt_buffer;
struct pjrt_serialized;

struct pjrt_head {
    size_t size;
    void *extensions;
};

enum pjrt_value_kind { PJRT_VALUE_TEXT, PJRT_VALUE_INT, PJRT_VALUE_INTS, PJRT_VALUE_FLOAT, PJRT_VALUE_BOOL };

/* A named value: an option of a client, or an attribute of a plug-in. */
struct pjrt_value {
    struct pjrt_head head;
    const char *name;
    size_t name_size;
    enum pjrt_value_kind kind;
    union {
        const char *text;
        int64_t number;
        const int64_t *numbers;
        float real;
        bool flag;
    };
    size_t value_size; /* characters or numbers; 1 otherwise */
};

struct pjrt_source {
    struct pjrt_head head;
    char *code;
    size_t code_size;
    const char *format;
    size_t format_size;
};

struct pjrt_execute_options {
    struct pjrt_head head;
    void *send_callbacks, *recv_callbacks;
    size_t sends, recvs;
    int launch_id;
    const int64_t *kept_inputs; /* arguments that must not be donated */
    size_t kept_count;
    void *context;
    const char *call_location;
    size_t tasks;
    int *task_ids;
    int64_t *incarnations;
    void *room[4]; /* fields of later versions */
};

/* Arguments of every function we call; `head.size` is that of the function's own struct. */
union pjrt_args {
    struct pjrt_head head;
    struct {
        struct pjrt_head head;
        void *handle;
    } one; /* ..._DESTROY, EVENT_AWAIT */
    struct {
        struct pjrt_head head;
        const struct pjrt_error *error;
        const char *text;
        size_t text_size;
    } message;
    struct {
        struct pjrt_head head;
        const struct pjrt_error *error;
        int code;
    } code;
    struct {
        struct pjrt_head head;
        const struct pjrt_value *values;
        size_t count;
    } attributes;
    struct {
        struct pjrt_head head;
        const struct pjrt_value *options;
        size_t count;
        void *get, *get_arg, *put, *put_arg;
        struct pjrt_client *client;
        void *try_get, *try_get_arg;
    } create;
    struct {
        struct pjrt_head head;
        void *handle;
        const char *text;
        size_t text_size;
    } text; /* CLIENT_PLATFORM_..., DESCRIPTION_KIND */
    struct {
        struct pjrt_head head;
        struct pjrt_client *client;
        struct pjrt_chip *const *chips;
        size_t count;
    } devices;
    struct {
        struct pjrt_head head;
        struct pjrt_chip *chip;
        struct pjrt_description *description;
    } description;
    struct {
        struct pjrt_head head;
        struct pjrt_chip *chip;
        int64_t in_use;
        struct pjrt_figure {
            int64_t bytes;
            bool is_set;
        } peak, allocations, largest, limit, reserved, peak_reserved, reservable, largest_free, pool,
            peak_pool;
    } stats;
    struct {
        struct pjrt_head head;
        struct pjrt_client *client;
        const struct pjrt_source *program;
        const char *options;
        size_t options_size;
        struct pjrt_loaded *loaded;
    } compile;
    struct {
        struct pjrt_head head;
        struct pjrt_client *client;
        const void *data;
        enum pjrt_type type;
        const int64_t *dims;
        size_t ndim;
        const int64_t *strides;
        size_t nstrides;
        enum pjrt_host semantics;
        struct pjrt_chip *chip;
        struct pjrt_memory *memory;
        void *layout;
        struct pjrt_event *done;
        struct pjrt_buffer *buffer;
    } from_host;
    struct {
        struct pjrt_head head;
        struct pjrt_loaded *loaded;
        struct pjrt_executable *executable;
    } executable;
    struct {
        struct pjrt_head head;
        struct pjrt_executable *executable;
        int64_t code, argument, output, alias, temp;
        int64_t host_code, host_argument, host_output, host_alias, host_temp;
        int64_t peak;
    } memory;
    struct {
        struct pjrt_head head;
        const struct pjrt_executable *executable;
        const char *bytes;
        size_t size;
        struct pjrt_serialized *serialized;
        void (*release)(struct pjrt_serialized *);
    } serialize;
    struct {
        struct pjrt_head head;
        struct pjrt_client *client;
        const char *bytes;
        size_t size;
        struct pjrt_loaded *loaded;
        const char *options;
        size_t options_size;
    } load;
    struct {
        struct pjrt_head head;
        struct pjrt_loaded *loaded;
        struct pjrt_execute_options *options;
        struct pjrt_buffer *const *const *arguments; /* [device][argument] */
        size_t devices, count;
        struct pjrt_buffer **const *outputs; /* [device][output], the caller's lists */
        struct pjrt_event **done;            /* [device] */
        struct pjrt_chip *chip;
    } execute;
    struct {
        struct pjrt_head head;
        struct pjrt_buffer *buffer;
        void *layout;
        void *to;
        size_t size;
        struct pjrt_event *done;
    } to_host;
    struct {
        struct pjrt_head head;
        struct pjrt_buffer *buffer;
        uintptr_t address;
    } pointer;
    char room[512]; /* zeroed: fields that a later version has appended */
};

typedef struct pjrt_error *pjrt_call(union pjrt_args *args);

struct pjrt_api {
    struct pjrt_head head;
    struct {
        struct pjrt_head head;
        int major, minor;
    } version;
    pjrt_call *functions[PJRT_FUNCTIONS]; /* as many as head.size says */
};
