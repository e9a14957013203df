/* fuzz_gguf.c - any bytes as a GGUF file: opened and read, or refused with a line. */
#include "store/gguf.h"

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
    char path[] = "/tmp/fuzz-gguf-XXXXXX";
    int fd = mkstemp(path);
    if (fd < 0) return 0;
    struct gguf *file = NULL;
    struct plim_error err = {0};
    bool written = write(fd, data, size) == (ssize_t)size;
    close(fd);
    if (written && gguf_open(path, &file, &err) == PLIM_OK)
        for (size_t i = 0; gguf_at(file, i); i++) gguf_read(file, gguf_at(file, i), DT_F32, drop, NULL, &err);
    gguf_close(file);
    unlink(path);
    return 0;
}
