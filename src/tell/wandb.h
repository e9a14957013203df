/* wandb.h - writes a run's folder in the offline format of Weights & Biases; `wandb sync` uploads it, Plimsoll never does.
 *
 *     struct wandb run = WANDB_NONE;
 *     wandb_open(&run, &(struct wandb_options){.folder = "runs/job/wandb", .job = job, .project = "plimsoll"}, &err);
 *     wandb_add(&run, 12, &measures, &err);              // numbers of one step, in one call or in several
 *     wandb_end(&run, exit_code, &err);                  // last row, summary, exit
 *     wandb_close(&run);
 *
 * Creates folder/offline-run-DATE_TIME-ID with run-ID.wandb (a log of protobuf records), files/config.yaml,
 * files/wandb-metadata.json and, at the end, files/wandb-summary.json. A resumed run reuses the ID of the newest run in the
 * folder, and the server joins both. All errors are PLIM_IO or PLIM_NO_MEMORY.
 */
#pragma once

#include "tell/growing_file.h"
#include "tell/measures.h"

enum { WANDB_ID = 9 };

struct wandb {
    struct growing_file file;
    char folder[512]; /* of this part of the run; empty: none */
    char id[WANDB_ID];
    int64_t records;
    double started;
    struct measures row; /* of row_step, not written yet */
    int64_t row_step;
    struct measures last; /* the latest value of every name */
    int64_t last_step;
    struct strbuf record, inner, item, framed; /* kept between calls */
};

#define WANDB_NONE                                                                                           \
    {                                                                                                        \
        .file = {.fd = -1 }                                                                                  \
    }

struct wandb_options {
    const char *folder; /* the folder of all runs */
    const struct job *job;
    const struct job_length *length;
    const char *name, *project, *device;
    int64_t step; /* steps done before */
    bool resumed;
};

enum plim_status wandb_open(struct wandb *run, const struct wandb_options *options, struct plim_error *err);
enum plim_status wandb_add(struct wandb *run, int64_t step, const struct measures *measures,
                           struct plim_error *err);
enum plim_status wandb_end(struct wandb *run, int exit_code, struct plim_error *err);
void wandb_close(struct wandb *run);
