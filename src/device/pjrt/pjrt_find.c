/* pjrt_find.c - see pjrt_find.h. */
#include "device/pjrt/pjrt_find.h"

#include <glob.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Plug-ins by name: their file, the folder it has in Python's site-packages (a pattern), and a folder of packages. */
static const struct known {
    const char *name, *file, *python, *folder, *get;
} known[] = {
    {"cpu", "xla_cpu_pjrt.so", "xla_plugins/xla_cpu_pjrt", "/usr/lib/plimsoll", "pip install xla-cpu-pjrt"},
    {"cuda", "xla_cuda_plugin.so", "jax_plugins/xla_cuda1*", "/usr/lib/plimsoll",
     "pip install jax-cuda13-pjrt"},
    {"neuron", "libneuronpjrt.so", "libneuronxla", "/opt/aws/neuron/lib", "install libneuronxla"},
    {"tpu", "libtpu.so", "libtpu", "/usr/lib/libtpu", "pip install libtpu"},
};
enum { KNOWN = sizeof known / sizeof *known };

const char *pjrt_known(int number) { return number >= 0 && number < KNOWN ? known[number].name : NULL; }

static bool is_file(const char *path)
{
    struct stat st;
    return !stat(path, &st) && S_ISREG(st.st_mode);
}

/* The last file that matches FOLDER/PART/FILE; `folder` and `part` may be patterns, `part` may be empty. */
static bool look_in(struct strbuf *path, const char *folder, const char *part, const char *file)
{
    glob_t found = {0};
    strbuf_clear(path);
    if (!folder || !*folder) return false;
    strbuf_addf(path, "%s/%s%s%s", folder, part, *part ? "/" : "", file);
    bool here = !glob(strbuf_text(path), 0, NULL, &found) && found.gl_pathc;
    strbuf_clear(path);
    if (here) strbuf_add(path, found.gl_pathv[found.gl_pathc - 1]);
    globfree(&found);
    return here && is_file(strbuf_text(path));
}

static bool look_in_python(struct strbuf *path, const char *root, const char *packages, const struct known *k)
{
    STRBUF_AUTO folder = STRBUF_INIT;
    if (!root || !*root) return false;
    strbuf_addf(&folder, "%s/lib/python3*/%s", root, packages);
    return look_in(path, strbuf_text(&folder), k->python, k->file);
}

static bool look_for(const struct context *context, const struct known *k, struct strbuf *path)
{
    const char *modules = context ? context->modules : NULL;
    return look_in(path, modules, "", k->file) || look_in(path, modules, "../lib/plimsoll", k->file) ||
           look_in_python(path, context_get(context, "VIRTUAL_ENV"), "site-packages", k) ||
           look_in(path, k->folder, "", k->file) || look_in(path, "/usr/local/lib/plimsoll", "", k->file) ||
           look_in_python(path, "/usr/local", "dist-packages", k) ||
           look_in_python(path, "/usr", "dist-packages", k) ||
           look_in_python(path, "/usr", "site-packages", k);
}

/* PJRT_PLUGIN_LIBRARY_PATH names a file, or a folder with plug-ins. */
static bool is_set(const struct context *context, const char *file, struct strbuf *path)
{
    const char *set = context_get(context, "PJRT_PLUGIN_LIBRARY_PATH");
    struct stat st;
    if (!set || !*set) return false;
    if (!stat(set, &st) && S_ISDIR(st.st_mode)) return file && look_in(path, set, "", file);
    strbuf_clear(path);
    strbuf_add(path, set);
    return true;
}

enum plim_status pjrt_find(const struct context *context, const char *name, struct strbuf *path,
                           struct plim_error *err)
{
    if (strchr(name, '/')) return strbuf_add(path, name), strbuf_status(path, err);
    if (!*name && is_set(context, NULL, path)) return strbuf_status(path, err);
    if (!*name)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "device pjrt: write pjrt:PATH, or set PJRT_PLUGIN_LIBRARY_PATH to a plug-in's path");
    for (int i = 0; i < KNOWN; i++) {
        if (strcmp(known[i].name, name) != 0) continue;
        if (is_set(context, known[i].file, path) || look_for(context, &known[i], path))
            return strbuf_status(path, err);
        return plim_fail(
            err, PLIM_UNSUPPORTED,
            "no PJRT plug-in for %s: %s is neither in %s, nor beside the program, nor in a Python "
            "environment; %s, or set PJRT_PLUGIN_LIBRARY_PATH to its path",
            name, known[i].file, known[i].folder, known[i].get);
    }
    if (is_file(name)) return strbuf_addf(path, "./%s", name), strbuf_status(path, err);
    return plim_fail(err, PLIM_BAD_INPUT,
                     "'%s' is no PJRT plug-in; write the path of one, or cpu, cuda, neuron or tpu", name);
}
