/* os_processes.h - who else has the machine's memory.
 *
 *     struct os_holder list[8];
 *     int n = os_largest("", list, 8);                   // the largest first, this process included
 *
 * What is resident counts, pages shared with others in full. Reads a file for every process: for a report, not for a step.
 */
#pragma once

#include <stdint.h>

struct os_holder {
    int pid;
    char name[32]; /* as the system lists it; empty: it does not say */
    uint64_t bytes;
};

/* At most `most` of them, with every path below `root`; their number. */
int os_largest(const char *root, struct os_holder *out, int most);

/* The name of one process; empty when it is another name space's. */
void os_process_name(const char *root, int pid, char *out, int size);
