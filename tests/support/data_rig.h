/* data_rig.h - data files in a folder of their own, and loaders over them, for tests. */
#ifndef PLIM_TEST_DATA_RIG_H
#define PLIM_TEST_DATA_RIG_H

#include "data/loader.h"

struct data_rig {
    char folder[64];
    struct codec codec; /* bytes, unless the test opens another */
};

void data_rig_open(struct data_rig *rig);
void data_rig_close(struct data_rig *rig); /* removes the folder */
/* A file in the folder; returns its path, good until the next call but seven. */
const char *data_rig_path(const struct data_rig *rig, const char *name);
void data_rig_write(const struct data_rig *rig, const char *name, const void *bytes, size_t n);
void data_rig_text(const struct data_rig *rig, const char *name, const char *text);
void data_rig_gzip(const struct data_rig *rig, const char *name, const char *text);
void data_rig_zstd(const struct data_rig *rig, const char *name, const char *text);

/* n lines {"id":i,"text":"..."} whose text begins with the number, of 1 to `longest` bytes more. Caller frees. */
char *data_rig_lines(int n, int longest);

/* Options with what tests want by default; then the dataset, which must open. */
struct data_options data_rig_options(const char *const *paths, int count, int64_t time);
struct dataset *data_rig_dataset(struct data_rig *rig, const struct data_options *options);
struct loader *data_rig_loader(struct dataset *data, const struct loader_options *options);

/* A window of n rows into arrays of [n, T]; the number of targets. *got: rows there were; NULL: all must be. */
int64_t data_rig_take(struct loader *loader, int64_t n, int32_t *ids, int32_t *targets, int32_t *pos,
                      int64_t *got);

#endif
