/* cpu_load.h - the share of the machine's CPUs that other programs use.
 *
 *     struct cpu_load before;
 *     cpu_load_read(&before);
 *     ... work, with children that have been waited for ...
 *     double others = cpu_load_others(&before);              // 0.25: a quarter of all CPUs
 *
 * The system counts in hundredths of a second, so intervals below a tenth of a second say little. In a container the
 * figures are those of the whole machine. */
#pragma once

struct cpu_load {
    double busy, all; /* seconds of all CPUs since boot; all == 0: unknown */
    double ours;      /* CPU seconds of this process and its ended children */
};

void cpu_load_read(struct cpu_load *out);

/* Share of all CPUs used by others since then; 0 if unknown. */
double cpu_load_others(const struct cpu_load *since);
