/* cpu_load.h - how much of the machine's processors other programs take, as the system counts it.
 *
 *     struct cpu_load before;
 *     cpu_load_read(&before);
 *     ... work, with children that have been waited for ...
 *     double others = cpu_load_others(&before);              // 0.25: a quarter of all processors
 *
 * The system counts in hundredths of a second, so times below a tenth say little. In a container it is the whole
 * machine that is told of. */
#ifndef PLIM_BASE_CPU_LOAD_H
#define PLIM_BASE_CPU_LOAD_H

struct cpu_load {
    double busy, all; /* seconds of all processors since the start; all 0: the system does not tell */
    double ours;      /* of this process and of its children that have ended */
};

void cpu_load_read(struct cpu_load *out);

/* Share of all processors that others took since then; 0 where nothing is known. */
double cpu_load_others(const struct cpu_load *since);

#endif
