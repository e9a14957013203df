/* os_processes.c - see os_processes.h. */
#include "mem/os_processes.h"
#include "mem/os.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The first line of a file of a process; empty when it cannot be read. */
static void first_line(const char *root, int pid, const char *file, char *out, int size)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/proc/%d/%s", root, pid, file);
    FILE *f = fopen(path, "re");
    if (!f || !fgets(out, size, f)) *out = '\0';
    if (f) fclose(f);
    out[strcspn(out, "\n")] = '\0';
}

void os_process_name(const char *root, int pid, char *out, int size)
{
    first_line(root, pid, "comm", out, size);
}

/* The second number of statm is what is resident, in pages. */
static uint64_t resident(const char *root, int pid)
{
    char line[128];
    first_line(root, pid, "statm", line, sizeof line);
    const char *second = strchr(line, ' ');
    return second ? strtoull(second, NULL, 10) * os_page_size() : 0;
}

/* Keeps the list sorted, the largest first. */
static int insert(struct os_holder *list, int count, int most, int pid, uint64_t bytes)
{
    int at = count;
    while (at > 0 && list[at - 1].bytes < bytes) at--;
    if (at >= most) return count;
    int moved = (count < most ? count : most - 1) - at;
    memmove(&list[at + 1], &list[at], (size_t)moved * sizeof *list);
    list[at] = (struct os_holder){.pid = pid, .bytes = bytes};
    return count < most ? count + 1 : most;
}

int os_largest(const char *root, struct os_holder *out, int most)
{
    char path[4200];
    int count = 0;
    snprintf(path, sizeof path, "%s/proc", root);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        int pid = atoi(entry->d_name);
        uint64_t bytes = pid > 0 ? resident(root, pid) : 0;
        if (bytes) count = insert(out, count, most, pid, bytes);
    }
    if (folder) closedir(folder);
    for (int i = 0; i < count; i++) os_process_name(root, out[i].pid, out[i].name, sizeof out[i].name);
    return count;
}
