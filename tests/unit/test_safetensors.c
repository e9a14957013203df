/* run-tests: not=tsan */
/* test_safetensors.c - files that tell the truth are read and written; files that lie are refused by name. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "store/safetensors.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct folder {
    char dir[64];
    char path[128];
};

static int make_folder(void **state)
{
    struct folder *f = calloc(1, sizeof *f);
    if (!f) return -1;
    strcpy(f->dir, "/tmp/plimsoll-safetensors-XXXXXX");
    if (!mkdtemp(f->dir)) return -1;
    snprintf(f->path, sizeof f->path, "%s/model.safetensors", f->dir);
    *state = f;
    return 0;
}

static int remove_folder(void **state)
{
    struct folder *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", f->dir);
    int rc = system(command);
    free(f);
    return rc;
}

static void write_bytes(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* A file with this header text, a stated header length (-1: the true one) and `data` zero bytes. */
static void write_raw(const char *path, const char *header, int64_t stated, size_t data)
{
    size_t len = strlen(header);
    unsigned char *bytes = calloc(1, 8 + len + data);
    assert_non_null(bytes);
    uint64_t n = stated < 0 ? len : (uint64_t)stated;
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(n >> (8 * i));
    memcpy(bytes + 8, header, len);
    write_bytes(path, bytes, 8 + len + data);
    free(bytes);
}

static void expect_error(const char *path, enum plim_status status, const char *part)
{
    struct safetensors set;
    struct plim_error err = {0};
    assert_int_equal(safetensors_open(path, &set, &err), status);
    if (!strstr(err.text, part)) print_error("'%s' lacks '%s'\n", err.text, part);
    assert_non_null(strstr(err.text, part));
    assert_null(strchr(err.text, '\n'));
}

static void lies_are_refused(void **state)
{
    static const struct {
        const char *header;
        int64_t stated;
        size_t data;
        const char *part;
    } lies[] = {
        {"{}", INT64_MAX, 0, "truncated or no safetensors"},
        {"{}", 100000001, 0, "truncated or no safetensors"},
        {"{}", 3, 0, "truncated or no safetensors"},
        {"{\"a\":", -1, 0, "model.safetensors"},
        {"[]", -1, 0, "not a map"},
        {"", -1, 0, "model.safetensors"},
        {"{\"a\":1}", -1, 0, "tensor 'a': its description is not a map"},
        {"{\"a\":{\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 4, "unknown dtype 'F99'"},
        {"{\"a\":{\"dtype\":3,\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 4, "dtype is not a text"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", -1, 4, "shape is not a list"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}", -1, 4, "dimension"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", -1, 4, "dimension"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", -1, 4,
         "8 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,4]}}", -1, 4,
         "more elements"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,4]}}", -1, 4,
         "whole bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 3,
         "truncated, fetch it again"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,9223372036854775807]}}", -1, 4,
         "truncated"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", -1, 4, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", -1, 4, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", -1, 4, "data_offsets"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", -1, 4, "F32[2] needs 8 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         -1, 8, "'b' overlaps 'a'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}", -1, 8,
         "4 bytes before tensor 'a'"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", -1, 9, "5 bytes after the last"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},"
         "\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}",
         -1, 0, "model.safetensors"},
        {"{\"a\\u0000b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", -1, 0, "NUL"},
        {"{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", -1, 0, "empty"},
    };
    struct folder *f = *state;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        write_raw(f->path, lies[i].header, lies[i].stated, lies[i].data);
        expect_error(f->path, PLIM_BAD_INPUT, lies[i].part);
    }
    write_bytes(f->path, "1234567", 7);
    expect_error(f->path, PLIM_BAD_INPUT, "too few");
    unlink(f->path);
    expect_error(f->path, PLIM_IO, "model.safetensors");
    expect_error(f->dir, PLIM_BAD_INPUT, "neither model.safetensors nor");
}

/* Any prefix of a good file is refused, and any single changed byte of its header is survived. */
static void damage_is_survived(void **state)
{
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
                                 "\"b\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[16,18]}}  ";
    struct folder *f = *state;
    unsigned char bytes[512] = {sizeof header - 1};
    size_t n = 8 + sizeof header - 1 + 18;
    memcpy(bytes + 8, header, sizeof header - 1);
    struct safetensors set;
    for (size_t cut = 0; cut < n; cut++) {
        write_bytes(f->path, bytes, cut);
        assert_int_equal(safetensors_open(f->path, &set, NULL), PLIM_BAD_INPUT);
    }
    for (size_t i = 0; i < n - 18; i++) {
        unsigned char kept = bytes[i];
        bytes[i] ^= 0x11;
        write_bytes(f->path, bytes, n);
        if (safetensors_open(f->path, &set, NULL) == PLIM_OK) safetensors_close(&set);
        bytes[i] = kept;
    }
    write_bytes(f->path, bytes, n);
    assert_int_equal(safetensors_open(f->path, &set, NULL), PLIM_OK);
    assert_int_equal(set.count, 2);
    assert_int_equal(safetensors_find(&set, "b")->ndim, 0);
    assert_int_equal(safetensors_find(&set, "b")->count, 1);
    safetensors_close(&set);
}

