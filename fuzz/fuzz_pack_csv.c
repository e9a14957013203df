/* fuzz_pack_csv.c - any bytes as an interval list: packed without overlap, or refused with a line. */
#include "plan/pack.h"
#include "plan/pack_csv.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct pack_csv csv;
    struct pack_result result;
    struct plim_error err = {0};
    int a, b;
    if (pack_csv_read(&csv, "fuzz", (const char *)data, size, &err) != PLIM_OK) return 0;
    enum plim_status status = pack_items(csv.items, csv.n, &(struct pack_limits){0}, &result, &err);
    if (status == PLIM_OK && pack_conflict(csv.items, csv.n, &a, &b)) abort();
    pack_csv_release(&csv);
    return 0;
}
