/* secret.h - keys that clients must show: read from a file, compared in constant time, never printed.
 *
 *     struct secrets keys = {0};
 *     secrets_load("keys.txt", &keys, &err);             // one a line; empty lines and # lines are skipped
 *     if (!secrets_match(&keys, shown, strlen(shown))) refuse();
 *     secrets_release(&keys);
 *
 * How long a comparison takes depends on the length of what was shown, on nothing of the keys but their number and
 * lengths: every byte of what was shown is held against every key.
 */
#ifndef PLIM_NET_SECRET_H
#define PLIM_NET_SECRET_H

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

enum { SECRET_BYTES = 256, SECRET_MOST = 1024 };

struct secrets {
    char **key;
    size_t count;
    bool open_to_others; /* others than the owner may read the file: worth a warning */
};

/* PLIM_IO when the file cannot be read; PLIM_BAD_INPUT: no key in it, or one of fewer than 8 or more than 256 bytes, or
 * with blanks. */
enum plim_status secrets_load(const char *path, struct secrets *out, struct plim_error *err);
void secrets_release(struct secrets *secrets); /* wipes them */

/* Is it one of them? Without keys nothing matches. */
bool secrets_match(const struct secrets *secrets, const char *shown, size_t len);

#endif
