/* secret.h - API keys: read from a file, compared in constant time, never printed.
 *
 *     struct secrets keys = {0};
 *     secrets_load("keys.txt", &keys, &err);             // one per line; empty lines and # lines are skipped
 *     if (!secrets_match(&keys, shown, strlen(shown))) refuse();
 *     secrets_release(&keys);
 *
 * The time of a comparison depends only on the length of the presented key and on the number and lengths of the keys: every
 * presented byte is compared with every key.
 */
#pragma once

#include "base/status.h"
#include <stdbool.h>
#include <stddef.h>

enum { SECRET_BYTES = 256, SECRET_MOST = 1024 };

struct secrets {
    char **key;
    size_t count;
    bool open_to_others; /* others than the owner may read the file: warn */
};

/* PLIM_IO: the file cannot be read. PLIM_BAD_INPUT: it has no key, or a key with blanks, fewer than 8 or more
 * than 256 bytes. */
enum plim_status secrets_load(const char *path, struct secrets *out, struct plim_error *err);
void secrets_release(struct secrets *secrets); /* wipes them */

/* True if it is one of the keys. Without keys nothing matches. */
bool secrets_match(const struct secrets *secrets, const char *shown, size_t len);
