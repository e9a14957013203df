/* bench_tokenizer_parts.c - one part of a tokenizer at a time, fed through a pipe; for comparing with other
 * implementations (tests/golden/tokenizer/check_parts.py) and for timing.
 *
 *     bench_tokenizer_parts normalize|decode|encode SPEC.json < records > results
 *     bench_tokenizer_parts time-normalize|time-encode SPEC.json < text         (one piece a line; best of 5)
 *
 * SPEC.json holds the node of tokenizer.json that the part is built from. A text is its length (u32) and its
 * bytes; a list is its count (u32) and its items. normalize and encode read texts, decode reads lists of texts;
 * normalize and decode write texts, encode writes lists of ids. Numbers are in the machine's order.
 */
#include "base/clock.h"
#include "base/json.h"
#include "text/tokenizer/part.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool read_number(uint32_t *number) { return fread(number, sizeof *number, 1, stdin) == 1; }

static bool read_text(struct strbuf *sb)
{
    uint32_t len;
    if (!read_number(&len) || !strbuf_reserve(sb, len)) return false;
    char *bytes = malloc((size_t)len + 1);
    bool whole = bytes && fread(bytes, 1, len, stdin) == len;
    if (whole) strbuf_addn(sb, bytes, len);
    free(bytes);
    return whole;
}

static void write_text(const struct strbuf *sb)
{
    uint32_t len = (uint32_t)sb->len;
    fwrite(&len, sizeof len, 1, stdout);
    fwrite(strbuf_text(sb), 1, len, stdout);
}

static int run_normalize(const struct node *spec, struct plim_error *err)
{
    struct normalizer *n;
    struct strbuf text = STRBUF_INIT, out = STRBUF_INIT, spare = STRBUF_INIT;
    int lies = 0;
    if (normalizer_build(spec, "spec", &n, err) != PLIM_OK) return 2;
    for (; read_text(&text); strbuf_clear(&text)) {
        normalizer_run(n, strbuf_text(&text), text.len, &out, &spare);
        bool same = out.len == text.len && memcmp(strbuf_text(&out), strbuf_text(&text), out.len) == 0;
        if (!same && normalizer_is_identity(n, strbuf_text(&text), text.len)) lies++;
        write_text(&out);
    }
    if (lies) plim_fail(err, PLIM_BUG, "normalizer_is_identity was wrong %d times", lies);
    normalizer_free(n);
    strbuf_release(&text);
    strbuf_release(&out);
    strbuf_release(&spare);
    return lies != 0;
}

static int run_decode(const struct node *spec, struct plim_error *err)
{
    struct token_decoder *d;
    uint32_t count;
    if (token_decoder_build(spec, "spec", &d, err) != PLIM_OK) return 2;
    while (read_number(&count)) {
        struct strbuf token = STRBUF_INIT, out = STRBUF_INIT;
        struct token_decoding *decoding = NULL;
        bool good = token_decoding_open(d, &decoding, err) == PLIM_OK;
        for (uint32_t i = 0; good && i < count; i++, strbuf_clear(&token))
            good = read_text(&token) &&
                   token_decoding_add(decoding, (struct token_bytes){strbuf_text(&token), token.len}, &out,
                                      err) == PLIM_OK;
        if (good) token_decoding_end(decoding, &out, err);
        write_text(&out);
        token_decoding_close(decoding);
        strbuf_release(&token);
        strbuf_release(&out);
    }
    token_decoder_free(d);
    return 0;
}

struct loaded {
    struct token_vocab *vocab;
    struct token_model *model;
    void *scratch;
    struct scratch_limit limit;
};

static enum plim_status load_model(const struct node *spec, struct loaded *l, struct plim_error *err)
{
    bool unigram = node_get(spec, "vocab") && node_get(spec, "vocab")->kind == NODE_LIST;
    enum plim_status status = token_vocab_build(node_get(spec, "vocab"), "spec", NULL, &l->vocab, err);
    if (status == PLIM_OK)
        status = (unigram ? model_unigram_build : model_wordpiece_build)(spec, "spec", l->vocab, NULL,
                                                                         &l->model, err);
    if (status == PLIM_OK && l->model->ops->scratch_open) {
        const struct encoder_room room = {ENCODER_CACHE, 128 << 10};
        l->scratch = l->model->ops->scratch_open(l->model, &room, &l->limit);
        if (!l->scratch) status = plim_fail(err, PLIM_NO_MEMORY, "no memory for scratch");
    }
    return status;
}

