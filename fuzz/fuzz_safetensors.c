/* fuzz_safetensors.c - any bytes as a weight file: opened and read, or refused with a line. */
#include "store/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static enum plim_status drop(void *arg, int64_t first, const void *elements, int64_t n,
                             struct plim_error *err)
{
    (void)arg, (void)first, (void)elements, (void)n, (void)err;
    return PLIM_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[] = "/tmp/fuzz-safetensors-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) return 0;
    struct safetensors set;
    struct plim_error err = {0};
    bool written = write(fd, data, size) == (ssize_t)size;
    close(fd);
    if (written && safetensors_open(path, &set, &err) == PLIM_OK) {
        for (size_t i = 0; i < set.count; i++)
            safetensors_read(&set, &set.tensors[i], DT_F32, drop, NULL, &err);
        safetensors_close(&set);
    }
    unlink(path);
    return 0;
}
