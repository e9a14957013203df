/* os.c - reading /proc and the cgroup file systems.
 *
 * A process is in one v2 group and, on older machines, one v1 memory group. Limits of all groups above it
 * count too. Inside a container the path in /proc/self/cgroup may not exist below the mount; walking up ends
 * at the mount itself, which then is the container's own group.
 */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "mem/os.h"
#include "base/file.h"
#include "base/strbuf.h"
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROC_FILE_MAX = 1 << 20, PATH_BYTES = 4096 };

enum { PAGE_PRESENT = 63 };      /* the bit of an entry of /proc/self/pagemap */
enum { SMALL_OBJECT = 4 << 20 }; /* libc and libm are; what CUDA brings is not  */
enum { IN_USE = 5 }; /* a fifth of its pages: libm has a third before step 1, an unused library a tenth */

/* v1 says "no limit" with a number near 2^63. */
#define UNLIMITED ((uint64_t)1 << 62)

static bool read_text(const char *path, struct strbuf *text)
{
    strbuf_clear(text);
    return file_read(path, PROC_FILE_MAX, text, NULL) == PLIM_OK;
}

/* The number after `key` at the beginning of a line. */
static bool find_number(const struct strbuf *text, const char *key, uint64_t *out)
{
    size_t len = strlen(key);
    for (const char *line = strbuf_text(text); *line;) {
        if (strncmp(line, key, len) == 0) {
            char *end;
            *out = strtoull(line + len, &end, 10);
            return end != line + len;
        }
        line += strcspn(line, "\n");
        if (*line) line++;
    }
    return false;
}

/* A file that holds one number; "max" and unreadable files are false. */
static bool read_number(const char *path, uint64_t *out)
{
    struct strbuf text = STRBUF_INIT;
    bool found = read_text(path, &text) && find_number(&text, "", out);
    strbuf_release(&text);
    return found;
}

enum plim_status os_process_memory(struct os_process *out, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    uint64_t rss, peak, file = 0, shared = 0;
    enum plim_status status = file_read("/proc/self/status", PROC_FILE_MAX, &text, err);
    if (status == PLIM_OK) {
        find_number(&text, "RssFile:", &file);
        find_number(&text, "RssShmem:", &shared);
        if (find_number(&text, "VmRSS:", &rss) && find_number(&text, "VmHWM:", &peak))
            *out =
                (struct os_process){.rss = rss * 1024, .peak = peak * 1024, .file = (file + shared) * 1024};
        else
            status = plim_fail(err, PLIM_UNSUPPORTED, "/proc/self/status: has no VmRSS and VmHWM");
    }
    strbuf_release(&text);
    return status;
}

uint64_t os_process_counted(void)
{
    struct strbuf text = STRBUF_INIT;
    struct os_process sums = {0};
    uint64_t rss = 0;
    bool found = file_read("/proc/self/smaps_rollup", PROC_FILE_MAX, &text, NULL) == PLIM_OK &&
                 find_number(&text, "Rss:", &rss);
    strbuf_release(&text);
    if (found) return rss * 1024;
    os_process_memory(&sums, NULL);
    return sums.rss;
}

/* Constants lie between redzones, which AddressSanitizer lets nobody read. */
__attribute__((no_sanitize("address"))) static void touch(uintptr_t at) { (void)*(const volatile char *)at; }

/* What to do with the pages of an object that hold code and constants. */
enum visit { COUNT_ALL, COUNT_RESIDENT, TOUCH };

static size_t visit_pages(const struct dl_phdr_info *object, enum visit visit, int pagemap)
{
    size_t pages = 0, page = os_page_size();
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || (part->p_flags & PF_W) || !(part->p_flags & PF_R)) continue;
        if (!(part->p_flags & PF_X) && part->p_memsz > SMALL_OBJECT) continue; /* kernels of a card */
        uintptr_t at = (object->dlpi_addr + part->p_vaddr) & ~(uintptr_t)(page - 1);
        for (uintptr_t end = object->dlpi_addr + part->p_vaddr + part->p_memsz; at < end; at += page) {
            uint64_t entry = 0;
            if (visit == TOUCH) touch(at);
            if (visit == COUNT_RESIDENT &&
                pread(pagemap, &entry, sizeof entry, (off_t)(at / page * sizeof entry)) < 0)
                entry = 0;
            pages += visit == COUNT_RESIDENT ? entry >> PAGE_PRESENT : 1;
        }
    }
    return pages;
}