static void file_cut_after_opening(void **state)
{
    struct folder *f = *state;
    struct safetensors set;
    struct plim_error err = {0};
    float out[4];
    write_raw(f->path, "{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}}", -1, 16);
    assert_int_equal(safetensors_open(f->path, &set, &err), PLIM_OK);
    assert_int_equal(truncate(f->path, 40), 0);
    assert_int_equal(safetensors_read_all(&set, safetensors_find(&set, "a"), DT_F32, out, &err),
                     PLIM_BAD_INPUT);
    assert_non_null(strstr(err.text, "tensor 'a'"));
    safetensors_close(&set);
}

/* Three tensors of different types; value i of tensor k is i + k. */
static const struct safetensors_entry entries[] = {
    {"wide", DT_F32, 2, {3, 100000}}, {"ids", DT_I32, 1, {5}}, {"narrow", DT_BF16, 1, {64}}};

static void write_set(const char *dir, uint64_t shard_bytes)
{
    struct safetensors_writer w;
    struct plim_error err = {0};
    static float wide[300000];
    int32_t ids[5];
    uint16_t narrow[64];
    for (int i = 0; i < 300000; i++) wide[i] = (float)i;
    for (int i = 0; i < 5; i++) ids[i] = i + 1;
    for (int i = 0; i < 64; i++) narrow[i] = f32_to_bf16((float)(i + 2));
    assert_int_equal(safetensors_writer_begin(&w, dir, entries, 3, shard_bytes, &err), PLIM_OK);
    const char *bytes = (const char *)wide;
    for (size_t at = 0; at < sizeof wide; at += 7777) { /* pieces that fit nothing */
        size_t n = sizeof wide - at < 7777 ? sizeof wide - at : 7777;
        assert_int_equal(safetensors_writer_put(&w, bytes + at, n, &err), PLIM_OK);
    }
    assert_int_equal(safetensors_writer_put(&w, ids, sizeof ids, &err), PLIM_OK);
    assert_int_equal(safetensors_writer_put(&w, narrow, sizeof narrow, &err), PLIM_OK);
    assert_int_equal(safetensors_writer_end(&w, &err), PLIM_OK);
}

static void check_set(const char *path)
{
    struct safetensors set;
    struct plim_error err = {0};
    static float wide[300000];
    static uint16_t half[300000];
    int32_t ids[5];
    float narrow[64];
    assert_int_equal(safetensors_open(path, &set, &err), PLIM_OK);
    assert_int_equal(set.count, 3);
    const struct safetensor *t = safetensors_find(&set, "wide");
    assert_int_equal(safetensors_read_all(&set, t, DT_F32, wide, &err), PLIM_OK);
    for (int i = 0; i < 300000; i++) assert_true(wide[i] == (float)i);
    assert_int_equal(safetensors_read_all(&set, t, DT_BF16, half, &err), PLIM_OK);
    for (int i = 0; i < 300000; i++) assert_int_equal(half[i], f32_to_bf16((float)i));
    assert_int_equal(safetensors_read_all(&set, safetensors_find(&set, "ids"), DT_I32, ids, &err), PLIM_OK);
    for (int i = 0; i < 5; i++) assert_int_equal(ids[i], i + 1);
    assert_int_equal(safetensors_read_all(&set, safetensors_find(&set, "narrow"), DT_F32, narrow, &err),
                     PLIM_OK);
    for (int i = 0; i < 64; i++) assert_true(narrow[i] == (float)(i + 2));
    assert_int_equal(safetensors_read_all(&set, safetensors_find(&set, "ids"), DT_F32, wide, &err),
                     PLIM_UNSUPPORTED);
    assert_null(safetensors_find(&set, "absent"));
    safetensors_close(&set);
}

static bool in_folder(const struct folder *f, const char *name)
{
    char path[192];
    snprintf(path, sizeof path, "%s/%s", f->dir, name);
    return access(path, F_OK) == 0;
}

static void one_file_round_trip(void **state)
{
    struct folder *f = *state;
    write_set(f->dir, 0);
    check_set(f->dir);
    check_set(f->path);
}

static void shards_round_trip(void **state)
{
    struct folder *f = *state;
    write_set(f->dir, 100);
    assert_true(in_folder(f, "model-00003-of-00003.safetensors"));
    assert_true(in_folder(f, "model.safetensors.index.json"));
    assert_false(in_folder(f, "model.safetensors"));
    check_set(f->dir);
}