static void unload_model(struct loaded *l)
{
    if (l->scratch) l->model->ops->scratch_close(l->scratch);
    if (l->model) l->model->ops->free(l->model);
    token_vocab_free(l->vocab);
}

static int run_encode(const struct node *spec, struct plim_error *err)
{
    struct loaded l = {0};
    struct strbuf text = STRBUF_INIT;
    struct token_list ids = {0};
    bool good = load_model(spec, &l, err) == PLIM_OK;
    for (; good && read_text(&text); strbuf_clear(&text)) {
        ids.count = 0;
        if (text.len) l.model->ops->encode(l.model, l.scratch, strbuf_text(&text), text.len, &ids);
        uint32_t count = (uint32_t)ids.count;
        fwrite(&count, sizeof count, 1, stdout);
        if (count) fwrite(ids.id, sizeof *ids.id, count, stdout);
    }
    unload_model(&l);
    strbuf_release(&text);
    free(ids.id);
    return good ? 0 : 2;
}

static void read_all(struct strbuf *sb)
{
    char block[1 << 16];
    for (size_t n; (n = fread(block, 1, sizeof block, stdin)) > 0;) strbuf_addn(sb, block, n);
}

static int time_normalize(const struct node *spec, struct plim_error *err)
{
    struct normalizer *n;
    struct strbuf text = STRBUF_INIT, out = STRBUF_INIT, spare = STRBUF_INIT;
    double best = 1e30;
    if (normalizer_build(spec, "spec", &n, err) != PLIM_OK) return 2;
    read_all(&text);
    for (int round = 0; round < 5; round++) {
        double start = clock_seconds();
        for (size_t at = 0, end; at < text.len; at = end + 1) {
            const char *line = text.data + at, *stop = memchr(line, '\n', text.len - at);
            end = stop ? (size_t)(stop - text.data) : text.len;
            if (!normalizer_is_identity(n, line, end - at)) normalizer_run(n, line, end - at, &out, &spare);
        }
        double took = clock_seconds() - start;
        if (took < best) best = took;
    }
    printf("%.1f MB/s\n", (double)text.len / best / 1e6);
    normalizer_free(n);
    strbuf_release(&text);
    strbuf_release(&out);
    strbuf_release(&spare);
    return 0;
}

static int time_encode(const struct node *spec, struct plim_error *err)
{
    struct loaded l = {0};
    struct strbuf text = STRBUF_INIT;
    struct token_list ids = {0};
    double best = 1e30;
    bool good = load_model(spec, &l, err) == PLIM_OK;
    read_all(&text);
    for (int round = 0; good && round < 5; round++) {
        double start = clock_seconds();
        ids.count = 0;
        for (size_t at = 0, end; at < text.len; at = end + 1) {
            const char *line = text.data + at, *stop = memchr(line, '\n', text.len - at);
            end = stop ? (size_t)(stop - text.data) : text.len;
            if (end > at) l.model->ops->encode(l.model, l.scratch, line, end - at, &ids);
        }
        double took = clock_seconds() - start;
        if (took < best) best = took;
    }
    if (good) printf("%zu tokens, %.1f MB/s\n", ids.count, (double)text.len / best / 1e6);
    unload_model(&l);
    strbuf_release(&text);
    free(ids.id);
    return good ? 0 : 2;
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        int (*run)(const struct node *, struct plim_error *);
    } modes[] = {{"normalize", run_normalize},
                 {"decode", run_decode},
                 {"encode", run_encode},
                 {"time-normalize", time_normalize},
                 {"time-encode", time_encode}};
    struct plim_error err = {0};
    struct doc *doc = NULL;
    int code = 2;
    for (size_t i = 0; argc == 3 && i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(argv[1], modes[i].name) != 0) continue;
        if (json_load(argv[2], &doc, &err) != PLIM_OK) break;
        code = modes[i].run(&doc->root, &err);
        doc_free(doc);
    }
    if (code) fprintf(stderr, "bench_tokenizer_parts: %s\n", err.text[0] ? err.text : "MODE SPEC.json");
    return code;
}
