/* fuzz_manifest.c - any bytes as a manifest.json: as they are, and sealed with the checksum that such bytes would have, so
 * that what lies behind it is read too. Its files are checked in a folder that has one of them. */
#include "base/hash.h"
#include "base/strbuf.h"
#include "train/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static bool put(const char *dir, const char *name, const void *bytes, size_t n)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    bool good = f && fwrite(bytes, 1, n, f) == n;
    return f && !fclose(f) && good;
}

static void read_and_check(const char *dir, const void *bytes, size_t n)
{
    struct doc *manifest = NULL;
    struct plim_error err = {0};
    if (!put(dir, "manifest.json", bytes, n)) return;
    if (manifest_read(dir, &manifest, &err) == PLIM_OK && manifest)
        manifest_check(dir, manifest, MANIFEST_WEIGHTS | MANIFEST_STATE, 0, 1, &err);
    doc_free(manifest);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char dir[] = "/tmp/fuzz-manifest-XXXXXX", path[64];
    struct strbuf sealed = STRBUF_INIT;
    if (!mkdtemp(dir)) return 0;
    put(dir, "a", "alpha", 5);
    read_and_check(dir, data, size);
    strbuf_addn(&sealed, data, size);
    uint64_t seal = hash64(sealed.data, sealed.len, 0);
    strbuf_addf(&sealed, ",\n  \"checksum\": \"%016" PRIx64 "\"\n}\n", seal);
    if (!sealed.failed) read_and_check(dir, sealed.data, sealed.len);
    strbuf_release(&sealed);
    static const char *const names[] = {"a", "manifest.json"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
    return 0;
}
