/* pace.h - sanitizers make everything many times slower (kernels: 10 times with the address sanitizer, 30 with the
 * thread sanitizer), and so does a CPU that stands for a card: tests that go through a long list of cases take one in EVERY of them there, and all of them
 * elsewhere. Which code runs does not depend on EVERY, only in how many combinations.
 *
 *     for (int k = other % EVERY; k < CASES; k += EVERY) ...
 *
 * A row of LENGTH tokens is as long as a small job needs to touch everything.
 */
#ifndef PLIM_TESTS_PACE_H
#define PLIM_TESTS_PACE_H

#include <stdlib.h>

#if defined(__SANITIZE_THREAD__)
enum { EVERY = 15 };
#define LENGTH "16"
#elif defined(__SANITIZE_ADDRESS__)
enum { EVERY = 10 };
#define LENGTH "48"
#elif defined(PLIMSOLL_CUDA_ON_CPU) /* tests/cuda_on_cpu */
enum { EVERY = 5 };
#define LENGTH "48"
#else
enum { EVERY = 1 };
#define LENGTH "48"
#endif

/* Lists of like cases, of which one in three tells whether a change broke something; `make test-long` takes all. */
#define SOME (EVERY > 1 || getenv("PLIMSOLL_LONG_TESTS") ? EVERY : 3)

/* Likewise one in five, of lists whose cases each plan or train a model. */
#define FEW (EVERY > 1 || getenv("PLIMSOLL_LONG_TESTS") ? EVERY : 5)

#endif
