/* bench_checksum - MB/s of the checksum over what lies in a cache, over what lies in memory, and of a file in the page
 * cache: what saving and checking a checkpoint cost beside the disk. */
#include "base/checksum.h"
#include "base/clock.h"
#include "base/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALL = 64 << 10, LARGE = 256 << 20 };

static double in_memory(const char *bytes, size_t n, uint64_t *keep)
{
    double begin = clock_seconds(), took = 0;
    size_t done = 0;
    while (took < 0.5) {
        struct checksum sum;
        checksum_begin(&sum, 0);
        for (int i = 0; i < 16; i++) checksum_add(&sum, bytes, n), done += n;
        *keep ^= checksum_end(&sum);
        took = clock_seconds() - begin;
    }
    return (double)done / took / 1e6;
}

int main(void)
{
    uint64_t keep = 0, value, size;
    struct plim_error err = {0};
    const char *path = "bench_checksum.tmp";
    char *bytes = malloc(LARGE);
    if (!bytes) return 4;
    for (size_t i = 0; i < LARGE; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    printf("%-24s %10.0f MB/s\n", "in the cache", in_memory(bytes, SMALL, &keep));
    printf("%-24s %10.0f MB/s\n", "in memory", in_memory(bytes, LARGE / 16, &keep));
    if (file_write_atomic(path, bytes, LARGE, &err) != PLIM_OK) {
        fprintf(stderr, "bench_checksum: %s\n", err.text);
        return 2;
    }
    double begin = clock_seconds();
    checksum_file(path, &value, &size, &err);
    printf("%-24s %10.0f MB/s\n", "a file, page cache", (double)size / (clock_seconds() - begin) / 1e6);
    printf("%016llx\n", (unsigned long long)(keep ^ value)); /* the work is not optimised away */
    unlink(path);
    free(bytes);
    return 0;
}
