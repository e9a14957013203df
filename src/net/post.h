/* post.h - sends JSON to an address, within a time limit.
 *
 *     struct post_library *library;
 *     post_library_open(&library, &err);                 // one for the process: opens libcurl
 *     struct post *post;
 *     post_open(library, url, &post, &err);              // one for each thread and address
 *     post_send(post, text, len, 10.0, &err);            // returns once answered, failed or timed out
 *     post_close(post);
 *     post_library_close(library);
 *
 * An address may be a secret, so no error shows it. Redirects are not followed, answers are not read, and certificates are
 * checked. https_proxy and similar variables work as in libcurl.
 */
#pragma once

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct post_library;
struct post;

/* PLIM_UNSUPPORTED: this machine or build has no libcurl. */
enum plim_status post_library_open(struct post_library **out, struct plim_error *err);
void post_library_close(struct post_library *library); /* NULL is fine */

enum plim_status post_open(struct post_library *library, const char *url, struct post **out,
                           struct plim_error *err);
void post_close(struct post *post); /* NULL is fine */

/* PLIM_BUSY: the answer asks to retry (408, 429, 5xx). PLIM_IO: no connection, no answer in time, or any
 * other status than 2xx. */
enum plim_status post_send(struct post *post, const char *json, size_t len, double seconds,
                           struct plim_error *err);

/* Maximum memory of the library, and per address, not counting the messages. */
#define POST_LIBRARY_BYTES ((int64_t)12 << 20)
#define POST_BYTES         ((int64_t)2 << 20)
