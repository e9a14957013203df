/* replay.c - a main for a fuzz target without libFuzzer: every file on the command line is fed to it once. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The whole file in memory of exactly its size, so that a sanitizer sees a read beyond the end. */
static uint8_t *read_all(const char *path, size_t *size)
{
    FILE *f = fopen(path, "rb");
    uint8_t *data = NULL;
    long end = -1;
    if (f && fseek(f, 0, SEEK_END) == 0 && (end = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0)
        data = malloc(end ? (size_t)end : 1);
    if (data && fread(data, 1, (size_t)end, f) != (size_t)end) {
        free(data);
        data = NULL;
    }
    if (f) fclose(f);
    *size = end > 0 ? (size_t)end : 0;
    return data;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        size_t size;
        uint8_t *data = read_all(argv[i], &size);
        if (!data) return fprintf(stderr, "%s: cannot be read\n", argv[i]), 1;
        fprintf(stderr, "%s\n", argv[i]); /* the last line names the file that broke it */
        LLVMFuzzerTestOneInput(data, size);
        free(data);
    }
    return 0;
}
