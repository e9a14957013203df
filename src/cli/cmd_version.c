/* cmd_version.c - plimsoll version: what this program is, was built with, and can use here. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/json.h"
#include "device/cpu/cpu_features.h"
#include "device/cpu/gemm.h"
#include "mem/os.h"

#include <sys/utsname.h>
#include <unistd.h>

struct version_flags {
    bool json;
};

static const struct option_row rows[] = {
    {"json", 'j', OPTION_FLAG, offsetof(struct version_flags, json), NULL, "print it as JSON"},
};

static const struct option_example examples[] = {
    {"version", "this program and what it can use on this machine"},
    {"version --json | jq .features.cuda", "for a program"},
    {NULL, NULL}};

static const struct command command = {
    .name = "version",
    .summary = "show version, build, CPU kernels and compiled-in features",
    .usage = "[--json]",
    .description = "Features that are not compiled in are listed as such.",
    COMMAND_ROWS(rows),
    .examples = examples,
};

#if defined(__clang__)
#define COMPILER "clang " __clang_version__
#elif defined(__GNUC__)
#define COMPILER "gcc " __VERSION__
#else
#define COMPILER "unknown"
#endif

#if defined(__aarch64__)
#define ARCHITECTURE "aarch64"
#elif defined(__x86_64__)
#define ARCHITECTURE "x86-64"
#else
#define ARCHITECTURE "other"
#endif

#ifdef PLIMSOLL_CUDA /* the toolkit's version, by the build */
#define CUDA_IN   true
#define CUDA_WHAT "CUDA backend (" PLIMSOLL_CUDA ")"
#else
#define CUDA_IN   false
#define CUDA_WHAT "CUDA backend"
#endif

#ifdef PLIMSOLL_HTTP /* libmicrohttpd was there, says the build */
#define HTTP_IN true
#else
#define HTTP_IN false
#endif

#ifdef PLIMSOLL_CURL /* libcurl was there, says the build */
#define CURL_IN true
#else
#define CURL_IN false
#endif

#ifdef PLIMSOLL_MPI /* Open MPI was there, says the build */
#define MPI_IN true
#else
#define MPI_IN false
#endif
#ifdef PLIMSOLL_MPICH
#define MPICH_IN true
#else
#define MPICH_IN false
#endif

/* Everything the design knows; what this build lacks is said. */
static const struct {
    const char *name, *what;
    bool in;
} features[] = {
    {"cpu", "CPU backend", true},
    {"disk", "disk tier for optimizer state, gradients and parameters", true},
    {"safetensors", "Hugging Face folders", true},
    {"cuda", CUDA_WHAT, CUDA_IN},
    {"mpi", "several ranks, by Open MPI", MPI_IN},
    {"mpich", "several ranks, by MPICH; torchrun", MPICH_IN},
    {"nccl", "exchanges between GPUs, where NCCL is installed", CUDA_IN},
    {"http", "HTTP server (libmicrohttpd)", HTTP_IN},
    {"curl", "webhooks (libcurl)", CURL_IN},
    {"tokenizers", "tokenizer.json of Hugging Face, chat templates", true},
};
enum { FEATURES = sizeof features / sizeof features[0] };

static const enum dtype gemm_types[] = {DT_F32, DT_BF16, DT_F16};

static const char *build_kind(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    return "sanitizer";
#elif defined(NDEBUG)
    return "release";
#else
    return "debug";
#endif
}

static void put_json(struct strbuf *out)
{
    struct os_machine box = {0};
    struct utsname host = {0};
    os_machine_memory(&box, NULL);
    uname(&host);
    struct json_writer w = json_object(out, 2);
    json_str(&w, "version", PLIMSOLL_VERSION);
    json_begin_object(&w, "build");
    json_str(&w, "kind", build_kind());
    json_str(&w, "compiler", COMPILER);
    json_str(&w, "architecture", ARCHITECTURE);
    json_end_object(&w);
    json_begin_object(&w, "machine");
    json_str(&w, "system", host.sysname);
    json_str(&w, "kernel", host.release);
    json_int(&w, "cpus", sysconf(_SC_NPROCESSORS_ONLN));
    json_int(&w, "memory_bytes", (int64_t)box.total);
    json_str(&w, "cpu_level", cpu_level_name(cpu_level()));
    json_begin_object(&w, "gemm");
    for (size_t i = 0; i < sizeof gemm_types / sizeof gemm_types[0]; i++)
        json_str(&w, dtype_name(gemm_types[i]), gemm_kernel_name(gemm_types[i]));
    json_end_object(&w);
    json_end_object(&w);
    json_begin_object(&w, "features");
    for (int i = 0; i < FEATURES; i++) json_bool(&w, features[i].name, features[i].in);
    json_end_object(&w);
    json_end_object(&w);
    strbuf_addc(out, '\n');
}

static void put_text(struct strbuf *out)
{
    struct os_machine box = {0};
    char memory[BYTES_TEXT];
    os_machine_memory(&box, NULL);
    strbuf_addf(out, "plimsoll %s\n", PLIMSOLL_VERSION);
    strbuf_addf(out, "  build     %s, %s, %s\n", build_kind(), ARCHITECTURE, COMPILER);
    strbuf_addf(out, "  machine   %ld CPUs (%s), %s%s%s\n", sysconf(_SC_NPROCESSORS_ONLN),
                cpu_level_name(cpu_level()), bytes_format(memory, box.total),
                box.limited ? ", a container's limit: " : "", box.limited ? box.rule : "");
    for (size_t i = 0; i < sizeof gemm_types / sizeof gemm_types[0]; i++)
        strbuf_addf(out, "  %-9s %s: %s\n", i ? "" : "matmul", dtype_name(gemm_types[i]),
                    gemm_kernel_name(gemm_types[i]));
    for (int i = 0; i < FEATURES; i++)
        strbuf_addf(out, "  %-9s %-12s %-3s  %s\n", i ? "" : "parts", features[i].name,
                    features[i].in ? "yes" : "no", features[i].what);
}

static const struct version_flags defaults;

static int run(void *flags, const struct string_list *)
{
    const struct version_flags *f = flags;
    struct strbuf out = STRBUF_INIT;
    if (f->json)
        put_json(&out);
    else
        put_text(&out);
    return cli_print(&out);
}

const struct subcommand subcommand_version = {&command, run, CLI_FLAGS(defaults), 0, 0, "takes no arguments"};
