/* fuzz_gguf.c - any bytes as a GGUF file: opened and read, as a model and as a tokenizer too, or refused with a line. */
#include "model/weights_files.h"
#include "text/gguf_tokenizer.h"
#include "text/tokenizer.h"

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

static void read_model(const char *path)
{
    struct weights_files files;
    struct plim_error err = {0};
    if (weights_files_open(path, &files, &err) != PLIM_OK) return;
    for (size_t i = 0; i < files.count; i++)
        if (files.tensors[i].type != DT_COUNT)
            weights_files_read(&files, &files.tensors[i], DT_BF16, drop, NULL, &err);
    weights_files_close(&files);
}

static void read_tokenizer(const struct gguf *file)
{
    struct strbuf text = STRBUF_INIT;
    struct tokenizer *tokenizer = NULL;
    struct plim_error err = {0};
    if (gguf_tokenizer_write(file, &text, &err) == PLIM_OK)
        tokenizer_read(&text, "fuzz", NULL, &tokenizer, &err);
    tokenizer_free(tokenizer);
    strbuf_clear(&text);
    gguf_tokenizer_config_write(file, &text, &err);
    strbuf_release(&text);
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
    if (written && gguf_open(path, &file, &err) == PLIM_OK) {
        for (size_t i = 0; gguf_at(file, i); i++) gguf_read(file, gguf_at(file, i), DT_F32, drop, NULL, &err);
        read_tokenizer(file);
        read_model(path);
    }
    gguf_close(file);
    unlink(path);
    return 0;
}
