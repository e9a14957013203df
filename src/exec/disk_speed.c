/* disk_speed.c - see disk_speed.h. The engine is the disk tier's own (disk_engine.h), without what is around it: the rate is
 * the one that the tier is to reach. */
#define _GNU_SOURCE
#include "exec/disk_speed.h"
#include "base/clock.h"
#include "device/calibration.h"
#include "exec/disk_engine.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statfs.h>
#include <unistd.h>

#define FILE_BYTES   ((uint64_t)32 << 20)
#define RUNG_SECONDS 0.12
#define GOOD_ENOUGH  0.95

/* From 2 MiB on: what is stored waits in the buffers while the next slice, of 4 MiB or more, is computed. */
static const struct rung {
    int depth;
    size_t piece;
} ladder[] = {{8, 256 << 10}, {4, 512 << 10}, {8, 512 << 10}, {4, 1 << 20}};
enum { RUNGS = sizeof ladder / sizeof *ladder };

static const struct disk_speed assumed = {.bandwidth = FACTS_DISK_ASSUMED,
                                          .read = FACTS_DISK_ASSUMED,
                                          .write = FACTS_DISK_ASSUMED,
                                          .depth = DISK_DEPTH,
                                          .piece = DISK_PIECE};

bool disk_speed_wanted(const struct context *context) { return calibration_wanted(context); }

void disk_speed_apply(const struct disk_speed *speed, struct device_facts *facts)
{
    *(facts->unified_memory ? &facts->lower_bandwidth : &facts->disk_bandwidth) = speed->bandwidth;
    facts->disk_read = speed->read, facts->disk_write = speed->write;
    facts->disk_depth = speed->depth, facts->disk_piece = speed->piece;
}

/* --- one rung ---------------------------------------------------------------------------------------------------- */

struct run {
    struct disk_engine *engine;
    int fd, depth, under_way;
    size_t piece;
    uint64_t bytes, next;
    enum disk_mix mix;
};

/* Reads run through the file's first half and writes through its second where there are both. */
static int begin(struct run *r, int slot)
{
    uint64_t pieces = r->bytes / r->piece, half = pieces / 2, at = r->next++;
    struct disk_piece p = {.fd = r->fd, .slot = slot, .n = r->piece, .write = r->mix == DISK_WRITES};
    if (r->mix == DISK_MIXED) {
        p.write = at % 2;
        at = at / 2 % half + (p.write ? half : 0);
    }
    p.offset = at % pieces * r->piece;
    int code = r->engine->ops->submit(r->engine, &p);
    r->under_way += !code;
    return code;
}

/* One is done, and -1: it failed, or its slot. */
static int end(struct run *r, int *code)
{
    struct disk_done done = {0};
    *code = r->engine->ops->wait(r->engine, &done);
    r->under_way--;
    if (!*code && done.result != (int64_t)r->piece) *code = done.result < 0 ? (int)-done.result : EIO;
    return done.slot;
}

static int run_for(struct run *r, double seconds, double *rate)
{
    double start = clock_seconds(), now = start;
    uint64_t done = 0;
    int code = 0;
    for (int i = 0; i < r->depth && !code; i++) code = begin(r, i);
    while (!code && now - start < seconds) {
        int slot = end(r, &code);
        done++, now = clock_seconds();
        if (!code) code = begin(r, slot);
    }
    *rate = (double)(done * r->piece) / (now - start + 1e-9);
    for (int unused; r->under_way > 0;) end(r, &unused);
    return code;
}

enum plim_status disk_speed_rung(int fd, uint64_t bytes, int depth, size_t piece, enum disk_mix mix,
                                 double seconds, double *out, struct plim_error *err)
{
    char why[128];
    size_t room = (size_t)depth * piece;
    struct run r = {.fd = fd, .depth = depth, .piece = piece, .bytes = bytes, .mix = mix};
    void *base = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) return plim_fail(err, PLIM_NO_MEMORY, "no memory to measure a disk");
    memset(base, 0x3c, room);
    struct disk_buffers buffers = {base, piece, depth};
    enum plim_status status = PLIM_OK;
    r.engine = disk_uring_open(&buffers, why, sizeof why);
    if (!r.engine) r.engine = disk_threads_open(&buffers, err);
    if (!r.engine) status = PLIM_NO_MEMORY;
    int code = status == PLIM_OK ? run_for(&r, seconds, out) : 0;
    if (code) status = plim_fail(err, PLIM_IO, "a disk could not be measured: %s", strerror(code));
    if (r.engine) r.engine->ops->close(r.engine);
    munmap(base, room);
    return status;
}

/* --- the ladder ---------------------------------------------------------------------------------------------------- */

/* The folder or the nearest one above it that is there. */
static bool find_folder(const char *folder, char *out, size_t size, struct statfs *fs)
{
    snprintf(out, size, "%s", *folder ? folder : ".");
    while (statfs(out, fs)) {
        char *slash = strrchr(out, '/');
        if (errno != ENOENT || !strcmp(out, ".") || !strcmp(out, "/")) return false;
        if (!slash)
            snprintf(out, size, ".");
        else
            slash[slash == out] = '\0';
    }
    return true;
}

