/* holders.h - the processes that hold a memory: those the device's driver lists, else the machine's largest.
 *
 *     struct holder list[HOLDERS_MAX];
 *     int n = holders_of(&state.now, os_machine_root(), list);      // the largest first
 *
 * A driver outside the container lists processes of another name space; these have a number but no name.
 */
#pragma once

#include "base/json.h"
#include "watch/readers.h"

enum { HOLDERS_MAX = 8 };

struct holder {
    int pid;
    char name[32];
    int64_t bytes;
    bool ours;
};

int holders_of(const struct watch_reading *reading, const char *root, struct holder out[HOLDERS_MAX]);

void holders_json(const struct holder *list, int count, struct json_writer *w, const char *key);
/* "python3 (4711) 12.3 GiB, this process 1.20 GiB" */
void holders_text(const struct holder *list, int count, struct strbuf *out);
