/* fuzz_pickle.c - any bytes as a pickle: a tree of bounded depth, or refused with a line. */
#include "base/node_build.h"
#include "base/pickle_read.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct quota quota = {.most = 64 << 20, .why = "the most for a fuzzed pickle"};
    struct plim_error err = {0};
    struct doc *doc;
    if (pickle_parse(data, size, "fuzz", &quota, &doc, &err) != PLIM_OK) return 0;
    if (quota.used != doc->store.total) abort();
    int depth =
        0; /* along the last children: children are shared, so a walk of all of them may have no end in sight */
    for (const struct node *at = &doc->root; node_count(at); at = node_item(at, node_count(at) - 1))
        if (node_count(at) > size || ++depth > NODE_DEPTH_MAX) abort();
    doc_free(doc);
    return 0;
}
