/* run-tests: not=tsan */
/* Manifests and fingerprints: what is written is read back, what was touched is named, what matters is seen. */
#include "base/file.h"
#include "base/hash.h"
#include "base/json.h"
#include "train/fingerprint.h"
#include "train/manifest.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char folder[256];
static struct plim_error err;

static const char *in_folder(const char *name)
{
    static char path[400];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

/* Without the care of file_write_atomic, which syncs: there are thousands of these. */
static void put(const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(in_folder(name), "w");
    assert_non_null(f);
    assert_true(fwrite(bytes, 1, n, f) == n);
    assert_int_equal(fclose(f), 0);
}

static int make_folder(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/manifest-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int drop_folder(void **state)
{
    static const char *const names[] = {"a", "b", "manifest.json", "large"};
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unlink(in_folder(names[i]));
    return rmdir(folder);
}

static void write_manifest(void)
{
    static const char run[] = "{\"training.seed\":\"7\",\"text\":\"\\\"checksum\\\": \\\"0\\\"\"}";
    struct manifest_files files = {0};
    struct knobs knobs = {.micro_batch = 4, .accumulation = 2};
    struct doc *facts = NULL;
    put("a", "alpha", 5);
    put("b", "beta", 4);
    assert_int_equal(json_parse(run, strlen(run), "run", &facts, &err), PLIM_OK);
    manifest_add(&files, "a", 5, hash64("alpha", 5, 0));
    assert_int_equal(manifest_add_file(&files, folder, "b", &err), PLIM_OK);
    assert_int_equal(manifest_add_file(&files, folder, "absent", &err), PLIM_OK);
    assert_int_equal(files.count, 2);
    struct manifest_about about = {
        .step = 12, .now = 99, .machine = "here", .knobs = &knobs, .run = &facts->root};
    assert_int_equal(manifest_write(folder, &about, &files, &err), PLIM_OK);
    manifest_files_release(&files);
    doc_free(facts);
}

static void manifests_read_back(void **state)
{
    struct doc *doc;
    (void)state;
    assert_int_equal(manifest_read(folder, &doc, &err), PLIM_OK);
    assert_null(doc); /* there is none yet */
    write_manifest();
    assert_int_equal(manifest_read(folder, &doc, &err), PLIM_OK);
    assert_int_equal(node_int(node_get(&doc->root, "step"), 0), 12);
    assert_int_equal(node_int(node_get(&doc->root, "now"), 0), 99);
    assert_int_equal(node_int(node_path(&doc->root, "knobs.micro_batch"), 0), 4);
    assert_string_equal(node_string(node_get(node_get(&doc->root, "run"), "training.seed"), ""), "7");
    assert_int_equal(manifest_check(folder, doc, MANIFEST_WEIGHTS | MANIFEST_STATE, 0, 1, &err), PLIM_OK);
    doc_free(doc);
}

/* No byte of the manifest or of a file it lists can change unnoticed. */
static void every_byte_is_sealed(void **state)
{
    struct strbuf text = STRBUF_INIT;
    struct doc *doc;
    (void)state;
    write_manifest();
    assert_int_equal(file_read(in_folder("manifest.json"), 1 << 20, &text, &err), PLIM_OK);
    for (size_t i = 0; i < text.len; i++) {
        text.data[i] ^= 1;
        put("manifest.json", text.data, text.len);
        assert_int_equal(manifest_read(folder, &doc, &err), PLIM_BAD_INPUT);
        assert_null(doc);
        text.data[i] ^= 1;
    }
    for (size_t n = 0; n < text.len; n++) {
        put("manifest.json", text.data, n);
        assert_int_equal(manifest_read(folder, &doc, &err), PLIM_BAD_INPUT);
    }
    put("manifest.json", text.data, text.len);
    assert_int_equal(manifest_read(folder, &doc, &err), PLIM_OK);
    put("b", "betA", 4);
    assert_int_equal(manifest_check(folder, doc, MANIFEST_WEIGHTS, 0, 1, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "/b: damaged"));
    unlink(in_folder("b"));
    assert_int_equal(manifest_check(folder, doc, MANIFEST_WEIGHTS, 0, 1, &err), PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "missing"));
    assert_int_equal(manifest_check(folder, doc, MANIFEST_STATE, 0, 1, &err), PLIM_OK);
    doc_free(doc);
    strbuf_release(&text);
}

static uint64_t fingerprint(const char *name)
{
    struct inputs in;
    uint64_t value;
    const char *path = in_folder(name);
    assert_int_equal(inputs_find(&path, 1, &in, &err), PLIM_OK);
    assert_int_equal(fingerprint_inputs(&in, &value, &err), PLIM_OK);
    inputs_release(&in);
    return value;
}

static void poke(const char *name, off_t at, char byte)
{
    int fd = open(in_folder(name), O_RDWR | O_CREAT, 0666);
    assert_true(fd >= 0 && pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

/* Small data count byte by byte, large ones by blocks and size. */
static void fingerprints_see_edits(void **state)
{
    (void)state;
    put("a", "some text for a row", 19);
    uint64_t before = fingerprint("a");
    for (off_t i = 0; i < 19; i++) {
        put("a", "some text for a row", 19);
        poke("a", i, '~');
        assert_true(fingerprint("a") != before);
    }
    off_t size = (off_t)FINGERPRINT_WHOLE + 12345, stride = size / FINGERPRINT_BLOCKS;
    poke("large", size - 1, 'x'); /* sparse */
    before = fingerprint("large");
    for (off_t at = 0; at < size; at += 100 * stride) {
        poke("large", at + 5, 'y');
        assert_true(fingerprint("large") != before);
        poke("large", at + 5, 0);
        assert_true(fingerprint("large") == before);
    }
    poke("large", size - 1, 'z');
    assert_true(fingerprint("large") != before);
    poke("large", size - 1, 'x');
    assert_int_equal(truncate(in_folder("large"), size + 1), 0);
    assert_true(fingerprint("large") != before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(manifests_read_back),
        cmocka_unit_test(every_byte_is_sealed),
        cmocka_unit_test(fingerprints_see_edits),
    };
    return cmocka_run_group_tests(tests, make_folder, drop_folder);
}
