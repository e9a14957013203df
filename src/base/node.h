/* node.h - one tree for YAML and JSON.
 *
 * A document (struct doc) owns all its nodes and strings; doc_free frees them in one call. Nodes are
 * read-only once parsed. Every lookup takes NULL (and a node of the wrong kind) and answers NULL or the
 * fallback, so that lookups chain:
 *
 *     struct doc *doc;
 *     if (json_load("config.json", &doc, &err) != PLIM_OK) ...
 *     int64_t heads = node_int(node_get(&doc->root, "num_attention_heads"), 0);
 *     double theta = node_float(node_path(&doc->root, "rope_scaling.factor"), 1.0);
 *     const struct node *list = node_get(&doc->root, "architectures");
 *     for (size_t i = 0; i < node_count(list); i++) use(node_string(node_item(list, i), NULL));
 *     doc_free(doc);
 */
#pragma once

#include "base/bump.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum node_kind { NODE_NULL, NODE_BOOL, NODE_INT, NODE_FLOAT, NODE_STRING, NODE_LIST, NODE_MAP };

struct node {
    enum node_kind kind;
    int line;        /* where it begins in its file, from 1                  */
    const char *key; /* its name when it is a child of a map, else NULL      */
    size_t key_len;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct {
            const char *text; /* NUL-terminated; may hold NULs inside, see len */
            size_t len;
        } string;
        struct {
            const struct node *items; /* children of a list or map, in file order */
            size_t count;
        } list;
    } as;
};

struct doc {
    struct node root;
    const char *name; /* the file, for messages */
    struct bump store;
    char *text; /* the file's text if strings and keys point into it; else NULL */
};

void doc_free(struct doc *doc);

/* "null", "true or false", "whole number", "number", "text", "list", "map". */
const char *node_kind_name(enum node_kind kind);

/* Child of a map by key, or NULL. Constant time for large maps. */
const struct node *node_get(const struct node *map, const char *key);
const struct node *node_get_n(const struct node *map, const char *key, size_t len);

/* node_get along "a.b.c"; NULL when a step is missing. */
const struct node *node_path(const struct node *root, const char *path);

/* Children of a list or map. */
size_t node_count(const struct node *node);
const struct node *node_item(const struct node *node, size_t index);

/* Values. A node that is missing or of another kind gives the fallback. node_int accepts a FLOAT that is
 * exactly whole (1e4); node_float accepts an INT. */
bool node_bool(const struct node *node, bool fallback);
int64_t node_int(const struct node *node, int64_t fallback);
double node_float(const struct node *node, double fallback);
const char *node_string(const struct node *node, const char *fallback);

/* Returns true and stores the value if the node holds a whole number that fits int64. */
bool node_is_whole(const struct node *node, int64_t *out);
