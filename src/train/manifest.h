/* manifest.h - manifest.json: the checksums of a checkpoint's files, and the settings that determined it.
 *
 *     {"format": 1, "step": 120, "now": null, "machine": "...",
 *      "knobs": {...},                                        the plan's, as `plan --json` names them
 *      "run": {"training.seed": "7", ...},                    run_facts.h
 *      "files": {"model.safetensors": {"bytes": 1048, "checksum": "0123456789abcdef"}, ...},
 *      "checksum": "..."}                                     of all bytes before this key and its comma
 *
 * Saving: the checksums of large files are taken while they are written, those of small ones afterwards.
 *
 *     struct manifest_files files = {0};
 *     manifest_add(&files, "model.safetensors", bytes, checksum);
 *     manifest_add_file(&files, dir, "tokenizer.json", &err);
 *     manifest_write(dir, &about, &files, &err);
 *     manifest_files_release(&files);
 *
 * Reading refuses a manifest that was changed; checking reads the files it lists. Both name what is damaged.
 *
 *     struct doc *manifest;
 *     manifest_read(dir, &manifest, &err);                  // NULL: the checkpoint has none
 *     manifest_check(dir, manifest, MANIFEST_WEIGHTS, rank, ranks, &err);
 */
#pragma once

#include "base/node.h"
#include "base/status.h"
#include "plan/knobs.h"

enum { MANIFEST_FORMAT = 1, MANIFEST_NAME = 40 };

/* Starts as {0}. */
struct manifest_files {
    struct manifest_file {
        char name[MANIFEST_NAME]; /* below the checkpoint's folder */
        uint64_t bytes, checksum;
    } * file;
    int count, cap;
    bool failed; /* out of memory: manifest_write reports it */
};

struct manifest_about {
    int64_t step;
    int64_t now;         /* time for strftime_now in this run's templates, in seconds since 1970; 0: unused */
    const char *machine; /* the device, for people */
    const struct knobs *knobs;
    const struct node *run; /* a map of texts */
};

void manifest_files_release(struct manifest_files *files);
void manifest_add(struct manifest_files *files, const char *name, uint64_t bytes, uint64_t checksum);
/* Adds nothing if the file does not exist. */
enum plim_status manifest_add_file(struct manifest_files *files, const char *dir, const char *name,
                                   struct plim_error *err);

/* Writes dir/manifest.json. */
enum plim_status manifest_write(const char *dir, const struct manifest_about *about,
                                const struct manifest_files *files, struct plim_error *err);

/* *out is NULL, with PLIM_OK, if the folder has no manifest. PLIM_BAD_INPUT: it is damaged or of a later
 * format. */
enum plim_status manifest_read(const char *dir, struct doc **out, struct plim_error *err);

/* The files to check. */
enum manifest_part {
    MANIFEST_WEIGHTS = 1, /* needed for generation: all but state/ */
    MANIFEST_STATE = 2,
};

/* PLIM_BAD_INPUT names the first file that is missing or has another size or content. Each rank checks its
 * share. */
enum plim_status manifest_check(const char *dir, const struct doc *manifest, unsigned parts, int rank,
                                int ranks, struct plim_error *err);
