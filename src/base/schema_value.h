/* schema_value.h - converts one value between a node, its text and a field; internal to schema.c.
 *
 * Errors say what is wrong with the value; the caller prefixes the place and the key.
 */
#pragma once

#include "base/schema.h"

/* Checks the node against the row and stores it in the row's field. The node is not null; the row is not an
 * alias. */
enum plim_status schema_store(const struct schema_row *row, const struct node *node, void *target,
                              struct bump *store, struct plim_error *err);

/* Converts what a user typed for this row to a node: lists are split at commas, texts stay unchanged. The node's
 * parts live in store. */
enum plim_status schema_text_node(const struct schema_row *row, const char *text, struct bump *store,
                                  struct node *out, struct plim_error *err);

/* The value of the row's field as text. Different values never give the same text. */
void schema_exact(const struct schema_row *row, const void *target, struct strbuf *out);

/* Appends the row's type for documentation: "whole number, 1 to 65536". */
void schema_type(const struct schema_row *row, struct strbuf *out);
