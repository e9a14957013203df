/* fuzz_json.c - any bytes as JSON: parsed and freed, or refused with a line. */
#include "base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct doc *doc = NULL;
    struct plim_error err = {0};
    if (json_parse((const char *)data, size, "fuzz", &doc, &err) == PLIM_OK) doc_free(doc);
    return 0;
}
