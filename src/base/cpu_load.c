/* cpu_load.c - the first line of /proc/stat: user nice system idle iowait irq softirq steal. See cpu_load.h. */
#include "base/cpu_load.h"

#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

enum { IDLE = 3, IOWAIT = 4, STATES = 8 };

static double seconds_of(int who)
{
    struct rusage use;
    if (getrusage(who, &use)) return 0;
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
           1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
}

void cpu_load_read(struct cpu_load *out)
{
    double ticks[STATES] = {0}, tick = 1.0 / (double)sysconf(_SC_CLK_TCK);
    FILE *f = fopen("/proc/stat", "re");
    *out = (struct cpu_load){.ours = seconds_of(RUSAGE_SELF) + seconds_of(RUSAGE_CHILDREN)};
    if (!f) return;
    int n = fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &ticks[0], &ticks[1], &ticks[2], &ticks[3],
                   &ticks[4], &ticks[5], &ticks[6], &ticks[7]);
    fclose(f);
    for (int i = 0; i < n && i < STATES; i++) {
        out->all += ticks[i] * tick;
        if (i != IDLE && i != IOWAIT) out->busy += ticks[i] * tick;
    }
}

double cpu_load_others(const struct cpu_load *since)
{
    struct cpu_load now;
    cpu_load_read(&now);
    double all = now.all - since->all, others = now.busy - since->busy - (now.ours - since->ours);
    if (!(since->all > 0) || !(all > 0) || others < 0) return 0;
    return others < all ? others / all : 1;
}
