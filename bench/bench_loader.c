/* bench_loader.c - samples per second of the data loader, and its memory against what it said it would take.
 *
 *     bench_loader FILE [TOKENIZER [WORKERS [SECONDS]]]
 *
 * bench/loader.py makes a file of JSON lines, runs this and removes it again.
 */
#include "base/bytes.h"
#include "base/clock.h"
#include "data/json_fields.h"
#include "data/loader.h"
#include "mem/os.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define T    512
#define ROWS 64

static int complain(const struct plim_error *err)
{
    fprintf(stderr, "bench_loader: %s\n", err->text);
    return 2;
}

/* Of this thread alone: others on the machine do not count. */
static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* The scanner alone, on lines that lie in memory. */
static void scan_speed(const char *path)
{
    size_t room = 64 << 20, bytes = 0;
    char *text = malloc(room);
    int fd = open(path, O_RDONLY);
    ssize_t len = fd >= 0 && text ? read(fd, text, room) : -1;
    double start = cpu_seconds();
    for (ssize_t at = 0; at < len;) {
        char *end = memchr(text + at, '\n', (size_t)(len - at));
        if (!end) break;
        struct json_field f = {.name = "text"};
        struct json_problem problem;
        size_t n = (size_t)(end - (text + at));
        if (!json_fields(text + at, n, &f, 1, &problem)) break;
        bytes += n + 1, at += (ssize_t)n + 1;
    }
    double seconds = cpu_seconds() - start;
    printf("scanner      %8.0f MB/s of one thread's time\n", (double)bytes / seconds / 1e6);
    if (fd >= 0) close(fd);
    free(text);
}

static int measure(struct loader *loader, double limit, size_t planned, uint64_t before)
{
    static int32_t ids[ROWS * T], targets[ROWS * T], pos[ROWS * T];
    struct plim_error err = {0};
    struct loader_window w = {.rows = ROWS};
    struct os_process me;
    int64_t samples = 0, tokens = 0;
    char a[BYTES_TEXT], b[BYTES_TEXT];
    double start = clock_seconds(), seconds = 0;
    while (w.rows == ROWS && seconds < limit) {
        if (loader_window(loader, ROWS, &w, &err) != PLIM_OK) return complain(&err);
        struct rows filled = {
            .count = w.rows, .time = loader_time(loader), .ids = ids, .pos = pos, .targets = targets};
        if (loader_fill(loader, w.rows, &filled, &err) != PLIM_OK) return complain(&err);
        samples += w.rows, tokens += w.targets;
        seconds = clock_seconds() - start;
    }
    os_process_memory(&me, NULL);
    printf("loader       %8.0f samples/s, %.1f M tokens/s, %lld samples in %.1f s\n",
           (double)samples / seconds, (double)tokens / seconds / 1e6, (long long)samples, seconds);
    printf("memory       %s at its peak, %s planned\n", bytes_format(a, me.peak - before),
           bytes_format(b, planned));
    return me.peak - before > planned;
}

int main(int argc, char **argv)
{
    struct plim_error err = {0};
    struct codec codec;
    struct dataset *data = NULL;
    struct loader *loader = NULL;
    struct os_process me;
    if (argc < 2) return fprintf(stderr, "usage: bench_loader FILE [TOKENIZER [WORKERS [SECONDS]]]\n"), 2;
    scan_speed(argv[1]);
    malloc_trim(0);
    os_reset_peak(NULL);
    os_process_memory(&me, NULL);
    const char *paths[] = {argv[1]};
    struct data_options options = {.paths = paths, .count = 1, .time = T, .append_eos = true};
    struct loader_options how = {.seed = 1,
                                 .once = true,
                                 .workers = argc > 3 ? atoi(argv[3]) : 2,
                                 .prefetch = 4,
                                 .max_line = 16 << 20,
                                 .shuffle_samples = 2048,
                                 .shuffle_bytes = 4 << 20,
                                 .window_rows = ROWS};
    if (codec_open(argc > 2 ? argv[2] : NULL, &codec, &err) != PLIM_OK) return complain(&err);
    malloc_trim(0);
    if (dataset_open(&options, &codec, &data, &err) != PLIM_OK) return complain(&err);
    if (loader_open(data, &how, &loader, &err) != PLIM_OK) return complain(&err);
    os_reset_peak(NULL); /* parsing a tokenizer takes more than the tokenizer, for a moment */
    size_t planned = codec.bytes + loader_bytes(data, &how);
    int code = measure(loader, argc > 4 ? atof(argv[4]) : 1e9, planned, me.rss);
    loader_close(loader);
    dataset_close(data);
    codec_close(&codec);
    return code;
}
