/* test_api_text.c - the public tokenizers, chat templates, vectors and labels (plimsoll/text.h): wrong handles, options and texts, one
 * tokenizer in many threads, vectors that do not depend on how many texts are in a call, and a budget that moves. */
#include <plimsoll/plimsoll.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { TEXTS = 5, WIDTH = 32, LABELS = 5 };

static char folder[400];
static struct plim_context *context;

static const char *const texts[TEXTS] = {"abc", "", "a b c d e f g h", "hello hello", "z"};

static void write_text(const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

/* A golden BERT with a tokenizer whose words are single letters. */
static int set_up(void **state)
{
    (void)state;
    static const char *const files[] = {"config.json", "model.safetensors"};
    const char *src = getenv("SRC_DIR"), *tmp = getenv("TMPDIR");
    char tokenizer[4096], from[800], to[800];
    snprintf(folder, sizeof folder, "%s/plimsoll-text-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(folder));
    char root[512];
    assert_non_null(realpath(src ? src : ".", root));
    for (int i = 0; i < 2; i++) {
        snprintf(from, sizeof from, "%s/tests/golden/bert-labels/%s", root, files[i]);
        snprintf(to, sizeof to, "%s/%s", folder, files[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    int n = snprintf(tokenizer, sizeof tokenizer,
                     "{\"added_tokens\": [{\"id\": 0, \"content\": \"[UNK]\", \"special\": true, "
                     "\"single_word\": false, \"lstrip\": false, "
                     "\"rstrip\": false, \"normalized\": false}], \"normalizer\": null, \"pre_tokenizer\": "
                     "{\"type\": \"Whitespace\"}, "
                     "\"post_processor\": null, \"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", "
                     "\"cleanup\": false}, "
                     "\"model\": {\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", "
                     "\"continuing_subword_prefix\": \"##\", "
                     "\"max_input_chars_per_word\": 100, \"vocab\": {\"[UNK]\": 0");
    for (int i = 0; i < 26; i++)
        n += snprintf(tokenizer + n, sizeof tokenizer - (size_t)n, ", \"%c\": %d, \"##%c\": %d", 'a' + i,
                      1 + i, 'a' + i, 27 + i);
    snprintf(tokenizer + n, sizeof tokenizer - (size_t)n, "}}}\n");
    write_text("tokenizer.json", tokenizer);
    write_text("chat_template.jinja", "{% for m in messages %}{{ m.role }}: {{ m.content }}; {% endfor %}"
                                      "{% if add_generation_prompt %}assistant:{% endif %}");
    return plim_context_open(NULL, &context, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "chat_template.jinja"};
    char path[600];
    plim_context_close(context);
    for (int i = 0; i < 4; i++) snprintf(path, sizeof path, "%s/%s", folder, files[i]), unlink(path);
    return rmdir(folder);
}

static void refused(enum plim_status got, const struct plim_error *err, enum plim_status wanted,
                    const char *words)
{
    if (got != wanted || !strstr(err->text, words) || strchr(err->text, '\n'))
        fail_msg("wanted %d with '%s', got %d: %s", wanted, words, got, err->text);
}

/* --- tokenizers and templates ------------------------------------------------------------------------------------- */

static void *encode_often(void *arg)
{
    const struct plim_tokenizer *t = arg;
    for (int i = 0; i < 200; i++) {
        int32_t ids[8] = {0};
        size_t count = 0;
        char *text = NULL;
        if (plim_tokenizer_encode(t, "abc d", 5, 1, ids, 8, &count, NULL) != PLIM_OK || count != 4)
            return arg;
        if (ids[0] != 1 || ids[1] != 28 || ids[3] != 4) return arg;
        if (plim_tokenizer_decode(t, ids, count, 1, &text, NULL) != PLIM_OK || strcmp(text, "abc d") != 0)
            return arg;
        plim_free(text);
    }
    return NULL;
}

static void tokenizers(void **state)
{
    (void)state;
    struct plim_tokenizer *t = NULL, *bytes = NULL, *none = NULL;
    struct plim_error err = {0};
    pthread_t threads[4];
    int32_t ids[3] = {0}, wrong = 256;
    size_t count;
    char *text = NULL;
    if (plim_tokenizer_open(context, folder, &t, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_int_equal(plim_tokenizer_vocab(t), 53);
    assert_int_equal(plim_tokenizer_eos(t), -1);
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, encode_often, t);
    for (int i = 0; i < 4; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        assert_null(failed);
    }
    assert_int_equal(plim_tokenizer_encode(t, "a b c", 5, 0, ids, 2, &count, NULL), PLIM_OK);
    assert_true(count == 3 && ids[0] == 1 && ids[1] == 2 && ids[2] == 0); /* no more than there is room for */
    assert_int_equal(plim_tokenizer_open(context, "bytes", &bytes, NULL), PLIM_OK);
    refused(plim_tokenizer_decode(bytes, &wrong, 1, 1, &text, &err), &err, PLIM_BAD_INPUT, "256");
    refused(plim_tokenizer_encode(NULL, "a", 1, 0, ids, 1, &count, &err), &err, PLIM_BAD_INPUT, "got NULL");
    refused(plim_tokenizer_encode(t, "a", 1, 0, NULL, 1, &count, &err), &err, PLIM_BAD_INPUT, "NULL");
    refused(plim_tokenizer_open(context, "/nowhere", &none, &err), &err, PLIM_BAD_INPUT, "/nowhere");
    assert_null(none);
    assert_int_equal(plim_tokenizer_vocab(NULL), 0);
    plim_tokenizer_close(bytes);
    plim_tokenizer_close(t);
    plim_tokenizer_close(NULL);
}

static void chat_templates(void **state)
{
    (void)state;
    static const char hello[] = "[{\"role\": \"user\", \"content\": \"Hi\"}]";
    struct plim_error err = {0};
    char *text = NULL;
    if (plim_chat_render(context, folder, hello, 1, &text, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_string_equal(text, "user: Hi; assistant:");
    plim_free(text);
    assert_int_equal(plim_chat_render(context, folder, hello, 0, &text, &err), PLIM_OK);
    assert_string_equal(text, "user: Hi; ");
    plim_free(text);
    refused(plim_chat_render(context, folder, "{}", 1, &text, &err), &err, PLIM_BAD_INPUT, "write an array");
    refused(plim_chat_render(context, folder, "[{", 1, &text, &err), &err, PLIM_BAD_INPUT, "messages");
    refused(plim_chat_render(context, folder, NULL, 1, &text, &err), &err, PLIM_BAD_INPUT, "NULL");
    assert_null(text);
}

/* --- vectors and labels ------------------------------------------------------------------------------------------- */

static struct plim_embed_options options(int labels)
{
    return (struct plim_embed_options){.size = sizeof(struct plim_embed_options),
                                       .model = folder,
                                       .device = "cpu",
                                       .budget = 64 << 20,
                                       .threads = 1,
                                       .labels = labels};
}

static struct plim_embedder *open_embedder(int labels)
{
    struct plim_embedder *e;
    struct plim_error err = {0};
    struct plim_embed_options o = options(labels);
    if (plim_embedder_open(context, &o, &e, &err) != PLIM_OK) fail_msg("%s", err.text);
    return e;
}

static void wrong_options(void **state)
{
    (void)state;
    static const struct {
        struct plim_embed_options o;
        enum plim_status status;
        const char *words;
    } cases[] = {
        {{.model = NULL}, PLIM_BAD_INPUT, "options.model"},
        {{.model = "/nowhere"}, PLIM_BAD_INPUT, "/nowhere"},
        {{.model = folder, .device = "abacus"}, PLIM_BAD_INPUT, "options.device"},
        {{.model = folder, .pooling = "max"}, PLIM_BAD_INPUT, "options.pooling: 'max'"},
        {{.model = folder, .max_length = -1}, PLIM_BAD_INPUT, "options.max_length"},
        {{.model = folder, .device = "cpu", .max_length = 1000},
         PLIM_BAD_INPUT,
         "options.max_length: 1000 is beyond"},
        {{.model = folder, .device = "cpu", .budget = 1 << 20}, PLIM_NO_FIT, "does not fit"},
    };
    struct plim_error err = {0};
    struct plim_embedder *e = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct plim_embed_options o = cases[i].o;
        o.size = sizeof o;
        refused(plim_embedder_open(context, &o, &e, &err), &err, cases[i].status, cases[i].words);
        assert_null(e);
    }
    assert_int_equal(plim_embedder_width(NULL), 0);
    assert_int_equal(plim_embedder_bytes(NULL), 0);
    plim_embedder_close(NULL);
}

static void vectors(void **state)
{
    (void)state;
    struct plim_embedder *e = open_embedder(0);
    struct plim_error err = {0};
    const char *broken[] = {"abc", NULL}, *word = "abc";
    float all[TEXTS - 1][WIDTH], one[WIDTH], again[TEXTS - 1][WIDTH];
    const char *full[] = {texts[0], texts[2], texts[3], texts[4]};
    char *json = NULL;
    assert_int_equal(plim_embedder_width(e), WIDTH);
    if (plim_embed(e, full, TEXTS - 1, all[0], &err) != PLIM_OK) fail_msg("%s", err.text);
    for (int i = 0; i < TEXTS - 1; i++) {
        double length = 0;
        assert_int_equal(plim_embed(e, &full[i], 1, one, NULL), PLIM_OK);
        for (int k = 0; k < WIDTH; k++) length += (double)one[k] * (double)one[k];
        for (int k = 0; k < WIDTH; k++) assert_true(one[k] - all[i][k] < 1e-5f && all[i][k] - one[k] < 1e-5f);
        assert_true(length > 0.999 && length < 1.001);
    }
    uint64_t planned = plim_embedder_bytes(e);
    assert_true(planned > 0 && planned <= 64 << 20);
    assert_int_equal(plim_embedder_set_budget(e, planned - planned / 16, NULL), PLIM_OK);
    assert_true(plim_embedder_bytes(e) <= planned - planned / 16);
    assert_int_equal(plim_embed(e, full, TEXTS - 1, again[0], NULL), PLIM_OK);
    refused(plim_embedder_set_budget(e, 1000, &err), &err, PLIM_NO_FIT, "the budget is 1000");
    refused(plim_embedder_set_budget(e, 1ull << 60, &err), &err, PLIM_BAD_INPUT, "budget");
    assert_int_equal(plim_embedder_set_budget(e, 64 << 20, NULL), PLIM_OK);
    assert_int_equal(plim_embed(e, full, TEXTS - 1, again[0], NULL), PLIM_OK);
    assert_memory_equal(all, again, sizeof all);
    refused(plim_embed(e, &texts[1], 1, one, &err), &err, PLIM_BAD_INPUT,
            "plim_embed: text 1: the text is empty");
    refused(plim_embed(e, broken, 2, again[0], &err), &err, PLIM_BAD_INPUT, "text 2 is NULL");
    refused(plim_classify(e, &word, NULL, 1, NULL, &json, &err), &err, PLIM_BAD_INPUT, "options.labels");
    assert_int_equal(plim_embed(e, NULL, 0, NULL, NULL), PLIM_OK);
    plim_embedder_close(e);
}

static void labels(void **state)
{
    (void)state;
    struct plim_embedder *e = open_embedder(1);
    struct plim_error err = {0};
    struct plim_classify_options o = {.size = sizeof o, .aggregation = "simple", .stride = 4};
    const char *texts_of[2] = {"abc", NULL};
    static char longer[70000];
    float one[WIDTH];
    char *json = NULL;
    memset(longer, 'a', sizeof longer - 1);
    for (size_t i = 3; i < sizeof longer - 1; i += 4) longer[i] = ' ';
    assert_int_equal(plim_embedder_width(e), LABELS);
    if (plim_classify(e, texts_of, NULL, 1, NULL, &json, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_true(!strncmp(json, "[[{\"entity\":", 12));
    plim_free(json);
    texts_of[1] = longer; /* loses its end */
    if (plim_classify(e, texts_of, NULL, 2, NULL, &json, &err) != PLIM_OK) fail_msg("%s", err.text);
    plim_free(json);
    texts_of[1] = "a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k l m n o p q r s";
    if (plim_classify(e, texts_of, NULL, 2, &o, &json, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_non_null(strstr(json, "\"entity_group\""));
    plim_free(json), json = NULL;
    o.aggregation = NULL;
    refused(plim_classify(e, texts_of, NULL, 2, &o, &json, &err), &err, PLIM_BAD_INPUT, "options.stride");
    o.aggregation = "some", o.stride = 0;
    refused(plim_classify(e, texts_of, NULL, 2, &o, &json, &err), &err, PLIM_BAD_INPUT,
            "options.aggregation: 'some'");
    o.aggregation = NULL, o.top = 2;
    refused(plim_classify(e, texts_of, NULL, 2, &o, &json, &err), &err, PLIM_BAD_INPUT,
            "options.top: for labels of whole texts");
    texts_of[1] = NULL;
    refused(plim_classify(e, texts_of, NULL, 2, NULL, &json, &err), &err, PLIM_BAD_INPUT, "text 2 is NULL");
    refused(plim_embed(e, texts_of, 1, one, &err), &err, PLIM_BAD_INPUT, "plim_classify");
    assert_null(json);
    plim_embedder_close(e);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizers), cmocka_unit_test(chat_templates), cmocka_unit_test(wrong_options),
        cmocka_unit_test(vectors),    cmocka_unit_test(labels),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
