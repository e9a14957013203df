/* pace.h - sanitizers make everything many times slower: tests that go through a long list of cases take one in EVERY
 * of them there, and all of them elsewhere.
 *
 *     for (int k = other % EVERY; k < CASES; k += EVERY) ...
 */
#ifndef PLIM_TESTS_PACE_H
#define PLIM_TESTS_PACE_H

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { EVERY = 5 };
#else
enum { EVERY = 1 };
#endif

#endif
