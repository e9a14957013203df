/* train_folder.h - what a run leaves in its folder for those who watch it: log.jsonl, its events, and plan.json, the plan it
 * holds (watch/run_log.h says who reads them).
 *
 *     struct train_folder folder = {0};
 *     train_folder_event(&folder, line, len);                             // waits in memory until the run begins
 *     train_folder_begin(&folder, "runs/small", resume, log_or_null);     // weights are there; a run that is refused leaves nothing
 *     train_folder_plan(&folder, plan, &facts);                           // and again after each re-plan
 *     train_folder_close(&folder);
 *
 * Training goes on whatever becomes of these files: what cannot be written is told once, on stderr unless `told` is set, and left out
 * from then on.
 * Nothing is synced, so no step waits for a disk.
 */
#ifndef PLIM_CLI_TRAIN_FOLDER_H
#define PLIM_CLI_TRAIN_FOLDER_H

#include "base/strbuf.h"
#include "plan/plan.h"
#include <stdio.h>

struct train_folder {
    const char *path;    /* NULL: there is none */
    FILE *log;           /* NULL: not open, or given up */
    bool told;           /* that something could not be written, or nobody wants to know */
    bool begun;          /* until then events are `early` */
    struct strbuf early; /* lines */
};

/* `path` is NULL for a run without a folder. `other` is the file of --log, or NULL: where it is the run's own log, that is
 * written once. */
void train_folder_begin(struct train_folder *folder, const char *path, bool append, FILE *other);
void train_folder_event(struct train_folder *folder, const char *line, size_t len);
void train_folder_plan(struct train_folder *folder, const struct plan *plan,
                       const struct device_facts *facts);
void train_folder_close(struct train_folder *folder);

#endif
