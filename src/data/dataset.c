/* dataset.c - see dataset.h. */
#include "data/dataset.h"
#include "base/file.h"
#include "data/order.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct text_file {
    char *path;
    int fd;
    int64_t bytes;
    int64_t first_row; /* of this file in the whole */
};

struct dataset {
    struct text_file *files;
    int count;
    int64_t rows, time;
    unsigned char *window; /* [T+1] */
};

static enum plim_status open_file(struct text_file *file, const char *path, struct plim_error *err)
{
    struct stat st;
    file->fd = open(path, O_RDONLY | O_CLOEXEC);
    if (file->fd < 0)
        return plim_fail(err, PLIM_BAD_INPUT, "%s: cannot open the data file: %s; check data.train", path,
                         strerror(errno));
    file->path = strdup(path);
    if (!file->path) return plim_fail(err, PLIM_NO_MEMORY, "out of memory while data files were opened");
    if (fstat(file->fd, &st) || !S_ISREG(st.st_mode))
        return plim_fail(err, PLIM_BAD_INPUT, "%s: is not a regular file; give text files in data.train",
                         path);
    if (st.st_size < 2)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: the data file is empty; give a file with at least two bytes of text", path);
    file->bytes = st.st_size;
    return PLIM_OK;
}

enum plim_status dataset_open(const char *const *paths, int count, int64_t time, struct dataset **out,
                              struct plim_error *err)
{
    if (count < 1)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "data.train: no file is given; write e.g. data: {train: [corpus.txt]}");
    struct dataset *data = calloc(1, sizeof *data);
    if (data)
        data->files = calloc((size_t)count, sizeof *data->files), data->window = malloc((size_t)time + 1);
    if (!data || !data->files || !data->window) {
        dataset_close(data);
        return plim_fail(err, PLIM_NO_MEMORY, "out of memory while data files were opened");
    }
    data->time = time;
    for (int i = 0; i < count; i++) data->files[i].fd = -1;
    data->count = count;
    for (int i = 0; i < count; i++) {
        enum plim_status status = open_file(&data->files[i], paths[i], err);
        if (status != PLIM_OK) {
            dataset_close(data);
            return status;
        }
        data->files[i].first_row = data->rows;
        data->rows += (data->files[i].bytes - 1 + time - 1) / time;
    }
    *out = data;
    return PLIM_OK;
}

void dataset_close(struct dataset *data)
{
    if (!data) return;
    for (int i = 0; i < data->count; i++) {
        if (data->files[i].fd >= 0) close(data->files[i].fd);
        free(data->files[i].path);
    }
    free(data->files);
    free(data->window);
    free(data);
}

int64_t dataset_rows(const struct dataset *data) { return data->rows; }
int64_t dataset_time(const struct dataset *data) { return data->time; }

/* The file that holds a row, and how many targets of the row count. */
static const struct text_file *locate(const struct dataset *data, int64_t index, int64_t *offset,
                                      int64_t *tokens)
{
    int low = 0, high = data->count - 1;
    while (low < high) {
        int mid = (low + high + 1) / 2;
        if (data->files[mid].first_row <= index)
            low = mid;
        else
            high = mid - 1;
    }
    const struct text_file *file = &data->files[low];
    *offset = (index - file->first_row) * data->time;
    int64_t left = file->bytes - 1 - *offset;
    *tokens = left < data->time ? left : data->time;
    return file;
}

enum plim_status dataset_row(struct dataset *data, int64_t index, int32_t *ids, int32_t *targets,
                             int32_t *pos, int64_t *tokens, struct plim_error *err)
{
    int64_t offset;
    const struct text_file *file = locate(data, index, &offset, tokens);
    enum plim_status status =
        file_pread_full(file->fd, data->window, (size_t)*tokens + 1, (uint64_t)offset, file->path, err);
    if (status != PLIM_OK) return status;
    for (int64_t t = 0; t < data->time; t++) {
        ids[t] = t < *tokens ? data->window[t] : 0;
        targets[t] = t < *tokens ? data->window[t + 1] : -1;
        pos[t] = (int32_t)t;
    }
    return PLIM_OK;
}

static int64_t row_at(const struct loader *loader, uint64_t position)
{
    uint64_t n = (uint64_t)loader->data->rows;
    if (loader->in_order) return (int64_t)(position % n);
    return (int64_t)order_sample(loader->seed, position / n, position % n, n);
}

enum plim_status loader_fill(struct loader *loader, int64_t rows, int32_t *ids, int32_t *targets,
                             int32_t *pos, int64_t *tokens, struct plim_error *err)
{
    int64_t time = loader->data->time;
    *tokens = 0;
    for (int64_t r = 0; r < rows; r++) {
        int64_t counted;
        enum plim_status status = dataset_row(loader->data, row_at(loader, loader->position), ids + r * time,
                                              targets + r * time, pos + r * time, &counted, err);
        if (status != PLIM_OK) return status;
        *tokens += counted;
        loader->position++;
    }
    return PLIM_OK;
}

int64_t loader_tokens_ahead(const struct loader *loader, int64_t rows)
{
    int64_t sum = 0, offset, tokens;
    for (int64_t r = 0; r < rows; r++) {
        locate(loader->data, row_at(loader, loader->position + (uint64_t)r), &offset, &tokens);
        sum += tokens;
    }
    return sum;
}
