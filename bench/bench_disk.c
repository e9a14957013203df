/* bench_disk.c - what the disk under a folder gives, beside which the disk tier of a run is held (bench/disk.py).
 *
 *     bench_disk FOLDER BYTES DEPTH PIECE SECONDS
 *
 * Writes a file of so many bytes without a name, past the page cache where the file system allows it, and prints GB/s of
 * reading and writing by turns, of reading and of writing, with DEPTH pieces of PIECE bytes under way. */
#define _GNU_SOURCE
#include "exec/disk_speed.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int open_file(const char *folder, uint64_t bytes)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/.bench-disk-XXXXXX", folder);
    int plain = mkstemp(path);
    if (plain < 0) return -1;
    int direct = open(path, O_RDWR | O_DIRECT);
    unlink(path);
    if (posix_fallocate(plain, 0, (off_t)bytes)) return -1;
    if (direct >= 0) close(plain);
    return direct >= 0 ? direct : plain;
}

int main(int argc, char **argv)
{
    if (argc != 6) return fprintf(stderr, "usage: bench_disk FOLDER BYTES DEPTH PIECE SECONDS\n"), 2;
    size_t piece = (size_t)strtoull(argv[4], NULL, 10);
    uint64_t bytes = strtoull(argv[2], NULL, 10) / piece * piece;
    int depth = atoi(argv[3]);
    double seconds = atof(argv[5]), rate[3] = {0}, fill = 0;
    struct plim_error err = {0};
    int fd = open_file(argv[1], bytes);
    if (fd < 0 || !bytes) return perror(argv[1]), 1;
    /* Every block once, so that none is still to be made. */
    enum plim_status status = PLIM_OK;
    for (uint64_t at = 0; at < bytes && status == PLIM_OK;) {
        double slice = 0.25;
        status = disk_speed_rung(fd, bytes, depth, piece, DISK_WRITES, slice, &fill, &err);
        at += (uint64_t)(fill * slice);
    }
    for (int mix = 0; mix < 3 && status == PLIM_OK; mix++)
        status = disk_speed_rung(fd, bytes, depth, piece, (enum disk_mix)mix, seconds, &rate[mix], &err);
    if (status != PLIM_OK) return fprintf(stderr, "bench_disk: %s\n", err.text), 1;
    printf("{\"mixed\": %.3f, \"read\": %.3f, \"write\": %.3f}\n", 1e-9 * rate[0], 1e-9 * rate[1],
           1e-9 * rate[2]);
    close(fd);
    return 0;
}
