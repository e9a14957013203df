/* environment.c - see explain.h. */
#include "watch/explain.h"
#include "mem/os.h"

#include <gnu/libc-version.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

/* Variables that ask an allocator for something. The plan needs none of them; that they are set is worth knowing. */
static const char *const variables[] = {
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PLIMSOLL_ALLOC_CONF",    "CUDA_VISIBLE_DEVICES",
    "CUDA_MEMORY_FRACTION",    "MAX_BATCH_SIZE",     "ENABLE_MIXED_PRECISION", "MALLOC_ARENA_MAX",
    "OMP_NUM_THREADS",         "PLIMSOLL_CPU",       "PLIMSOLL_CALIBRATE",     "PLIMSOLL_MACHINE"};

static const struct {
    const char *name;
    int which;
} limits[] = {{"address_space", RLIMIT_AS}, {"locked", RLIMIT_MEMLOCK}, {"data", RLIMIT_DATA}};

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15 ..."; absent without a card. */
static void put_driver(struct json_writer *w)
{
    char line[200] = "";
    FILE *f = fopen("/proc/driver/nvidia/version", "re");
    if (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        json_str(w, "driver", line);
    }
    if (f) fclose(f);
}

static void put_device(const struct device_facts *f, const char *backend, struct json_writer *w)
{
    json_begin_object(w, "device");
    json_str(w, "name", f->name);
    json_str(w, "backend", backend);
    json_int(w, "memory_bytes", (int64_t)f->memory_bytes);
    json_bool(w, "memory_limited", f->memory_limited);
    json_int(w, "overhead_bytes", (int64_t)f->overhead_bytes);
    if (f->capability) json_int(w, "capability", f->capability);
    put_driver(w);
    json_end_object(w);
}

static void put_system(struct json_writer *w)
{
    struct utsname host = {0};
    struct os_machine box = {0};
    os_machine_memory(&box, NULL);
    uname(&host);
    json_begin_object(w, "system");
    json_str(w, "kernel", host.release);
    json_str(w, "libc", gnu_get_libc_version());
    json_int(w, "cpus", sysconf(_SC_NPROCESSORS_ONLN));
    json_int(w, "memory_bytes", (int64_t)box.total);
    json_int(w, "available_bytes", (int64_t)box.available);
    json_bool(w, "container_limit", box.limited);
    json_end_object(w);
}

static void put_limits(struct json_writer *w)
{
    json_begin_object(w, "limits");
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        struct rlimit limit = {0};
        getrlimit((__rlimit_resource_t)limits[i].which, &limit);
        if (limit.rlim_cur == RLIM_INFINITY)
            json_null(w, limits[i].name);
        else
            json_int(w, limits[i].name, (int64_t)limit.rlim_cur);
    }
    json_end_object(w);
}

void environment_json(const struct context *context, const struct device_facts *facts, const char *backend,
                      struct json_writer *w, const char *key)
{
    json_begin_object(w, key);
    json_str(w, "version", PLIMSOLL_VERSION);
    put_device(facts, backend, w);
    put_system(w);
    put_limits(w);
    json_begin_object(w, "variables");
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++)
        if (context_get(context, variables[i])) json_str(w, variables[i], context_get(context, variables[i]));
    json_end_object(w);
    json_end_object(w);
}
