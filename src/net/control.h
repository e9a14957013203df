/* control.h - the control socket of a running job or server: one JSON object per line, for its owner.
 *
 *     control_open("runs/a/control.sock", answer, trainer, &control, &err);   // starts a thread that listens
 *     control_close(control);                                                 // removes the socket
 *
 *     control_ask("runs/a/control.sock", "{\"do\":\"budget\",\"bytes\":1073741824}", 10, &reply, &err);
 *
 * A message is an object with "do": status, budget, checkpoint, stop, snapshot, ...; the listener defines them. The reply is
 * one line: {"ok":true, ...} or {"ok":false,"error":"one line"}. A client may send several messages; they are answered in
 * order. All clients are answered one after another.
 *
 * Only the user who runs the job is answered: the socket's mode excludes others, and the kernel reports the caller. A client
 * that reads nothing, sends half a message or one that is too long is dropped; the job never waits for a client.
 */
#pragma once

#include "base/json.h"

#define CONTROL_MESSAGE 65536 /* maximum bytes of a message */
#define CONTROL_CLIENTS 16    /* at once; a further one replaces the longest silent */
#define CONTROL_SECONDS 10.0  /* time limit to complete a message or to read a reply */

struct control;

/* Answers one message: adds members to `reply`, an open object, or returns an error, whose text is sent
 * instead. Runs on the socket's thread and may briefly wait for the job. */
typedef enum plim_status control_answer(void *arg, const char *what, const struct node *message,
                                        struct json_writer *reply, struct plim_error *err);

/* Listens at `path`, in an existing folder. Replaces a socket without a listener. PLIM_BUSY: another process
 * listens. PLIM_IO: the socket cannot be created. */
enum plim_status control_open(const char *path, control_answer *answer, void *arg, struct control **out,
                              struct plim_error *err);
void control_close(struct control *control); /* finishes the current message first; NULL is fine */

/* Sends one message and waits for its reply, a whole object in `reply`, which stays empty on failure.
 * PLIM_IO: nobody listens, or no reply came in time. PLIM_BAD_INPUT: the listener refused. */
enum plim_status control_ask(const char *path, const char *message, double seconds, struct strbuf *reply,
                             struct plim_error *err);
