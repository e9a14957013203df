/* os_groups.h - the control groups (cgroup v1 and v2) that this process is in: what limits its memory, how much it waits.
 *
 *     struct os_groups groups;
 *     os_groups_find("", &groups);                       // where groups are mounted: once, for it stays
 *     os_groups_limit(&groups, &box);                    // now: the tightest limit on the way up, and what it leaves
 *     os_groups_pressure(&groups, &text);
 *
 * A machine has groups of version 1, each controller in a tree of its own, of version 2, one tree for all, or both beside each
 * other (hybrid: then memory is counted in one of them, and the other has no such files). Mounts are taken from
 * /proc/self/mountinfo; a machine made of files may leave it out and has them at their usual places. In which group the
 * process is, /proc/self/cgroup is asked each time: a process may be moved.
 *
 * Limits of groups above the process's count, too: those that are mounted are read one by one, and version 1 tells in a group
 * what limits it from above, as in a container that sees nothing but its own part of the tree.
 */
#pragma once

#include "base/strbuf.h"
#include "mem/os.h"

enum { OS_GROUP_PATH = 256 };

struct os_group_mount {
    char at[OS_GROUP_PATH];  /* the folder that it is mounted at; empty: there is none */
    char top[OS_GROUP_PATH]; /* the group that this folder is; empty: the root */
};

struct os_groups {
    const char *root; /* every path is below it; borrowed */
    struct os_group_mount v1, v2;
};

void os_groups_find(const char *root, struct os_groups *out);

/* Lowers what the machine has and leaves to what the groups do. */
void os_groups_limit(const struct os_groups *groups, struct os_machine *box);

/* The text of the v2 group's memory.pressure; false: there is none. */
bool os_groups_pressure(const struct os_groups *groups, struct strbuf *text);
