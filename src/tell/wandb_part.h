/* wandb_part.h - the texts of a W&B folder, for wandb.c. */
#pragma once

#include "tell/wandb.h"

/* Called for every setting of a job: its dotted name, and its value as JSON. */
typedef void wandb_setting(void *arg, const char *name, const char *value_json);
enum plim_status wandb_settings(const struct wandb_options *options, wandb_setting *each, void *arg,
                                struct plim_error *err);

/* files/config.yaml and files/wandb-metadata.json; files/wandb-summary.json. */
enum plim_status wandb_write_facts(const struct wandb *run, const struct wandb_options *options,
                                   struct plim_error *err);
enum plim_status wandb_write_summary(const struct wandb *run, struct plim_error *err);

/* Creates a folder "offline-run-..." below options->folder; sets run->folder and run->id, and the link
 * latest-run. */
enum plim_status wandb_make_folder(struct wandb *run, const struct wandb_options *options,
                                   struct plim_error *err);
