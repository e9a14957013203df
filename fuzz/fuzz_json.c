/* fuzz_json.c - any bytes as JSON: parsed and freed, or refused with a line; with strings copied and with strings left in
 * the text it is the same tree. */
#include "base/json.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool same_bytes(const char *a, size_t a_len, const char *b, size_t b_len)
{
    return a_len == b_len && (!a_len || memcmp(a, b, a_len) == 0);
}

static void agree(const struct node *a, const struct node *b)
{
    if (a->kind != b->kind || a->line != b->line || node_count(a) != node_count(b)) abort();
    if (!same_bytes(a->key, a->key_len, b->key, b->key_len)) abort();
    if (a->kind == NODE_STRING &&
        !same_bytes(a->as.string.text, a->as.string.len, b->as.string.text, b->as.string.len))
        abort();
    for (size_t i = 0; i < node_count(a); i++) agree(node_item(a, i), node_item(b, i));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct doc *copied = NULL, *taken = NULL;
    struct strbuf text = STRBUF_INIT;
    struct plim_error err = {0};
    strbuf_addn(&text, data, size);
    enum plim_status first = json_parse((const char *)data, size, "fuzz", &copied, &err);
    enum plim_status second = json_parse_taking(&text, "fuzz", NULL, &taken, &err);
    if (first != second) abort();
    if (first == PLIM_OK) agree(&copied->root, &taken->root);
    doc_free(copied);
    doc_free(taken);
    return 0;
}
