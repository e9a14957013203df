/* bench_search.c - what the search predicts for the jobs of tests/support/search_jobs.c, as CSV: the file that later
 * versions are held against (tests/golden/search/before.csv) was made by it.
 *
 *     build/release/bench_search [PART OF A NAME]
 */
#include "support/search_jobs.h"

#include <stdio.h>
#include <string.h>

int main(int argc, char **argv)
{
    double slowest = 0;
    int tapes = 0;
    printf("job,fits,seconds\n");
    for (int i = 0; i < search_job_count(); i++) {
        struct job job;
        struct preset preset;
        struct plan_request request;
        struct plan plan;
        struct plim_error err = {0};
        char name[96];
        search_job_open(i, name, sizeof name, &job, &preset, &request);
        if (argc > 1 && !strstr(name, argv[1])) {
            job_release(&job);
            continue;
        }
        enum plim_status status = plan_search(&request, &plan, &err);
        if (status != PLIM_OK && status != PLIM_NO_FIT) return fprintf(stderr, "%s: %s\n", name, err.text), 1;
        printf("%s,%d,%.9g\n", name, plan.fits, plan.fits ? plan.step_seconds : 0);
        fprintf(stderr, "%-32s %6d tapes %8.1f ms\n", name, plan.search.tapes, plan.search.seconds * 1e3);
        if (plan.search.seconds > slowest) slowest = plan.search.seconds;
        tapes += plan.search.tapes;
        plan_release(&plan);
        job_release(&job);
    }
    fprintf(stderr, "%d jobs, %d tapes, the slowest search %.1f ms\n", search_job_count(), tapes,
            slowest * 1e3);
    return 0;
}
