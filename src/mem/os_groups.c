/* os_groups.c - see os_groups.h. */
#include "mem/os_groups.h"
#include "mem/os_text.h"

#include <stdio.h>
#include <string.h>

enum { PATH_BYTES = 4096 };

/* v1 says "no limit" with a number near 2^63. */
#define UNLIMITED ((uint64_t)1 << 62)

/* --- mounts --------------------------------------------------------------------------------------------------------- */

struct word {
    const char *text;
    size_t len;
};

/* The next word of a line, which ends at `end`; an empty one behind the last. */
static struct word next_word(const char **at, const char *end)
{
    while (*at < end && **at == ' ') ++*at;
    struct word w = {*at, 0};
    while (*at < end && **at != ' ') ++*at, w.len++;
    return w;
}

static bool is(struct word w, const char *text)
{
    return w.len == strlen(text) && memcmp(w.text, text, w.len) == 0;
}

/* Is `name` one of the words in a list with commas? */
static bool has(struct word list, const char *name)
{
    for (const char *end = list.text + list.len; list.text < end;) {
        const char *comma = memchr(list.text, ',', (size_t)(end - list.text));
        struct word one = {list.text, (size_t)((comma ? comma : end) - list.text)};
        if (is(one, name)) return true;
        list.text += one.len + 1;
    }
    return false;
}

/* Spaces and the like are written in octal: "\040". Slashes at the end are left out. False: it is too long. */
static bool copy_path(struct word from, char out[OS_GROUP_PATH])
{
    size_t n = 0, i = 0;
    while (i < from.len && n + 1 < OS_GROUP_PATH) {
        const char *c = from.text + i;
        bool octal = *c == '\\' && from.len - i > 3;
        out[n++] = octal ? (char)((c[1] - '0') * 64 + (c[2] - '0') * 8 + (c[3] - '0')) : *c;
        i += octal ? 4 : 1;
    }
    while (n > 0 && out[n - 1] == '/') n--;
    out[n] = '\0';
    return i == from.len;
}

/* "35 31 0:32 /top /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory" */
static void take_mount(const char *line, const char *end, struct os_groups *out)
{
    struct word top, at, w;
    for (int i = 0; i < 3; i++) next_word(&line, end);
    top = next_word(&line, end), at = next_word(&line, end);
    do w = next_word(&line, end);
    while (w.len && !is(w, "-"));
    struct word type = next_word(&line, end);
    next_word(&line, end); /* where it comes from */
    bool v2 = is(type, "cgroup2"), v1 = is(type, "cgroup") && has(next_word(&line, end), "memory");
    struct os_group_mount *mount = v2 ? &out->v2 : &out->v1, found;
    if ((v1 || v2) && !*mount->at && copy_path(top, found.top) && copy_path(at, found.at)) *mount = found;
}

void os_groups_find(const char *root, struct os_groups *out)
{
    struct strbuf text = STRBUF_INIT;
    *out =
        (struct os_groups){.root = root, .v1 = {"/sys/fs/cgroup/memory", ""}, .v2 = {"/sys/fs/cgroup", ""}};
    if (os_text_read(root, "/proc/self/mountinfo", &text)) {
        *out = (struct os_groups){.root = root};
        for (const char *line = strbuf_text(&text); *line;) {
            const char *end = line + strcspn(line, "\n");
            take_mount(line, end, out);
            line = end + (*end == '\n');
        }
    }
    strbuf_release(&text);
}

/* --- which group ---------------------------------------------------------------------------------------------------- */

/* The process's group below the mount, as a path of its own: what is above the mount's top is not there, and a group outside of it
 * stands for the top itself. */
static struct word below_top(const struct os_group_mount *mount, struct word path)
{
    size_t top = strlen(mount->top);
    bool inside = path.len >= top && memcmp(path.text, mount->top, top) == 0 &&
                  (path.len == top || path.text[top] == '/');
    if (!inside || (path.len >= 3 && memcmp(path.text, "/..", 3) == 0)) return (struct word){"", 0};
    return (struct word){path.text + top, path.len - top};
}

/* The group that a line "id:controllers:path" of /proc/self/cgroup names; false: it is of no interest. */
static bool group_of(const struct os_groups *g, struct word line, const struct os_group_mount **mount,
                     struct word *path)
{
    const char *first = memchr(line.text, ':', line.len), *end = line.text + line.len;
    const char *second = first ? memchr(first + 1, ':', (size_t)(end - first - 1)) : NULL;
    if (!second) return false;
    struct word controllers = {first + 1, (size_t)(second - first - 1)};
    *mount = !controllers.len ? &g->v2 : has(controllers, "memory") ? &g->v1 : NULL;
    if (!*mount || !*(*mount)->at) return false;
    *path = below_top(*mount, (struct word){second + 1, (size_t)(end - second - 1)});
    return true;
}

