/* train_folder.h - files that a run writes to its folder for observers: log.jsonl with its events, and plan.json with its
 * plan (watch/run_log.h reads them).
 *
 *     struct train_folder folder = {0};
 *     train_folder_event(&folder, line, len);                             // kept in memory until the run begins
 *     train_folder_begin(&folder, "runs/small", resume, log_or_null);     // weights are loaded; a refused run writes nothing
 *     train_folder_plan(&folder, plan, &facts);                           // and again after each re-plan
 *     train_folder_close(&folder);
 *
 * Training never depends on these files: a failed write is reported once, on stderr unless `told` is set, and the file is
 * then abandoned. Nothing is synced, so no step waits for a disk.
 */
#pragma once

#include "base/strbuf.h"
#include "plan/plan.h"
#include <stdio.h>

struct train_folder {
    const char *path;    /* NULL: no folder */
    FILE *log;           /* NULL: not open, or abandoned */
    bool told;           /* a failed write was reported, or should not be */
    bool begun;          /* until then events go to `early` */
    struct strbuf early; /* lines */
};

/* `path` is NULL for a run without a folder. `other` is the file of --log, or NULL; if it is the run's own
 * log, events are written once. */
void train_folder_begin(struct train_folder *folder, const char *path, bool append, FILE *other);
void train_folder_event(struct train_folder *folder, const char *line, size_t len);
void train_folder_plan(struct train_folder *folder, const struct plan *plan,
                       const struct device_facts *facts);
void train_folder_close(struct train_folder *folder);
