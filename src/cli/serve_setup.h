/* serve_setup.h - what a server takes from the machine before it listens: variables, open files, the control socket, and a
 * folder for parameters that stream from disk.
 */
#pragma once

#include "job/preset.h"
#include "net/control.h"
#include "serve/server.h"

/* Variables that serve obeys: MAX_BATCH_SIZE, ENABLE_MIXED_PRECISION, CUDA_MEMORY_FRACTION and PyTorch's allocator options. Flags
 * are stronger. */
struct serve_environment {
    int parallel;              /* requests at once at most; 0: not said */
    double fraction;           /* of a GPU's memory; 0: not said */
    bool exact, mixed;         /* fp32; 16 bits where the device gains by it */
    struct profile thresholds; /* of memory: those of a job that says nothing */
};

/* PLIM_BAD_INPUT names a variable whose value cannot be read. */
enum plim_status serve_environment_read(struct serve_environment *out, struct plim_error *err);

/* PLIM_UNSUPPORTED: the model is computed in another precision than ENABLE_MIXED_PRECISION asks for. */
enum plim_status serve_environment_check(const struct serve_environment *env, enum precision precision,
                                         const struct device_facts *facts, struct plim_error *err);

/* Open files: every connection is one. Raises the process's limit where it may; call it before the server listens. Where that is
 * not enough there will be fewer connections, and a warning says so; PLIM_BAD_INPUT when there would be hardly any. */
enum plim_status serve_files(struct http_limits *limits, int threads, const struct log *log,
                             struct plim_error *err);

/* The control socket. `path` "none": none; NULL: the default, under the user's run-time folder, and a server goes on without one
 * that cannot be made. The log hears where it is, or why there is none. */
enum plim_status serve_control_open(const char *path, struct server *server, const struct log *log,
                                    struct control **out, struct plim_error *err);
void serve_control_stop(void); /* for server_options.stop: as if SIGTERM had come */

/* --adapter: NAME=DIR is served beside the model, a DIR alone is merged into it. */
struct serve_adapters {
    const char *merged; /* NULL: none */
    struct engine_adapter *item;
    int count;
};
/* PLIM_BAD_INPUT: a name twice, an empty part, or two to be merged. Texts of the list are borrowed. */
enum plim_status serve_adapters_read(const struct string_list *list, struct serve_adapters *out,
                                     struct plim_error *err);
void serve_adapters_release(struct serve_adapters *a);

/* The folder for parameters that stream from disk, where --scratch names none: the cache folder, else /var/tmp, the first that can
 * be written, lies on a disk and has room for all parameters. A file system in memory (tmpfs) is no place for what does not fit
 * into memory. Makes the cache folder where it is not there. Returns out, or NULL. */
const char *serve_scratch_find(const char *dir, const struct model_spec *spec, char *out, size_t size);
