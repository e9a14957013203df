/* cmd_cache.c - plimsoll cache: files that earlier runs left for later ones. */
#include "cli/cli.h"
#include "base/bytes.h"
#include "base/json.h"
#include "device/pjrt/artefacts.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct cache_flags {
    bool json;
};

static const struct option_row rows[] = {
    {"json", 'j', OPTION_FLAG, offsetof(struct cache_flags, json), NULL, "print it as JSON"},
};

static const struct option_example examples[] = {
    {"cache list", "what is stored, and how large it is"},
    {"cache clear programs", "remove compiled programs; the next start compiles them again"},
    {"cache clear", "remove everything"},
    {NULL, NULL}};

static const struct command command = {
    .name = "cache",
    .summary = "list or clear stored programs, rates and plans",
    .usage = "[OPTION...] list|clear [KIND...]",
    .description =
        "The cache is the folder $XDG_CACHE_HOME/plimsoll or ~/.cache/plimsoll. Kinds: programs (compiled by "
        "the plug-in of a PJRT device), rates (measured speeds of devices, disks and links), plans (sizes of "
        "servers that worked, and the rung of the ladder to begin on). Without a KIND, all of them. Clearing "
        "the cache loses no results: the next start compiles, measures and searches again. Files of "
        "other names are never touched.",
    COMMAND_ROWS(rows),
    .examples = examples,
};

/* Files that belong to a kind, by the folder below the cache's and how their names begin and end. */
enum { PREFIXES = 5 };
static const struct kind {
    const char *name, *folder, *ending;
    const char *prefix[PREFIXES];
} kinds[] = {
    {"programs", "/" ARTEFACTS_FOLDER, ARTEFACTS_ENDING, {""}},
    {"rates", "", ".json", {"cpu-", "cuda-", "disk-", "link-"}},
    {"plans", "", ".json", {"serve-", "rung-"}},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

struct total {
    int files;
    uint64_t bytes;
};

static bool belongs(const struct kind *k, const char *name)
{
    const char *end = strstr(name, k->ending);
    const char *rest = end ? end + strlen(k->ending) : "";
    if (!end || (*rest && strncmp(rest, ".tmp.", 5) != 0)) return false; /* .tmp.: of a run that was killed */
    for (int i = 0; i < PREFIXES && k->prefix[i]; i++)
        if (!strncmp(name, k->prefix[i], strlen(k->prefix[i]))) return true;
    return false;
}

static enum plim_status remove_file(int folder, const char *name, struct plim_error *err)
{
    if (unlinkat(folder, name, 0) == 0) return PLIM_OK;
    return plim_fail(err, PLIM_IO, "cache: %s cannot be removed", name);
}

/* Counts a kind's files and, to clear them, removes them. */
static enum plim_status visit(const char *cache, const struct kind *k, bool clear, struct total *out,
                              struct plim_error *err)
{
    STRBUF_AUTO folder = STRBUF_INIT;
    enum plim_status status = PLIM_OK;
    *out = (struct total){0};
    strbuf_addf(&folder, "%s%s", cache, k->folder);
    DIR *dir = opendir(strbuf_text(&folder));
    for (struct dirent *d; dir && status == PLIM_OK && (d = readdir(dir));) {
        struct stat st;
        if (!belongs(k, d->d_name) || fstatat(dirfd(dir), d->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0 ||
            S_ISDIR(st.st_mode))
            continue;
        if (clear) status = remove_file(dirfd(dir), d->d_name, err);
        if (status == PLIM_OK) out->files++, out->bytes += (uint64_t)st.st_size;
    }
    if (dir) closedir(dir);
    return status;
}

static bool chosen(const struct kind *k, const struct string_list *args)
{
    for (size_t i = 1; i < args->count; i++)
        if (!strcmp(args->items[i], k->name)) return true;
    return args->count == 1;
}

static void put_json(const char *cache, const struct total *totals, const struct string_list *args,
                     struct strbuf *out)
{
    struct json_writer w = json_object(out, 2);
    json_str(&w, "folder", cache);
    for (int i = 0; i < KINDS; i++) {
        if (!chosen(&kinds[i], args)) continue;
        json_begin_object(&w, kinds[i].name);
        json_int(&w, "files", totals[i].files);
        json_int(&w, "bytes", (int64_t)totals[i].bytes);
        json_end_object(&w);
    }
    json_end_object(&w);
    strbuf_addc(out, '\n');
}

static void put_text(const char *cache, bool clear, const struct total *totals,
                     const struct string_list *args, struct strbuf *out)
{
    char bytes[BYTES_TEXT];
    strbuf_addf(out, "%s%s\n", clear ? "removed from " : "", cache);
    for (int i = 0; i < KINDS; i++)
        if (chosen(&kinds[i], args))
            strbuf_addf(out, "  %-9s %4d file%s %s\n", kinds[i].name, totals[i].files,
                        totals[i].files == 1 ? " " : "s", bytes_format(bytes, totals[i].bytes));
}

static enum plim_status check_kinds(const struct string_list *args, struct plim_error *err)
{
    for (size_t i = 1; i < args->count; i++) {
        int k = 0;
        while (k < KINDS && strcmp(kinds[k].name, args->items[i]) != 0) k++;
        if (k == KINDS)
            return plim_fail(err, PLIM_BAD_INPUT,
                             "cache: there is no kind '%s'; write programs, rates or plans", args->items[i]);
    }
    return PLIM_OK;
}

static int run(void *flags, const struct string_list *args)
{
    struct cache_flags *f = flags;
    struct plim_error err = {0};
    struct total totals[KINDS] = {0};
    STRBUF_AUTO cache = STRBUF_INIT;
    struct strbuf out = STRBUF_INIT;
    bool clear = !strcmp(args->items[0], "clear");
    if (!clear && strcmp(args->items[0], "list") != 0) return cli_wants(&subcommand_cache);
    if (check_kinds(args, &err) != PLIM_OK) return cli_error(&err);
    if (!context_cache(cli_context(), &cache)) {
        plim_fail(&err, PLIM_BAD_INPUT, "cache: there is no cache folder; set XDG_CACHE_HOME or HOME");
        return cli_error(&err);
    }
    for (int i = 0; i < KINDS; i++)
        if (chosen(&kinds[i], args) &&
            visit(strbuf_text(&cache), &kinds[i], clear, &totals[i], &err) != PLIM_OK)
            return cli_error(&err);
    if (f->json)
        put_json(strbuf_text(&cache), totals, args, &out);
    else
        put_text(strbuf_text(&cache), clear, totals, args, &out);
    return cli_print(&out);
}

static const struct cache_flags defaults = {0};

const struct subcommand subcommand_cache = {&command, run,       CLI_FLAGS(defaults),
                                            1,        1 + KINDS, "give list or clear, and kinds"};
