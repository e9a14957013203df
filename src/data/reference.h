/* reference.h - log-probabilities of samples under the reference model, in a file of the run's folder.
 *
 *     struct reference_writer w;
 *     reference_begin(&w, path, fingerprint, &err);
 *     reference_add(&w, &(struct reference_entry){.key = key, .logp = {-3, -7}}, NULL, &err);
 *     reference_commit(&w, &err);                                  // or reference_abandon(&w)
 *
 *     struct reference *r;
 *     reference_open(path, fingerprint, &r, &err);
 *     if (reference_find(r, key, &entry, tokens, most)) use(entry.logp);
 *     reference_close(r);
 *
 * Samples are known by a hash of their tokens (objective_key), so order, epochs and ranks do not matter. An entry has the
 * log-probabilities of both rows and, for unpaired completions, the tokens of the other completion that its second row has.
 *
 * Nothing of the file is kept in memory: it ends with a table of entries by hash, and a lookup reads a few bytes of it. The
 * file appears whole or not at all. Little-endian.
 */
#pragma once

#include "base/file.h"

struct reference_entry {
    uint64_t key;
    float logp[2];
    int32_t count; /* of tokens */
};

struct reference_writer {
    struct file_atomic file;
    uint64_t fingerprint, entries, end; /* end: of the entries, in bytes */
};

enum plim_status reference_begin(struct reference_writer *w, const char *path, uint64_t fingerprint,
                                 struct plim_error *err);
/* `tokens` has entry->count numbers. */
enum plim_status reference_add(struct reference_writer *w, const struct reference_entry *entry,
                               const int32_t *tokens, struct plim_error *err);
enum plim_status reference_commit(struct reference_writer *w, struct plim_error *err);
void reference_abandon(struct reference_writer *w);

struct reference;

/* PLIM_NOT_FOUND: there is no such file, or it was made for another model or other data, or it is damaged. */
enum plim_status reference_open(const char *path, uint64_t fingerprint, struct reference **out,
                                struct plim_error *err);
void reference_close(struct reference *r);

/* Returns false if the sample is not there. Writes up to `most` tokens; entry->count says how many there are. */
bool reference_find(const struct reference *r, uint64_t key, struct reference_entry *entry, int32_t *tokens,
                    int32_t most);
