/* threads.h - a fixed team of threads that runs one parallel loop at a time.
 *
 *     struct threads *team;
 *     threads_start(0, &team, &err);                     // 0: one per online CPU
 *     threads_each(team, rows, 16, rows_body, &args);    // rows_body(&args, begin, end, worker)
 *     threads_free(team);
 *
 * threads_each cuts [0,n) into chunks of `grain` consecutive items (the last may be shorter), hands them out dynamically and
 * returns when all are done. Which worker gets which chunk varies from run to run. A body's result must therefore not
 * depend on `worker` or on the order of chunks; then results do not depend on the thread count. `worker`
 * (0 .. threads_count-1) selects scratch memory. The caller is worker 0. Bodies may not call threads_each. Waiting
 * workers spin briefly, then sleep.
 */
#pragma once

#include "base/status.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct threads;

typedef void threads_body(void *arg, int64_t begin, int64_t end, int worker);

enum plim_status threads_start(int count, struct threads **out, struct plim_error *err);
void threads_free(struct threads *team);
int threads_count(const struct threads *team);
/* Memory of a team's stacks, to the depth that bodies use; resident from threads_start on. */
int64_t threads_bytes(int count);
void threads_each(struct threads *team, int64_t n, int64_t grain, threads_body *body, void *arg);

/* Starts a thread outside any team, with the given stack size (0: the usual). It blocks all signals: the
 * program's own threads take them. Returns 0 or an errno. */
int thread_begin(pthread_t *out, size_t stack_bytes, void *(*body)(void *), void *arg);

/* Names the calling thread for lists of threads; at most 15 letters. */
void thread_name(const char *name);

/* pthread_cond_wait with a deadline on clock_seconds(). Returns false when the deadline has passed. */
bool thread_wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, double until);
/* pthread_cond_wait. With `look` it also returns every twentieth of a second, for waits that a signal may
 * end: a signal handler cannot wake a thread. */
void thread_wait(pthread_cond_t *cond, pthread_mutex_t *lock, bool look);