/* Elements [share * file, share * (file + 1)) of each tensor, as far as it has them. */
static void write_piece(const char *dir, int file, int files)
{
    struct safetensors_writer w;
    struct safetensors_entry own[3] = {0};
    struct plim_error err = {0};
    size_t count = 0;
    int64_t first[3], have[3] = {300000, 5, 64};
    for (size_t k = 0; k < 3; k++) {
        int64_t share =
            k == 1 ? 5 : have[k] / 2 - 7; /* ids have one owner; the third file has what is left */
        int64_t begin = share * file, end = file + 1 < files ? share * (file + 1) : have[k];
        if (end > have[k]) end = have[k];
        if (begin >= end) continue;
        own[count] = (struct safetensors_entry){entries[k].name, entries[k].type, 1, {end - begin}};
        first[count++] = begin;
    }
    assert_int_equal(safetensors_piece_begin(&w, dir, file, files, own, count, &err), PLIM_OK);
    for (size_t k = 0; k < count; k++)
        for (int64_t i = first[k]; i < first[k] + own[k].dim[0]; i++) {
            float wide = (float)i;
            int32_t id = (int32_t)i + 1;
            uint16_t narrow = f32_to_bf16((float)(i + 2));
            const void *element = own[k].type == DT_F32   ? (const void *)&wide
                                  : own[k].type == DT_I32 ? (const void *)&id
                                                          : (const void *)&narrow;
            assert_int_equal(safetensors_writer_put(&w, element, dtype_size(own[k].type), &err), PLIM_OK);
        }
    assert_int_equal(safetensors_writer_end(&w, &err), PLIM_OK);
}

/* Sums up where elements begin, and refuses one that is not its number. */
static enum plim_status count_elements(void *arg, int64_t first, const void *elements, int64_t n,
                                       struct plim_error *err)
{
    int64_t *seen = arg;
    (void)err;
    for (int64_t i = 0; i < n; i++) assert_true(((const float *)elements)[i] == (float)(first + i));
    *seen += n;
    return PLIM_OK;
}

static void pieces_are_read_as_one(void **state)
{
    struct folder *f = *state;
    struct plim_error err = {0};
    struct safetensors set;
    int64_t seen = 0;
    for (int file = 0; file < 3; file++) write_piece(f->dir, file, 3);
    assert_int_equal(safetensors_write_pieces_index(f->dir, 3, entries, 3, &err), PLIM_OK);
    assert_true(in_folder(f, "piece-00003-of-00003.safetensors") && in_folder(f, SAFETENSORS_PIECES));
    check_set(f->dir);
    assert_int_equal(safetensors_open(f->dir, &set, &err), PLIM_OK);
    const struct safetensor *wide = safetensors_find(&set, "wide");
    assert_true(wide->ndim == 2 && wide->dim[0] == 3 && wide->npieces == 3 && wide->bytes == 1200000);
    assert_int_equal(safetensors_read_part(&set, wide, DT_F32, 149000, 2000, count_elements, &seen, &err),
                     PLIM_OK);
    assert_int_equal(seen, 2000);
    safetensors_close(&set);
}

static void pieces_that_lie(void **state)
{
    struct folder *f = *state;
    struct plim_error err = {0};
    struct safetensors_entry other[3] = {entries[0], entries[1], entries[2]};
    for (int file = 0; file < 3; file++) write_piece(f->dir, file, 3);
    assert_int_equal(safetensors_write_pieces_index(f->dir, 2, entries, 3, &err), PLIM_OK);
    expect_error(f->dir, PLIM_IO, "piece-00001-of-00002"); /* there is no such file */
    other[0].dim[0] = 4;
    assert_int_equal(safetensors_write_pieces_index(f->dir, 3, other, 3, &err), PLIM_OK);
    expect_error(f->dir, PLIM_BAD_INPUT, "its pieces have 300000 elements, its shape 400000");
    assert_int_equal(safetensors_write_pieces_index(f->dir, 3, entries, 2, &err), PLIM_OK);
    expect_error(f->dir, PLIM_BAD_INPUT, "narrow"); /* which nobody named */
    other[0] = entries[0], other[1].name = "nowhere";
    assert_int_equal(safetensors_write_pieces_index(f->dir, 3, other, 3, &err), PLIM_OK);
    expect_error(f->dir, PLIM_BAD_INPUT, "ids");
}

/* A set of the other form is replaced, not left for readers to prefer. */
static void forms_replace_each_other(void **state)
{
    struct folder *f = *state;
    write_set(f->dir, 0);
    write_set(f->dir, 100);
    assert_false(in_folder(f, "model.safetensors"));
    check_set(f->dir);
    write_set(f->dir, 0);
    assert_false(in_folder(f, "model.safetensors.index.json"));
    check_set(f->dir);
}