/* The program, which has no name, and those of its libraries that are small and in use. */
static int touch_object(struct dl_phdr_info *object, size_t size, void *arg)
{
    int *pagemap = arg;
    size_t pages = visit_pages(object, COUNT_ALL, -1);
    bool program = !object->dlpi_name || !object->dlpi_name[0];
    bool small = pages <= SMALL_OBJECT / os_page_size() && *pagemap >= 0;
    (void)size;
    if (program || (small && visit_pages(object, COUNT_RESIDENT, *pagemap) * IN_USE >= pages))
        visit_pages(object, TOUCH, -1);
    return 0;
}

void os_touch_code(void)
{
    int pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    dl_iterate_phdr(touch_object, &pagemap);
    if (pagemap >= 0) close(pagemap);
}

enum plim_status os_reset_peak(struct plim_error *err)
{
    int fd = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, "5", 1) == 1;
    int code = errno;
    if (fd >= 0) close(fd);
    if (done) return PLIM_OK;
    return plim_fail(err, PLIM_UNSUPPORTED, "/proc/self/clear_refs: cannot reset the peak of memory use: %s",
                     strerror(code));
}

/* Where a kind of group keeps its numbers. */
struct cgroup_kind {
    const char *mount, *limit, *usage, *droppable;
};

static const struct cgroup_kind group_v2[] = {
    {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file "},
    {"/sys/fs/cgroup", "memory.high", "memory.current", "inactive_file "},
};
static const struct cgroup_kind group_v1[] = {
    {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "},
};

/* Bytes used by the group in `folder` that cannot simply be dropped. */
static uint64_t group_use(const struct cgroup_kind *kind, const char *folder)
{
    char path[PATH_BYTES + 64];
    uint64_t usage = 0, droppable = 0;
    struct strbuf text = STRBUF_INIT;
    snprintf(path, sizeof path, "%s/%s", folder, kind->usage);
    read_number(path, &usage);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    if (read_text(path, &text)) find_number(&text, kind->droppable, &droppable);
    strbuf_release(&text);
    return usage > droppable ? usage - droppable : 0;
}

static void apply_limit(const struct cgroup_kind *kind, const char *folder, struct os_machine *box)
{
    char path[PATH_BYTES + 64];
    uint64_t limit;
    snprintf(path, sizeof path, "%s/%s", folder, kind->limit);
    if (!read_number(path, &limit) || limit > UNLIMITED) return;
    uint64_t use = group_use(kind, folder), left = limit > use ? limit - use : 0;
    if (left < box->available) box->available = left;
    if (limit >= box->total) return;
    box->total = limit;
    box->limited = true;
}

/* All limits from the group at `path` (len bytes) up to the mount. */
static void apply_group(const char *root, const struct cgroup_kind *kind, const char *path, size_t len,
                        struct os_machine *box)
{
    char folder[PATH_BYTES];
    for (;;) {
        while (len > 0 && path[len - 1] == '/') len--;
        int n = snprintf(folder, sizeof folder, "%s%s%.*s", root, kind->mount, (int)len, path);
        if (n > 0 && n < (int)sizeof folder) apply_limit(kind, folder, box);
        if (len == 0) return;
        while (len > 0 && path[len - 1] != '/') len--;
    }
}

/* Is `name` one of the comma-separated controllers in text[0..len)? */
static bool has_controller(const char *text, size_t len, const char *name)
{
    size_t want = strlen(name);
    for (const char *end = text + len; text < end;) {
        const char *comma = memchr(text, ',', (size_t)(end - text));
        size_t n = (size_t)((comma ? comma : end) - text);
        if (n == want && memcmp(text, name, n) == 0) return true;
        text += n + 1;
    }
    return false;
}

/* One line "id:controllers:path" of /proc/self/cgroup. */
static void apply_line(const char *root, const char *line, size_t len, struct os_machine *box)
{
    const char *first = memchr(line, ':', len);
    if (!first) return;
    const char *controllers = first + 1,
               *second = memchr(controllers, ':', len - (size_t)(controllers - line));
    if (!second) return;
    const char *path = second + 1;
    size_t controllers_len = (size_t)(second - controllers), path_len = len - (size_t)(path - line);
    if (controllers_len == 0)
        for (size_t i = 0; i < sizeof group_v2 / sizeof group_v2[0]; i++)
            apply_group(root, &group_v2[i], path, path_len, box);
    else if (has_controller(controllers, controllers_len, "memory"))
        apply_group(root, &group_v1[0], path, path_len, box);
}

static void apply_cgroups(const char *root, struct os_machine *box)
{
    char path[PATH_BYTES];
    struct strbuf text = STRBUF_INIT;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (read_text(path, &text))
        for (const char *line = strbuf_text(&text); *line;) {
            size_t len = strcspn(line, "\n");
            apply_line(root, line, len, box);
            line += len + (line[len] == '\n');
        }
    strbuf_release(&text);
}

enum plim_status os_machine_memory_at(const char *root, struct os_machine *out, struct plim_error *err)
{
    char path[PATH_BYTES];
    struct strbuf text = STRBUF_INIT;
    uint64_t total, available;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    enum plim_status status = file_read(path, PROC_FILE_MAX, &text, err);
    if (status == PLIM_OK) {
        if (find_number(&text, "MemTotal:", &total) && find_number(&text, "MemAvailable:", &available))
            *out = (struct os_machine){.total = total * 1024, .available = available * 1024};
        else
            status = plim_fail(err, PLIM_UNSUPPORTED, "%s: has no MemTotal and MemAvailable", path);
    }
    strbuf_release(&text);
    if (status == PLIM_OK) apply_cgroups(root, out);
    return status;
}

const char *os_machine_root(void)
{
    const char *root = getenv("PLIMSOLL_MACHINE");
    return root ? root : "";
}

enum plim_status os_machine_memory(struct os_machine *out, struct plim_error *err)
{
    return os_machine_memory_at(os_machine_root(), out, err);
}

/* "some avg10=1.25 avg60=..." */
static double find_share(const struct strbuf *text, const char *kind)
{
    const char *line = strstr(strbuf_text(text), kind), *share = line ? strstr(line, "avg10=") : NULL;
    return share ? strtod(share + strlen("avg10="), NULL) : 0;
}

void os_memory_pressure_at(const char *root, struct os_pressure *out)
{
    char path[PATH_BYTES + 64];
    struct strbuf text = STRBUF_INIT;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    const char *group = read_text(path, &text) ? strstr(strbuf_text(&text), "0::") : NULL;
    int len = group ? (int)strcspn(group + 3, "\n") : 0;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%.*s/memory.pressure", root, len, group ? group + 3 : "");
    if (!read_text(path, &text)) {
        snprintf(path, sizeof path, "%s/proc/pressure/memory", root);
        read_text(path, &text);
    }
    *out = (struct os_pressure){find_share(&text, "some"), find_share(&text, "full")};
    strbuf_release(&text);
}

uint64_t os_heap_bytes(void)
{
    struct mallinfo2 heap = mallinfo2();
    return (uint64_t)heap.uordblks + (uint64_t)heap.hblkhd;
}

/* A mapping's line begins with its addresses, lines of numbers with a name: "Rss:   12 kB". */
uint64_t os_library_bytes(void)
{
    FILE *maps = fopen("/proc/self/smaps", "re");
    char line[512];
    bool library = false;
    uint64_t bytes = 0;
    while (maps && fgets(line, sizeof line, maps)) {
        const char *name = strchr(line, '/');
        if (strcspn(line, "-") < strcspn(line, ":")) library = name && strstr(name, ".so");
        if (library && !strncmp(line, "Rss:", 4)) bytes += strtoull(line + 4, NULL, 10) * 1024;
    }
    if (maps) fclose(maps);
    return bytes;
}

void os_give_back(void) { malloc_trim(0); }

size_t os_page_size(void)
{
    long n = sysconf(_SC_PAGESIZE);
    return n > 0 ? (size_t)n : 4096;
}

uint64_t os_page_round(uint64_t bytes)
{
    uint64_t page = os_page_size();
    return (bytes + page - 1) / page * page;
}
