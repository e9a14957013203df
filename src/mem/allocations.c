/* allocations.c - how counted allocations are told; allocations_wrap.c counts them, allocations_absent.c does not. */
#define _GNU_SOURCE /* dladdr */
#include "mem/allocations.h"
#include "base/bytes.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { TOLD_MOST = 32 };

void allocations_place(const void *site, char *out, size_t size)
{
    Dl_info info = {0};
    bool known = dladdr(site, &info) && info.dli_fname;
    const char *slash = known ? strrchr(info.dli_fname, '/') : NULL;
    const char *base = known ? info.dli_fbase : NULL;
    snprintf(out, size, "%.80s+0x%zx",
             !known  ? "?"
             : slash ? slash + 1
                     : info.dli_fname,
             (size_t)((const char *)site - base));
}

void allocations_text(struct strbuf *out, int most)
{
    struct allocation_site top[TOLD_MOST];
    int count = allocations_grown(top, most < TOLD_MOST ? most : TOLD_MOST);
    for (int i = 0; i < count; i++) {
        char bytes[BYTES_TEXT], place[128];
        allocations_place(top[i].site, place, sizeof place);
        strbuf_addf(out, "%s%s in %lld blocks at %s", i ? ", " : "",
                    bytes_format(bytes, (uint64_t)top[i].bytes), (long long)top[i].blocks, place);
    }
}

void allocations_json(struct json_writer *w, const char *key, int most)
{
    struct allocation_site top[TOLD_MOST];
    int count = allocations_grown(top, most < TOLD_MOST ? most : TOLD_MOST);
    if (!allocations_counted()) return;
    json_begin_array(w, key);
    for (int i = 0; i < count; i++) {
        char place[128];
        allocations_place(top[i].site, place, sizeof place);
        json_begin_object(w, NULL);
        json_str(w, "site", place);
        json_int(w, "bytes", top[i].bytes);
        json_int(w, "blocks", top[i].blocks);
        json_int(w, "grown", top[i].bytes - top[i].before);
        json_end_object(w);
    }
    json_end_array(w);
}