/* The folder of a group; false: its path is too long. */
static bool folder_of(const struct os_groups *g, const struct os_group_mount *mount, struct word path,
                      char out[PATH_BYTES])
{
    int n = snprintf(out, PATH_BYTES, "%s%s%.*s", g->root, mount->at, (int)path.len, path.text);
    return n > 0 && n < PATH_BYTES;
}

/* --- limits --------------------------------------------------------------------------------------------------------- */

/* Where a version keeps its numbers; the last two are lines of memory.stat. */
struct version {
    const char *limits[3], *usage, *droppable, *above;
};
static const struct version version_1 = {{"/memory.limit_in_bytes"},
                                         "/memory.usage_in_bytes",
                                         "total_inactive_file ",
                                         "hierarchical_memory_limit "};
static const struct version version_2 = {
    {"/memory.max", "/memory.high"}, "/memory.current", "inactive_file ", NULL};

static bool lower(uint64_t *limit, uint64_t to)
{
    if (to >= *limit) return false;
    *limit = to;
    return true;
}

/* The limit of the group in `folder`, and what of its use cannot simply be dropped. */
static void apply_limit(const struct version *v, const char *folder, bool leaf, struct os_machine *box)
{
    struct strbuf stat = STRBUF_INIT;
    uint64_t limit = UNLIMITED, number, use = 0, droppable = 0;
    const char *file = "/memory.stat";
    for (int i = 0; v->limits[i]; i++)
        if (os_text_number(folder, v->limits[i], &number) && lower(&limit, number)) file = v->limits[i];
    bool asks_above = leaf && v->above;
    if (limit == UNLIMITED && !asks_above) return;
    if (os_text_read(folder, "/memory.stat", &stat)) {
        if (asks_above && os_text_find(&stat, v->above, &number) && lower(&limit, number))
            file = "/memory.stat";
        os_text_find(&stat, v->droppable, &droppable);
    }
    strbuf_release(&stat);
    if (limit == UNLIMITED) return;
    os_text_number(folder, v->usage, &use);
    use = use > droppable ? use - droppable : 0;
    if (lower(&box->available, limit > use ? limit - use : 0))
        snprintf(box->rule, sizeof box->rule, "%.*s%s", OS_RULE - 32, folder, file);
    if (limit >= box->total) return;
    box->total = limit;
    box->limited = true;
}

/* All limits from a group up to the mount. */
static void apply_group(const struct os_groups *g, const struct os_group_mount *mount, struct word path,
                        struct os_machine *box)
{
    const struct version *version = mount == &g->v1 ? &version_1 : &version_2;
    char folder[PATH_BYTES];
    for (bool leaf = true;; leaf = false) {
        while (path.len > 0 && path.text[path.len - 1] == '/') path.len--;
        if (folder_of(g, mount, path, folder)) apply_limit(version, folder, leaf, box);
        if (path.len == 0) return;
        while (path.len > 0 && path.text[path.len - 1] != '/') path.len--;
    }
}

void os_groups_limit(const struct os_groups *g, struct os_machine *box)
{
    struct strbuf text = STRBUF_INIT;
    const struct os_group_mount *mount;
    struct word path;
    if (os_text_read(g->root, "/proc/self/cgroup", &text))
        for (const char *line = strbuf_text(&text); *line;) {
            size_t len = strcspn(line, "\n");
            if (group_of(g, (struct word){line, len}, &mount, &path)) apply_group(g, mount, path, box);
            line += len + (line[len] == '\n');
        }
    strbuf_release(&text);
}

/* --- waiting -------------------------------------------------------------------------------------------------------- */

bool os_groups_pressure(const struct os_groups *g, struct strbuf *text)
{
    struct strbuf groups = STRBUF_INIT;
    const struct os_group_mount *mount;
    struct word path;
    char folder[PATH_BYTES];
    bool found = false;
    if (os_text_read(g->root, "/proc/self/cgroup", &groups))
        for (const char *line = strbuf_text(&groups); *line && !found;) {
            size_t len = strcspn(line, "\n");
            found = group_of(g, (struct word){line, len}, &mount, &path) && mount == &g->v2 &&
                    folder_of(g, mount, path, folder) && os_text_read(folder, "/memory.pressure", text);
            line += len + (line[len] == '\n');
        }
    strbuf_release(&groups);
    return found;
}
