/* bench_tokenize.c - a tokenizer on standard input, and how fast it is; bench/tokenizer_parity.py drives it.
 *
 *     bench_tokenize TOKENIZER encode [special]          records of text -> records of ids
 *     bench_tokenize TOKENIZER decode [skip]             records of ids -> records of text
 *     bench_tokenize TOKENIZER speed FILE [PASSES]       FILE holds records of text; prints MB per processor second, the
 *                                                        median pass
 *
 * A record is a 32-bit little-endian count and that many bytes, or ids of 32 bits each.
 */
#include "base/file.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench {
    struct tokenizer *tok;
    struct encoder *enc;
    struct plim_error err;
    unsigned flags;
};

static void fail(const struct bench *b)
{
    fprintf(stderr, "%s\n", b->err.text);
    exit(1);
}

/* Reads one record of units of `unit` bytes into *buf; false at the end of the input. */
static bool read_record(void **buf, size_t *cap, size_t unit, uint32_t *count)
{
    if (fread(count, 4, 1, stdin) != 1) return false;
    size_t bytes = *count * unit;
    if (bytes > *cap) {
        *cap = 2 * bytes;
        *buf = realloc(*buf, *cap);
        if (!*buf) abort();
    }
    return bytes == 0 || fread(*buf, 1, bytes, stdin) == bytes;
}

static void write_record(const void *data, size_t unit, size_t count)
{
    uint32_t head = (uint32_t)count;
    fwrite(&head, 4, 1, stdout);
    fwrite(data ? data : "", unit, count, stdout);
}

static void encode_all(struct bench *b)
{
    struct token_list ids = {0};
    void *buf = NULL;
    size_t cap = 0;
    uint32_t len;
    while (read_record(&buf, &cap, 1, &len)) {
        ids.count = 0;
        if (encoder_encode(b->enc, buf ? buf : "", len, b->flags, &ids, &b->err) != PLIM_OK) fail(b);
        write_record(ids.id, 4, ids.count);
    }
    token_list_release(&ids);
    free(buf);
}

static void decode_all(struct bench *b)
{
    struct strbuf text = STRBUF_INIT;
    void *buf = NULL;
    size_t cap = 0;
    uint32_t count;
    while (read_record(&buf, &cap, 4, &count)) {
        strbuf_clear(&text);
        if (tokenizer_decode(b->tok, buf, count, b->flags, &text, &b->err) != PLIM_OK) fail(b);
        write_record(strbuf_text(&text), 1, text.len);
    }
    strbuf_release(&text);
    free(buf);
}

/* Processor seconds of this process: what other programs do on the machine does not count. */
static double processor_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static size_t one_pass(struct bench *b, const struct strbuf *file, size_t *bytes)
{
    struct token_list ids = {0};
    size_t tokens = 0;
    *bytes = 0;
    for (size_t at = 0; at + 4 <= file->len;) {
        uint32_t len;
        memcpy(&len, file->data + at, 4);
        at += 4;
        if (len > file->len - at) break;
        ids.count = 0;
        if (encoder_encode(b->enc, file->data + at, len, 0, &ids, &b->err) != PLIM_OK) fail(b);
        tokens += ids.count;
        *bytes += len;
        at += len;
    }
    token_list_release(&ids);
    return tokens;
}

static void speed(struct bench *b, const char *path, int passes)
{
    struct strbuf file = STRBUF_INIT;
    size_t bytes = 0, tokens = 0;
    if (passes < 1 || passes > 101) passes = 7;
    if (file_read(path, (uint64_t)1 << 32, &file, &b->err) != PLIM_OK) fail(b);
    double seconds[101];
    for (int i = 0; i < passes; i++) { /* a new encoder each time: the cache starts empty, as in a job */
        encoder_close(b->enc);
        if (encoder_open(b->tok, &b->enc, &b->err) != PLIM_OK) fail(b);
        double start = processor_seconds();
        tokens = one_pass(b, &file, &bytes);
        seconds[i] = processor_seconds() - start;
    }
    qsort(seconds, (size_t)passes, sizeof *seconds, by_value);
    printf("%.2f MB/s %zu bytes %zu tokens\n", (double)bytes / 1e6 / seconds[passes / 2], bytes, tokens);
    strbuf_release(&file);
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    if (argc < 3) return fprintf(stderr, "bench_tokenize TOKENIZER encode|decode|speed ...\n"), 2;
    if (tokenizer_load(argv[1], &b.tok, &b.err) != PLIM_OK) fail(&b);
    if (encoder_open(b.tok, &b.enc, &b.err) != PLIM_OK) fail(&b);
    if (argc > 3 && strcmp(argv[3], "special") == 0) b.flags = TOKENIZE_SPECIAL;
    if (argc > 3 && strcmp(argv[3], "skip") == 0) b.flags = TOKENIZE_SKIP_SPECIAL;
    if (strcmp(argv[2], "encode") == 0)
        encode_all(&b);
    else if (strcmp(argv[2], "decode") == 0)
        decode_all(&b);
    else if (strcmp(argv[2], "speed") == 0 && argc > 3)
        speed(&b, argv[3], argc > 4 ? atoi(argv[4]) : 7);
    encoder_close(b.enc);
    tokenizer_free(b.tok);
    return 0;
}