static void abandoned_writes_leave_nothing(void **state)
{
    struct folder *f = *state;
    struct safetensors_writer w;
    struct plim_error err = {0};
    char command[160];
    write_set(f->dir, 100);
    assert_int_equal(safetensors_writer_begin(&w, f->dir, entries, 3, 100, &err), PLIM_OK);
    assert_int_equal(safetensors_writer_put(&w, "1234", 4, &err), PLIM_OK);
    safetensors_writer_abandon(&w);
    assert_int_equal(safetensors_writer_begin(&w, f->dir, entries, 3, 100, &err), PLIM_OK);
    assert_int_equal(safetensors_writer_end(&w, &err), PLIM_BUG);
    snprintf(command, sizeof command, "test $(ls '%s' | wc -l) = 4", f->dir);
    assert_int_equal(system(command), 0);
    check_set(f->dir);
}

/* A set that could not be finished has no index: the old one would name tensors of two sets. */
static void half_a_set_has_no_index(void **state)
{
    struct folder *f = *state;
    struct safetensors_writer w;
    struct plim_error err = {0};
    char path[192];
    write_set(f->dir, 100);
    assert_int_equal(safetensors_writer_begin(&w, f->dir, entries, 3, 100, &err), PLIM_OK);
    static const char zeros[300000 * 4];
    size_t left = sizeof zeros + 5 * 4 + 64 * 2;
    for (size_t n; left > 0; left -= n) {
        n = left < sizeof zeros ? left : sizeof zeros;
        assert_int_equal(safetensors_writer_put(&w, zeros, n, &err), PLIM_OK);
    }
    snprintf(path, sizeof path, "%s/model-00002-of-00003.safetensors", f->dir);
    assert_true(unlink(path) == 0 && mkdir(path, 0777) == 0);
    assert_int_equal(safetensors_writer_end(&w, &err), PLIM_IO);
    assert_false(in_folder(f, "model.safetensors.index.json"));
    rmdir(path);
}

static void indexes_that_lie(void **state)
{
    static const struct {
        const char *index, *part;
    } lies[] = {
        {"{", "index.json"},
        {"{}", "weight_map"},
        {"{\"weight_map\":{}}", "weight_map"},
        {"{\"weight_map\":{\"a\":3}}", "beside the index"},
        {"{\"weight_map\":{\"a\":\"../x.safetensors\"}}", "beside the index"},
        {"{\"weight_map\":{\"a\":\"..\"}}", "beside the index"},
        {"{\"weight_map\":{\"a\":\"s1\",\"zz\":\"s1\"}}", "'zz' is missing from s1"},
        {"{\"weight_map\":{\"a\":\"s2\",\"b\":\"s1\"}}", "missing from s"},
        {"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s3\"}}", "occurs twice"},
    };
    struct folder *f = *state;
    char path[192];
    const char *const shards[][2] = {{"s1", "a"}, {"s2", "b"}, {"s3", "a"}};
    for (int i = 0; i < 3; i++) {
        char header[128];
        snprintf(path, sizeof path, "%s/%s", f->dir, shards[i][0]);
        snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[0,6]}}",
                 shards[i][1]);
        write_raw(path, header, -1, 6);
    }
    snprintf(path, sizeof path, "%s/model.safetensors.index.json", f->dir);
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        write_bytes(path, lies[i].index, strlen(lies[i].index));
        expect_error(f->dir, PLIM_BAD_INPUT, lies[i].part);
    }
    static const char absent[] = "{\"weight_map\":{\"a\":\"s9\"}}";
    write_bytes(path, absent, sizeof absent - 1);
    expect_error(f->dir, PLIM_IO, "s9");
    unlink(path);
    snprintf(path, sizeof path, "%s/pytorch_model.bin", f->dir);
    write_bytes(path, "x", 1);
    expect_error(f->dir, PLIM_UNSUPPORTED, "safe_serialization");
}

#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, make_folder, remove_folder)

int main(void)
{
    const struct CMUnitTest tests[] = {
        IN_FOLDER(lies_are_refused),
        IN_FOLDER(damage_is_survived),
        IN_FOLDER(file_cut_after_opening),
        IN_FOLDER(one_file_round_trip),
        IN_FOLDER(shards_round_trip),
        IN_FOLDER(pieces_are_read_as_one),
        IN_FOLDER(pieces_that_lie),
        IN_FOLDER(forms_replace_each_other),
        IN_FOLDER(abandoned_writes_leave_nothing),
        IN_FOLDER(half_a_set_has_no_index),
        IN_FOLDER(indexes_that_lie),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
