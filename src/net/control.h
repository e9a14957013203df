/* control.h - the control socket of a running job or server: its owner asks and orders, one JSON object a line.
 *
 *     control_open("runs/a/control.sock", answer, trainer, &control, &err);   // a thread of its own listens
 *     control_close(control);                                                 // the socket is gone
 *
 *     control_ask("runs/a/control.sock", "{\"do\":\"budget\",\"bytes\":1073741824}", 10, &reply, &err);
 *
 * A message is an object with "do": status, budget, checkpoint, stop, snapshot, ...; who listens decides which there are. The
 * reply is one line: {"ok":true, ...} or {"ok":false,"error":"one line"}. A client may send several messages; they are
 * answered in order, and all clients' one after another.
 *
 * Only the user who runs the job is answered: the socket is readable and writable by nobody else, and the kernel is asked who
 * calls. A client that reads nothing, sends half a message or a long one is dropped; the job never waits for a client.
 */
#ifndef PLIM_NET_CONTROL_H
#define PLIM_NET_CONTROL_H

#include "base/json.h"

#define CONTROL_MESSAGE 65536 /* bytes of a message, at most */
#define CONTROL_CLIENTS 16    /* at once; for a further one the longest silent is dropped */
#define CONTROL_SECONDS 10.0  /* that a client has for the rest of a message it began, or to read a reply */

struct control;

/* Answers one message: adds members to `reply`, an object that is open, or returns an error, whose text is sent instead. Runs
 * on the socket's thread and may wait a moment for the job to do as told. */
typedef enum plim_status control_answer(void *arg, const char *what, const struct node *message,
                                        struct json_writer *reply, struct plim_error *err);

/* Listens at `path`, in a folder that is there. A socket that nobody listens at any more is replaced; PLIM_BUSY: somebody
 * does. PLIM_IO: it cannot be made. */
enum plim_status control_open(const char *path, control_answer *answer, void *arg, struct control **out,
                              struct plim_error *err);
void control_close(struct control *control); /* after the message being answered; NULL is fine */

/* Sends one message and waits for its reply. The reply is a whole object in `reply`, which stays empty on an error. PLIM_IO:
 * nobody listens there, or not in time; otherwise the listener's refusal as PLIM_BAD_INPUT. */
enum plim_status control_ask(const char *path, const char *message, double seconds, struct strbuf *reply,
                             struct plim_error *err);

#endif
