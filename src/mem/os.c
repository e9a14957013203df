/* os.c - reading /proc. See os.h. */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "mem/os.h"
#include "base/strbuf.h"
#include "mem/os_groups.h"
#include "mem/os_text.h"
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SMALL_PART = 4 << 20 }; /* of libc and libm all are; those of CUDA are not */

enum plim_status os_process_memory(struct os_process *out, struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    uint64_t rss, peak, file = 0, shared = 0;
    enum plim_status status = PLIM_OK;
    os_text_read("", "/proc/self/status", &text);
    os_text_find(&text, "RssFile:", &file);
    os_text_find(&text, "RssShmem:", &shared);
    if (os_text_find(&text, "VmRSS:", &rss) && os_text_find(&text, "VmHWM:", &peak))
        *out = (struct os_process){.rss = rss * 1024, .peak = peak * 1024, .file = (file + shared) * 1024};
    else
        status = plim_fail(err, PLIM_UNSUPPORTED, "/proc/self/status: has no VmRSS and VmHWM");
    strbuf_release(&text);
    return status;
}

uint64_t os_process_counted(void)
{
    struct strbuf text = STRBUF_INIT;
    struct os_process sums = {0};
    uint64_t rss = 0;
    bool found = os_text_read("", "/proc/self/smaps_rollup", &text) && os_text_find(&text, "Rss:", &rss);
    strbuf_release(&text);
    if (found) return rss * 1024;
    os_process_memory(&sums, NULL);
    return sums.rss;
}

/* Constants lie between redzones, which AddressSanitizer lets nobody read. */
__attribute__((no_sanitize("address"))) static void touch(uintptr_t at) { (void)*(const volatile char *)at; }

/* Is this part of an object brought in whole? What a card computes with lies among constants, too. */
static bool is_touched(const struct dl_phdr_info *object, const ElfW(Phdr) * part)
{
    bool program = !object->dlpi_name || !object->dlpi_name[0];
    bool own_code = program && (part->p_flags & PF_X);
    if (part->p_type != PT_LOAD || (part->p_flags & PF_W) || !(part->p_flags & PF_R)) return false;
    return part->p_memsz <= SMALL_PART || own_code;
}

/* One byte of each page of an object's code and constants. */
static int touch_object(struct dl_phdr_info *object, size_t size, void *arg)
{
    (void)size, (void)arg;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        for (size_t at = 0; is_touched(object, part) && at < part->p_memsz; at += os_page_size())
            touch(object->dlpi_addr + part->p_vaddr + at);
    }
    return 0;
}

void os_touch_code(void) { dl_iterate_phdr(touch_object, NULL); }

static int drop_object(struct dl_phdr_info *object, size_t size, void *library)
{
    (void)size;
    if (!object->dlpi_name || strcmp(object->dlpi_name, library) != 0) return 0;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        if (part->p_type != PT_LOAD || part->p_flags & PF_W) continue;
        uintptr_t begin = (uintptr_t)os_page_round(object->dlpi_addr + part->p_vaddr);
        uintptr_t end = (object->dlpi_addr + part->p_vaddr + part->p_memsz) / os_page_size() * os_page_size();
        if (end > begin) madvise((void *)begin, end - begin, MADV_DONTNEED);
    }
    return 1;
}

void os_drop_code(const char *library) { dl_iterate_phdr(drop_object, (void *)library); }

static int count_object(struct dl_phdr_info *object, size_t size, void *sum)
{
    (void)size;
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &object->dlpi_phdr[i];
        bool data = part->p_type == PT_LOAD && (part->p_flags & PF_W);
        uint64_t before = part->p_vaddr % os_page_size(); /* of its first page, that is not in it */
        if (data || is_touched(object, part))
            *(uint64_t *)sum += os_page_round(before + (data ? part->p_filesz : part->p_memsz));
    }
    return 0;
}

uint64_t os_code_bytes(void)
{
    uint64_t sum = 0;
    dl_iterate_phdr(count_object, &sum);
    return sum;
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

enum plim_status os_machine_memory_at(const char *root, const struct os_groups *groups,
                                      struct os_machine *out, struct plim_error *err)
{
    struct os_groups found;
    struct strbuf text = STRBUF_INIT;
    uint64_t total, available;
    enum plim_status status = PLIM_OK;
    if (!os_text_read(root, "/proc/meminfo", &text))
        status = plim_fail(err, PLIM_IO, "%s/proc/meminfo: cannot be read", root);
    else if (os_text_find(&text, "MemTotal:", &total) && os_text_find(&text, "MemAvailable:", &available))
        *out = (struct os_machine){.total = total * 1024, .available = available * 1024};
    else
        status = plim_fail(err, PLIM_UNSUPPORTED, "%s/proc/meminfo: has no MemTotal and MemAvailable", root);
    strbuf_release(&text);
    if (status == PLIM_OK && !groups) os_groups_find(root, &found), groups = &found;
    if (status == PLIM_OK) os_groups_limit(groups, out);
    return status;
}

/* Set once, before there are threads, by the program that owns the process. */
static const char *machine_root = "";
static bool owns_heap;

void os_set_machine_root(const char *root) { machine_root = root ? root : ""; }

const char *os_machine_root(void) { return machine_root; }

void os_own_heap(void) { owns_heap = true; }

enum plim_status os_machine_memory(struct os_machine *out, struct plim_error *err)
{
    return os_machine_memory_at(os_machine_root(), NULL, out, err);
}

enum plim_status os_allowance(struct os_allowance *out, struct plim_error *err)
{
    struct os_machine box;
    struct os_process me = {0};
    enum plim_status status = os_machine_memory(&box, err);
    if (status != PLIM_OK) return status;
    os_process_memory(&me, NULL);
    uint64_t bytes = box.available + me.rss;
    *out = (struct os_allowance){
        .bytes = bytes < box.total ? bytes : box.total, .total = box.total, .limited = box.limited};
    memcpy(out->rule, box.rule, sizeof out->rule);
    return PLIM_OK;
}

/* "some avg10=1.25 avg60=..." */
static double find_share(const struct strbuf *text, const char *kind)
{
    const char *line = strstr(strbuf_text(text), kind), *share = line ? strstr(line, "avg10=") : NULL;
    return share ? strtod(share + strlen("avg10="), NULL) : 0;
}

void os_memory_pressure_at(const char *root, const struct os_groups *groups, struct os_pressure *out)
{
    struct os_groups found;
    struct strbuf text = STRBUF_INIT;
    if (!groups) os_groups_find(root, &found), groups = &found;
    if (!os_groups_pressure(groups, &text)) os_text_read(root, "/proc/pressure/memory", &text);
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

void os_give_back(void)
{
    if (owns_heap) malloc_trim(0);
}

void os_trim_heap(void) { malloc_trim(0); }

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
