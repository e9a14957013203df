/* node_build.h - making a document; for the parsers.
 *
 * A parser pushes finished children on one stack and, at the end of a list or map, moves the ones above its
 * mark into the document:
 *
 *     size_t mark = build.count;
 *     while (more) { read(&child); node_build_push(&build, &child, err); }
 *     node_build_close(&build, mark, NODE_MAP, &node, err);
 *
 * Closing a map refuses duplicate keys (or see last_wins) and, for large maps, leaves a hash index behind the children.
 */
#ifndef PLIM_BASE_NODE_BUILD_H
#define PLIM_BASE_NODE_BUILD_H

#include "base/node.h"
#include "base/quota.h"
#include "base/status.h"

enum { NODE_DEPTH_MAX = 128 };

struct node_build {
    struct doc *doc;
    struct node *stack;
    size_t count, cap;
    struct quota *quota; /* counts stack and document; NULL: no limit */
    /* If a key occurs twice, the last value counts, in the first one's place; else it is refused. */
    bool last_wins;
};

enum plim_status node_build_begin(struct node_build *build, const char *name, struct quota *quota,
                                  struct plim_error *err);
enum plim_status node_build_push(struct node_build *build, const struct node *child, struct plim_error *err);

/* Memory of the document, counted; NULL when there is no more, and *status says why. */
void *node_build_alloc(struct node_build *build, size_t bytes, enum plim_status *status,
                       struct plim_error *err);

/* Turn the children above `mark` into node->as.list and set node->kind. */
enum plim_status node_build_close(struct node_build *build, size_t mark, enum node_kind kind,
                                  struct node *node, struct plim_error *err);

/* Finish: the document when status is PLIM_OK, of which the quota still counts store.total bytes; otherwise NULL and
 * everything is freed. */
struct doc *node_build_end(struct node_build *build, enum plim_status status);

#endif
