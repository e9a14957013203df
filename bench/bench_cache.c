/* bench_cache - nanoseconds of an allocation and its free that the cache can serve: one size, the mix of a training step with
 * many blocks live, and two threads. On a simulated device: nothing but the allocator is measured. */
#include "base/clock.h"
#include "mem/cache.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { LIVE = 512 };

static struct cache *cache;

static uint64_t take(uint64_t bytes, uint64_t stream)
{
    uint64_t at;
    struct plim_error err = {0};
    if (cache_malloc(cache, bytes, stream, &at, &err) == PLIM_OK) return at;
    fprintf(stderr, "bench_cache: %s\n", err.text);
    exit(1);
}

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}

/* Activations, weights' copies and scalars of a transformer layer. */
static const uint64_t sizes[] = {512,     2048,    16384,   65536,         262144,   786432,
                                 1 << 20, 3 << 20, 4 << 20, 8 << 20,       12 << 20, 24 << 20,
                                 6144,    98304,   5 << 20, 33554432 + 512};
enum { SIZES = sizeof sizes / sizeof *sizes };

enum { RUNS = 400, PAIRS = 2048 };

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct bench {
    uint64_t stream, state, bytes;
    uint64_t live[LIVE];
    pthread_barrier_t *start; /* of a measurement, by all threads */
    bool alone;
};

typedef void pairs(struct bench *b); /* PAIRS allocations and as many frees */

/* One thread: the median over many short runs, which does not show what else the machine does. Several: their mean, because
 * threads that wait for each other have fast and slow runs; it means something on an idle machine only. */
static double measure(struct bench *b, pairs *body)
{
    double took[RUNS], sum = 0;
    pthread_barrier_wait(b->start);
    for (int i = -RUNS / 4; i < RUNS; i++) {
        double begin = clock_seconds();
        body(b);
        if (i >= 0) sum += took[i] = clock_seconds() - begin;
    }
    qsort(took, RUNS, sizeof *took, ascending);
    return (b->alone ? took[RUNS / 2] : sum / RUNS) / PAIRS * 1e9;
}

static void one_size(struct bench *b)
{
    for (int i = 0; i < PAIRS; i++) cache_free(cache, take(b->bytes, b->stream), NULL);
}

/* A block of a random place is freed and another of the mix is allocated there. */
static void mixed(struct bench *b)
{
    for (int i = 0; i < PAIRS; i++) {
        uint64_t r = next(&b->state), *at = &b->live[r % LIVE];
        cache_free(cache, *at, NULL);
        *at = take(sizes[(r >> 32) % SIZES], b->stream);
    }
}

/* A step: forward allocates layer by layer, backward frees in the other order. */
static void step(struct bench *b)
{
    for (int k = 0; k < PAIRS; k += LIVE) {
        for (int i = 0; i < LIVE; i++) b->live[i] = take(sizes[i % SIZES], b->stream);
        for (int i = LIVE - 1; i >= 0; i--) cache_free(cache, b->live[i], NULL);
    }
}

struct run {
    pthread_t thread;
    struct bench bench;
    double ns[5];
};

static void *body(void *arg)
{
    struct run *r = arg;
    struct bench *b = &r->bench;
    static const uint64_t single[] = {512, 65536, 24 << 20};
    b->state = 0x9e3779b97f4a7c15u + b->stream;
    for (int i = 0; i < 3; i++) {
        b->bytes = single[i];
        r->ns[i] = measure(b, one_size);
    }
    r->ns[3] = measure(b, step);
    for (int i = 0; i < LIVE; i++) b->live[i] = take(sizes[next(&b->state) % SIZES], b->stream);
    r->ns[4] = measure(b, mixed);
    for (int i = 0; i < LIVE; i++) cache_free(cache, b->live[i], NULL);
    return NULL;
}

static void threads(int count)
{
    static struct run runs[8];
    double ns[5] = {0};
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, (unsigned)count);
    for (int i = 0; i < count; i++) {
        runs[i].bench = (struct bench){.stream = (uint64_t)i, .start = &start, .alone = count == 1};
        pthread_create(&runs[i].thread, NULL, body, &runs[i]);
    }
    for (int i = 0; i < count; i++) {
        pthread_join(runs[i].thread, NULL);
        for (int k = 0; k < 5; k++) ns[k] += runs[i].ns[k] / count;
    }
    pthread_barrier_destroy(&start);
    printf("%8d %10.0f %10.0f %10.0f %10.0f %10.0f\n", count, ns[0], ns[1], ns[2], ns[3], ns[4]);
}

int main(void)
{
    static const char *const conf[] = {"", "expandable_segments:True", "max_split_size_mb:128"};
    for (int i = 0; i < 3; i++) {
        struct backing_simulated device;
        struct plim_error err = {0};
        backing_simulated_init(&device, (uint64_t)80 << 30);
        struct cache_options options = {.backing = &device.base};
        if (cache_conf_parse(conf[i], &options.conf, &err) != PLIM_OK ||
            cache_new(&cache, &options, &err) != PLIM_OK) {
            fprintf(stderr, "bench_cache: %s\n", err.text);
            return 1;
        }
        printf("options '%s'\n", conf[i]);
        printf("%8s %10s %10s %10s %10s %10s  ns a pair\n", "threads", "512 B", "64 KiB", "24 MiB", "step",
               "mixed");
        threads(1);
        threads(2);
        cache_destroy(cache);
        backing_simulated_destroy(&device);
    }
    return 0;
}
