/* bench_blocks.c - products with weights in quantised blocks: one thread, by type, level and number of rows.
 *
 *     bench_blocks [TYPE|all] [LINES] [K] [ROWS]      default all 1024 2048: 1 to 2 MiB of weights, in the second-level cache
 *
 * A line has the time that 1, 2, 4, 8 and 64 rows take, in nanoseconds of CPU time for each 1024 weights and all rows (the
 * fastest of several runs), and the rate at which weights are read with one row. More lines (16384) come from memory. */
#include "base/clock.h"
#include "base/rng.h"
#include "device/cpu/linear_q.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = PANEL8_ROWS, ROUNDS = 30 };

struct bench {
    const struct linear_q_level *level;
    const struct block_type *type;
    int number;
    int64_t lines, k, only; /* only: this number of rows alone */
    unsigned char *panels;
    float *x;
    int8_t *codes;
    struct x8_block *blocks;
    void *scratch;
};

static void fill(struct bench *b)
{
    const struct block_type *type = b->type;
    int64_t bytes = panel_bytes(type, b->k), panels = panels_count(b->lines);
    unsigned char *rows = malloc((size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) rows[i] = (unsigned char)rng_below(1, 2, (uint64_t)i, 256);
    for (int64_t i = 0; i < bytes / type->bytes; i++)
        for (int s = 0; s < type->scales.count; s++) {
            uint16_t half = f32_to_f16(0.001f);
            memcpy(rows + i * type->bytes + type->scales.at + 2 * s, &half, sizeof half);
        }
    for (int64_t p = 0; p < panels; p++) panel_pack(type, b->k, rows, b->panels + p * bytes);
    free(rows);
}

/* All panels by `rows` rows; small matrices several times. Returns the time of one. */
static double run(const struct bench *b, int64_t rows)
{
    int64_t panels = panels_count(b->lines), times = 1 + (1 << 20) / (b->lines * b->k);
    static float out[ROWS * PANEL_LINES];
    int64_t bytes = panel_bytes(b->type, b->k);
    struct x8 x = x8_rows(b->level, b->codes, b->blocks, b->k, 0, rows);
    double begin = clock_thread();
    for (int64_t i = 0; i < panels * times; i++) {
        struct panel8 w;
        const unsigned char *panel = b->panels + i % panels * bytes;
        if (rows <= PANEL8_FEW && b->level->few[b->number]) {
            b->level->few[b->number](panel, &x, out);
            continue;
        }
        panel8_ready(b->level, b->number, panel, b->k, rows, b->scratch, &w);
        b->level->multiply(&w, &x, out);
    }
    return (clock_thread() - begin) / (double)times;
}

static void line_of(struct bench *b)
{
    static const int rows[] = {1, 2, 4, 8, ROWS};
    double one = 0, weights = (double)b->lines * (double)b->k;
    for (int64_t r = 0; r < ROWS; r++)
        b->level->quantise(b->x + r * b->k, DT_F32, b->k, r, b->codes, b->blocks);
    printf("%-5s %-12s", b->type->name, b->level->name);
    for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++) {
        double best = 1e9;
        if (b->only && b->only != rows[i]) continue;
        for (int r = 0; r < ROUNDS; r++) {
            double took = run(b, rows[i]);
            best = took < best ? took : best;
        }
        if (rows[i] == 1) one = best;
        printf(" %9.1f", best / weights * 1024e9);
    }
    printf("   %6.1f GB/s\n",
           one == 0 ? 0 : (double)(panels_count(b->lines) * panel_bytes(b->type, b->k)) / one / 1e9);
}

int main(int argc, char **argv)
{
    static const int numbers[] = {BLOCK_Q8_0, BLOCK_Q4_0, BLOCK_Q4_K, BLOCK_Q5_K, BLOCK_Q6_K};
    const char *only = argc > 1 ? argv[1] : "all";
    struct bench b = {.lines = argc > 2 ? atoll(argv[2]) : 1024,
                      .k = argc > 3 ? atoll(argv[3]) : 2048,
                      .only = argc > 4 ? atoll(argv[4]) : 0};
    b.x = malloc((size_t)(ROWS * b.k) * sizeof *b.x);
    for (int64_t i = 0; i < ROWS * b.k; i++) b.x[i] = (float)rng_below(3, 4, (uint64_t)i, 2001) * 1e-3f - 1;
    b.codes = aligned_alloc(64, (size_t)x8_codes_bytes(ROWS, b.k));
    b.blocks = aligned_alloc(64, (size_t)x8_blocks_bytes(ROWS, b.k));
    b.scratch = aligned_alloc(64, (size_t)panel8_bytes(b.k));
    printf("%-18s %9s %9s %9s %9s %9s\n", "ns per 1024 w", "1 row", "2", "4", "8", "64");
    for (size_t t = 0; t < sizeof numbers / sizeof *numbers; t++) {
        b.number = numbers[t], b.type = block_type_of((uint32_t)b.number);
        if (strcmp(only, "all") && strcmp(only, b.type->name)) continue;
        b.panels = aligned_alloc(64, (size_t)(panels_bytes(b.type, b.lines, b.k) + 63) / 64 * 64);
        fill(&b);
        b.level = linear_q_level();
        line_of(&b);
#if defined(__aarch64__)
        if (b.level == &linear_q_i8mm) b.level = &linear_q_dotprod, line_of(&b);
#endif
        free(b.panels);
    }
    free(b.x), free(b.codes), free(b.blocks), free(b.scratch);
    return 0;
}
