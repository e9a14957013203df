/* facts_table.h - the facts that the planner's clock reads (plan/cost.h), by name, so that a trace tells what its predictions
 * were made from.
 *
 *     facts_json(&facts, &w, "facts");
 *     facts_read(node_get(root, "facts"), &facts);          // missing ones are 0
 */
#pragma once

#include "base/json.h"
#include "plan/facts.h"

void facts_json(const struct device_facts *facts, struct json_writer *w, const char *key);
void facts_read(const struct node *node, struct device_facts *out);