/* Identifies a file system: its id, type and size. */
static void name_system(const struct statfs *fs, char *key, size_t size)
{
    unsigned parts[2];
    memcpy(parts, &fs->f_fsid, sizeof parts);
    snprintf(key, size, "file system %08x%08x, kind %lx, %llu blocks, plimsoll %s", parts[0], parts[1],
             (unsigned long)fs->f_type, (unsigned long long)fs->f_blocks, PLIMSOLL_VERSION);
}

enum { NUMBERS = 5 };

bool disk_speed_recall(const struct context *context, const char *folder, struct disk_speed *out)
{
    char path[1024], key[160];
    struct statfs fs;
    struct calibration_number n[NUMBERS] = {{"bandwidth"}, {"read"}, {"write"}, {"depth"}, {"piece"}};
    *out = assumed;
    if (!disk_speed_wanted(context) || !find_folder(folder, path, sizeof path, &fs)) return false;
    name_system(&fs, key, sizeof key);
    if (!calibration_recall(context, "disk", key, n, NUMBERS)) return false;
    *out = (struct disk_speed){n[0].value, n[1].value, n[2].value, (int)n[3].value, (size_t)n[4].value};
    return out->depth <= DISK_DEPTH_MOST && out->piece % DISK_BLOCK == 0;
}

static enum plim_status open_file(const char *folder, int *fd, struct plim_error *err)
{
    char path[1100];
    snprintf(path, sizeof path, "%s/.plimsoll-speed-XXXXXX", folder);
    int plain = mkstemp(path);
    if (plain < 0)
        return plim_fail(err, PLIM_IO, "%s: cannot write a file to measure the disk: %s", folder,
                         strerror(errno));
    *fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC);
    unlink(path);
    int code = posix_fallocate(plain, 0, (off_t)FILE_BYTES);
    if (*fd < 0)
        *fd = plain;
    else
        close(plain);
    return code ? plim_fail(err, PLIM_IO, "%s: no room to measure the disk: %s", folder, strerror(code))
                : PLIM_OK;
}

/* Written once so that every block is there; then rung by rung, and the two directions on the one that was chosen. */
static enum plim_status climb(int fd, struct disk_speed *out, struct plim_error *err)
{
    double rate[RUNGS], best = 0;
    enum plim_status status =
        disk_speed_rung(fd, FILE_BYTES, 4, 1 << 20, DISK_WRITES, 4 * RUNG_SECONDS, &best, err);
    best = 0;
    for (int i = 0; i < RUNGS && status == PLIM_OK; i++) {
        status = disk_speed_rung(fd, FILE_BYTES, ladder[i].depth, ladder[i].piece, DISK_MIXED, RUNG_SECONDS,
                                 &rate[i], err);
        if (status == PLIM_OK && rate[i] > best) best = rate[i];
    }
    if (status != PLIM_OK) return status;
    int chosen = -1;
    for (int i = 0; i < RUNGS; i++) {
        size_t room = (size_t)ladder[i].depth * ladder[i].piece;
        if (rate[i] < GOOD_ENOUGH * best) continue;
        if (chosen < 0 || room < (size_t)ladder[chosen].depth * ladder[chosen].piece) chosen = i;
    }
    *out = (struct disk_speed){
        .bandwidth = rate[chosen], .depth = ladder[chosen].depth, .piece = ladder[chosen].piece};
    status =
        disk_speed_rung(fd, FILE_BYTES, out->depth, out->piece, DISK_READS, RUNG_SECONDS, &out->read, err);
    if (status == PLIM_OK)
        status = disk_speed_rung(fd, FILE_BYTES, out->depth, out->piece, DISK_WRITES, RUNG_SECONDS,
                                 &out->write, err);
    return status;
}

enum plim_status disk_speed_measure(const struct context *context, const char *folder, struct disk_speed *out,
                                    struct plim_error *err)
{
    char path[1024], key[160];
    struct statfs fs;
    int fd = -1;
    *out = assumed;
    if (!disk_speed_wanted(context)) return PLIM_OK;
    if (!find_folder(folder, path, sizeof path, &fs))
        return plim_fail(err, PLIM_IO, "%s: cannot be measured: %s", folder, strerror(errno));
    enum plim_status status = open_file(path, &fd, err);
    if (status == PLIM_OK) status = climb(fd, out, err);
    if (fd >= 0) close(fd);
    if (status != PLIM_OK) return *out = assumed, status;
    name_system(&fs, key, sizeof key);
    struct calibration_number n[NUMBERS] = {{"bandwidth", out->bandwidth},
                                            {"read", out->read},
                                            {"write", out->write},
                                            {"depth", out->depth},
                                            {"piece", (double)out->piece}};
    calibration_keep(context, "disk", key, n, NUMBERS);
    return PLIM_OK;
}
