/* fuzz_token_file.c - any bytes as a token file: opened and read, or refused with a line. The first byte says which
 * checksums are mended before, so that what lies behind them is reached. */
#include "base/hash.h"
#include "store/token_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void mend(uint8_t *file, size_t size, unsigned what)
{
    struct token_file_header h;
    if (size < sizeof h) return;
    memcpy(&h, file, sizeof h);
    if (what & 1) h.file_bytes = size;
    uint64_t chunks = h.sums_at >= TOKEN_FILE_HEADER && h.sums_at < size ? (size - h.sums_at) / 8 : 0;
    for (uint64_t c = 0; what & 2 && c < chunks; c++) {
        uint64_t from = TOKEN_FILE_HEADER + c * TOKEN_FILE_CHUNK;
        if (from >= h.sums_at) break;
        uint64_t left = h.sums_at - from, n = left < TOKEN_FILE_CHUNK ? left : TOKEN_FILE_CHUNK;
        uint64_t sum = hash64(file + from, (size_t)n, c);
        memcpy(file + h.sums_at + 8 * c, &sum, 8);
    }
    if (what & 2 && chunks) h.sums_hash = hash64(file + h.sums_at, (size_t)chunks * 8, 0);
    if (what & 4) h.header_hash = token_file_header_hash(&h);
    memcpy(file, &h, sizeof h);
}

static void use(const char *path)
{
    struct token_file *f;
    struct plim_error err = {0};
    if (token_file_open(path, &f, &err) != PLIM_OK) {
        if (!err.text[0]) abort();
        return;
    }
    int32_t tokens[64];
    const struct token_file_header *h = token_file_header(f);
    for (uint64_t i = 0; i < h->samples && i < 100; i++) {
        uint64_t first, count, targets;
        if (token_file_sample(f, i, &first, &count, &err) != PLIM_OK) break;
        size_t n = count < 64 ? (size_t)count : 64;
        if (token_file_read(f, first, n, tokens, &err) != PLIM_OK) break;
        if (token_file_targets(f, first, n, &targets, &err) == PLIM_OK && targets > n) abort();
    }
    token_file_verify(f, &err);
    token_file_close(f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[] = "/tmp/fuzz-token-file-XXXXXX";
    if (size < 1) return 0;
    uint8_t *copy = malloc(size);
    int fd = mkstemp(path);
    if (copy && fd >= 0) {
        memcpy(copy, data, size);
        mend(copy + 1, size - 1, copy[0]);
        bool written = write(fd, copy + 1, size - 1) == (ssize_t)(size - 1);
        close(fd);
        if (written) use(path);
        unlink(path);
    }
    free(copy);
    return 0;
}
