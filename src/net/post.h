/* post.h - JSON sent to an address somebody else listens at, within a time limit.
 *
 *     struct post_library *library;
 *     post_library_open(&library, &err);                 // one for the process: opens libcurl
 *     struct post *post;
 *     post_open(library, url, &post, &err);              // one for each thread and address
 *     post_send(post, text, len, 10.0, &err);            // returns when it was answered, failed, or took too long
 *     post_close(post);
 *     post_library_close(library);
 *
 * An address may be a secret: no error shows it. Redirects are not followed, answers are not read, certificates are checked,
 * and https_proxy and its like are honoured, as libcurl does.
 */
#ifndef PLIM_NET_POST_H
#define PLIM_NET_POST_H

#include "base/status.h"
#include <stddef.h>
#include <stdint.h>

struct post_library;
struct post;

/* PLIM_UNSUPPORTED: there is no libcurl, on this machine or in this build. */
enum plim_status post_library_open(struct post_library **out, struct plim_error *err);
void post_library_close(struct post_library *library); /* NULL is fine */

enum plim_status post_open(struct post_library *library, const char *url, struct post **out,
                           struct plim_error *err);
void post_close(struct post *post); /* NULL is fine */

/* PLIM_BUSY: the answer asks to come again (408, 429, 5xx). PLIM_IO: nobody there, no answer in so many seconds, or one that is
 * neither that nor 2xx. */
enum plim_status post_send(struct post *post, const char *json, size_t len, double seconds,
                           struct plim_error *err);

/* Bytes of the process that sending to so many addresses takes at most, beside what is sent. */
#define POST_LIBRARY_BYTES ((int64_t)12 << 20)
#define POST_BYTES         ((int64_t)2 << 20)

#endif
