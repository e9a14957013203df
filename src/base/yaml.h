/* yaml.h - YAML configuration files into the same tree as JSON.
 *
 * Scalars follow the YAML 1.2 core schema, not the 1.1 one: 3e-4 and 1e-3 are numbers, 0x1F and 0o17 whole
 * numbers, 1_000, yes, no, on and off are texts; true/false/null/~ (and their capitalised forms) mean what
 * they say; anything quoted is text. One document per file. Duplicate keys, anchors, aliases, tags and keys
 * that are not scalars are refused, so a small file cannot grow into a large tree. At most 128 levels. Errors
 * read "name:line: what". Safe on hostile input.
 *
 *     struct doc *doc;
 *     if (yaml_load("job.yaml", &doc, &err) != PLIM_OK) return err.status;
 *     ...
 *     doc_free(doc);
 */
#pragma once

#include "base/node.h"
#include "base/status.h"

/* Parses text[0..len); an empty document gives a NODE_NULL root. */
enum plim_status yaml_parse(const char *text, size_t len, const char *name, struct doc **out,
                            struct plim_error *err);

/* Parses a file of at most 16 MiB; PLIM_IO when it cannot be read. */
enum plim_status yaml_load(const char *path, struct doc **out, struct plim_error *err);

/* Sets the kind and value of an unquoted scalar by the core schema. The text must outlive the node. */
void yaml_scalar(const char *text, size_t len, struct node *node);
