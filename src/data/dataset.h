/* dataset.h - text files as training rows: windows of T tokens and the token that follows each.
 *
 *     struct dataset *data;
 *     dataset_open(paths, count, 256, &data, &err);
 *     struct loader loader = {.data = data, .seed = 1};
 *     loader_fill(&loader, rows, ids, targets, pos, &tokens, &err);   // advances loader.position by rows
 *     dataset_close(data);
 *
 * The byte tokenizer: token = byte, vocabulary 256. Row i of a file is bytes [i*T, (i+1)*T); the last row may
 * be short and is padded with ignored targets (-1), so no text is lost. Files are read with pread when a row
 * is asked for: nothing is kept in memory. The order of rows is a pure function of seed and position, so a
 * run can go on from any position and the split into micro-batches does not change what is seen.
 */
#ifndef PLIM_DATA_DATASET_H
#define PLIM_DATA_DATASET_H

#include "base/status.h"
#include <stdbool.h>
#include <stdint.h>

struct dataset;

/* PLIM_BAD_INPUT names the file that is missing, empty or unreadable. */
enum plim_status dataset_open(const char *const *paths, int count, int64_t time, struct dataset **out,
                              struct plim_error *err);
void dataset_close(struct dataset *data);
int64_t dataset_rows(const struct dataset *data);
int64_t dataset_time(const struct dataset *data);

/* Row `index` into ids, targets, pos (each [T]); *tokens gets the number of targets that count. */
enum plim_status dataset_row(struct dataset *data, int64_t index, int32_t *ids, int32_t *targets,
                             int32_t *pos, int64_t *tokens, struct plim_error *err);

struct loader {
    struct dataset *data;
    uint64_t seed;
    uint64_t position; /* rows handed out since the beginning */
    bool in_order;     /* evaluation: file order instead of a shuffled one */
};

/* The next `rows` rows; *tokens is the number of targets that count among them. */
enum plim_status loader_fill(struct loader *loader, int64_t rows, int32_t *ids, int32_t *targets,
                             int32_t *pos, int64_t *tokens, struct plim_error *err);

/* Targets that count in `rows` rows from the present position, without reading them: the weight of a window.
 */
int64_t loader_tokens_ahead(const struct loader *loader, int64_t rows);

#endif
