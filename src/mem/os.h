/* os.h - what the operating system says about memory.
 *
 *     struct os_process me;
 *     os_process_memory(&me, &err);                      // me.rss, me.peak in bytes
 *     struct os_machine box;
 *     os_machine_memory(&box, &err);                     // box.available: what we may still take
 *
 * A container's limit (cgroup v1 or v2, the tightest on the way up; os_groups.h) counts as the machine's total, and memory
 * already used inside it, less file cache the kernel can drop, is subtracted from what is available.
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct os_process {
    uint64_t rss;  /* resident now: VmRSS                                  */
    uint64_t peak; /* most ever resident, or since the last reset: VmHWM   */
    uint64_t file; /* of rss, pages of mapped files and shared memory      */
};

enum { OS_RULE = 160 };

struct os_machine {
    uint64_t total;     /* physical memory, or the container's limit when that is less   */
    uint64_t available; /* what can be taken without swapping or being killed            */
    bool limited;       /* total is a container's limit                                  */
    char rule[OS_RULE]; /* the file whose limit leaves least; empty: the machine does    */
};

/* Total bytes that this process may use, including what it already holds, and the rule that limits it. */
struct os_allowance {
    uint64_t bytes;     /* in all                                        */
    uint64_t total;     /* what the machine has, or the container's limit */
    bool limited;       /* by a container                                */
    char rule[OS_RULE]; /* as in os_machine                              */
};

/* Shares of the last ten seconds, in per cent, in which some or all tasks waited for memory (PSI). */
struct os_pressure {
    double some, full;
};

enum plim_status os_process_memory(struct os_process *out, struct plim_error *err);

/* Resident bytes, counted page by page. The numbers above are the kernel's running sums, which each CPU updates only
 * now and then; they can be some hundred KiB off. Too slow to call in every step. 0: unknown. */
uint64_t os_process_counted(void);

/* Touches all code and constants of the program and of small libraries. Otherwise their resident pages depend on the
 * loader and vary by half a MiB between starts, so that `train` could refuse what `plan` granted. A long run needs
 * nearly all of them in the end. */
void os_touch_code(void);

/* Gives the pages of a loaded library's code and constants back to the system; those that are used again come from its file. */
void os_drop_code(const char *library);

/* Resident bytes of the program and its libraries after os_touch_code: code, constants and initialised data. They
 * depend only on the files, so they are equal in all processes that load the same ones. */
uint64_t os_code_bytes(void);

/* Let VmHWM start again from the present RSS. PLIM_UNSUPPORTED where the kernel does not allow it. */
enum plim_status os_reset_peak(struct plim_error *err);

/* PLIMSOLL_MACHINE in the environment names a folder to read /proc and /sys below, for tests of other machines. */
enum plim_status os_machine_memory(struct os_machine *out, struct plim_error *err);

/* The limit that every command uses: the tightest of the machine and of all control groups above this process, less
 * other processes' use. */
enum plim_status os_allowance(struct os_allowance *out, struct plim_error *err);

struct os_groups;

/* os_machine_memory with every path below `root` ("" for the real machine), so that tests can present other machines.
 * Callers that ask often pass `groups` from os_groups_find; NULL: it is looked up. */
enum plim_status os_machine_memory_at(const char *root, const struct os_groups *groups,
                                      struct os_machine *out, struct plim_error *err);

/* The folder that PLIMSOLL_MACHINE names, "" when it does not. */
const char *os_machine_root(void);
/* Sets a folder to use as /, with proc and sys below it, so that tests can present other machines. Call it before
 * starting threads. */
void os_set_machine_root(const char *root);

/* Memory pressure of this process's control group or, without one, of the machine; zeros where the system reports
 * none. `groups` as above. */
void os_memory_pressure_at(const char *root, const struct os_groups *groups, struct os_pressure *out);

/* Bytes allocated from the C library and not freed; 0: not counted. */
uint64_t os_heap_bytes(void);

/* Resident pages of libraries. Reads the list of all mappings, which takes milliseconds: not for every step. */
uint64_t os_library_bytes(void);

/* Gives free pages of the C library back to the system. */
void os_give_back(void);
/* Does so in any program: only for a caller who asked for it. */
void os_trim_heap(void);
/* Declares that the heap is this program's own; without this call os_give_back does nothing. Call it before starting
 * threads. */
void os_own_heap(void);

size_t os_page_size(void);

/* Bytes rounded up to whole pages. */
uint64_t os_page_round(uint64_t bytes);
