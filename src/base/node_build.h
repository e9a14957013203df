/* node_build.h - building a document; for the parsers.
 *
 * A parser pushes finished children on one stack. At the end of a list or map it moves the children above its mark into
 * the document:
 *
 *     size_t mark = build.count;
 *     while (more) { read(&child); node_build_push(&build, &child, err); }
 *     node_build_close(&build, mark, NODE_MAP, &node, err);
 *
 * Closing a map refuses duplicate keys (but see last_wins). Large maps get a hash index, stored after the children.
 */
#pragma once

#include "base/node.h"
#include "base/quota.h"
#include "base/status.h"

enum { NODE_DEPTH_MAX = 128 };

struct node_build {
    struct doc *doc;
    struct node *stack;
    size_t count, cap;
    struct quota *quota; /* counts stack and document; NULL: no limit */
    /* If a key occurs twice, the last value replaces the first, in its place. Otherwise it is an error. */
    bool last_wins;
};

enum plim_status node_build_begin(struct node_build *build, const char *name, struct quota *quota,
                                  struct plim_error *err);
enum plim_status node_build_push(struct node_build *build, const struct node *child, struct plim_error *err);

/* Allocates memory that belongs to the document and counts it. Returns NULL on failure; *status says why. */
void *node_build_alloc(struct node_build *build, size_t bytes, enum plim_status *status,
                       struct plim_error *err);

/* Turns the children above `mark` into node->as.list and sets node->kind. */
enum plim_status node_build_close(struct node_build *build, size_t mark, enum node_kind kind,
                                  struct node *node, struct plim_error *err);

/* Returns the document if status is PLIM_OK; the quota keeps counting its store.total bytes. Otherwise frees
 * everything and returns NULL. */
struct doc *node_build_end(struct node_build *build, enum plim_status status);
