/* disk_line.h - compares a run's need of disk space with the free space where it writes.
 *
 *     struct disk_line line;
 *     disk_line_of(&job, &length, &plan, checkpoint_count(job.output_dir), &line);
 *     disk_line_check(&line, &job, &err);                // before the first step: a full disk is found now
 *
 * output.dir holds the disk tier, from the first step to the last, and the checkpoints: those that are kept, and one more
 * while it is written. New checkpoints replace existing ones.
 */
#pragma once

#include "job/job.h"

struct disk_line {
    int64_t tier;        /* bytes of offloaded tensors */
    int64_t checkpoint;  /* bytes of one */
    int64_t checkpoints; /* how many more at once than exist now */
    int64_t total;       /* of all that */
    int64_t free;        /* bytes that can be written below output.dir; -1: unknown */
    /* Free bytes of output.disk_dir if it is another folder (its bytes are then not in total); else -1. */
    int64_t tier_free;
};

/* For a plan on this machine. `there`: checkpoints in output.dir now. */
void disk_line_of(const struct job *job, const struct job_length *length, const struct plan *plan,
                  int64_t there, struct disk_line *out);

bool disk_line_held(const struct disk_line *line);

/* "12.3 MiB of disk (4.00 MiB of tensors, 3 checkpoints of 2.77 MiB), 1.00 MiB free" */
void disk_line_text(const struct disk_line *line, struct strbuf *out);

/* PLIM_NO_FIT names the missing bytes and a remedy. */
enum plim_status disk_line_check(const struct disk_line *line, const struct job *job, struct plim_error *err);
