/* test_chat_golden.c - chat templates and expressions, byte for byte as transformers renders them.
 *
 * chat/cases.json is made by chat/make_chat.py; a case has the text that transformers gave, or says that it refused.
 */
#include "base/file.h"
#include "base/json.h"
#include "text/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static struct doc *cases;
/* The clock of make_chat.py. */
static const struct tm clock_stands_at = {.tm_year = 125,
                                          .tm_mon = 2,
                                          .tm_mday = 4,
                                          .tm_hour = 15,
                                          .tm_min = 7,
                                          .tm_sec = 9,
                                          .tm_wday = 2,
                                          .tm_yday = 62};

static const char *folder(void)
{
    static char path[512];
    const char *src = getenv("SRC_DIR");
    snprintf(path, sizeof path, "%s/tests/golden/chat", src ? src : ".");
    return path;
}

static int load_cases(void **state)
{
    (void)state;
    char path[600];
    struct plim_error err = {0};
    snprintf(path, sizeof path, "%s/cases.json", folder());
    if (json_load(path, &cases, &err) == PLIM_OK) return 0;
    fprintf(stderr, "%s\n", err.text);
    return -1;
}

static int free_cases(void **state)
{
    (void)state;
    doc_free(cases);
    return 0;
}

static enum plim_status parse_case(const struct node *c, struct chat_template **tmpl, struct plim_error *err)
{
    char path[600];
    const char *file = node_string(node_get(c, "file"), NULL);
    const struct node *text = node_get(c, "template");
    if (!file) return chat_template_parse(text->as.string.text, text->as.string.len, "case", tmpl, err);
    snprintf(path, sizeof path, "%s/%s.jinja", folder(), file);
    return chat_template_load(path, NULL, tmpl, err);
}

static void fill_options(const struct node *c, struct chat_options *options)
{
    const struct node *o = NULL;
    if (node_get(c, "how"))
        o = node_get(node_get(&cases->root, "options"), node_string(node_get(c, "how"), ""));
    *options = (struct chat_options){
        .add_generation_prompt = node_bool(node_get(o, "add_generation_prompt"), false),
        .bos_token = node_string(node_get(o, "bos_token"), NULL),
        .eos_token = node_string(node_get(o, "eos_token"), NULL),
        .tools = node_get(o, "tools"),
        .variables = o ? node_get(o, "variables") : node_get(&cases->root, "variables"),
        .now = &clock_stands_at,
    };
}

static bool same_spans(const struct node *want, const struct chat_spans *got)
{
    bool same = node_count(want) == got->count;
    for (size_t i = 0; same && i < got->count; i++)
        same = node_int(node_item(node_item(want, i), 0), -1) == (int64_t)got->span[i].begin &&
               node_int(node_item(node_item(want, i), 1), -1) == (int64_t)got->span[i].end;
    return same;
}

/* True when the case comes out as it should; otherwise says what was wrong. */
static bool replay(const struct node *c, const struct node *messages)
{
    struct chat_template *tmpl = NULL;
    struct chat_options options;
    struct chat_spans spans = {0};
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    const struct node *want = node_get(c, "output"), *want_spans = node_get(c, "spans");
    fill_options(c, &options);
    enum plim_status status = parse_case(c, &tmpl, &err);
    if (status == PLIM_OK && want_spans)
        status = chat_template_render_spans(tmpl, messages, &options, &out, &spans, &err);
    else if (status == PLIM_OK)
        status = chat_template_render(tmpl, messages, &options, &out, &err);
    bool good = want ? status == PLIM_OK && out.len == want->as.string.len &&
                           memcmp(strbuf_text(&out), want->as.string.text, out.len) == 0
                     : status != PLIM_OK;
    if (good && want_spans) good = same_spans(want_spans, &spans);
    if (!good)
        fprintf(stderr, "case %s\n  wanted %s\n  got    %s\n",
                node_string(node_get(c, node_get(c, "name") ? "name" : "template"), "?"),
                want ? want->as.string.text : "an error", status == PLIM_OK ? strbuf_text(&out) : err.text);
    strbuf_release(&out);
    chat_spans_release(&spans);
    chat_template_free(tmpl);
    return good;
}

static void replay_all(const char *section, size_t at_least)
{
    static const char one[] = "[{\"role\": \"user\", \"content\": \"x\"}]";
    const struct node *list = node_get(&cases->root, section);
    struct doc *plain;
    struct plim_error err = {0};
    int wrong = 0;
    assert_int_equal(json_parse(one, sizeof one - 1, "plain", &plain, &err), PLIM_OK);
    for (size_t i = 0; i < node_count(list); i++) {
        const struct node *c = node_item(list, i), *messages = node_get(node_get(&cases->root, "talks"),
                                                                        node_string(node_get(c, "talk"), ""));
        wrong += !replay(c, messages ? messages : &plain->root);
    }
    doc_free(plain);
    assert_true(node_count(list) >= at_least);
    assert_int_equal(wrong, 0);
}

static void test_families(void **state)
{
    (void)state;
    replay_all("families", 400);
}

static void test_expressions_and_layout(void **state)
{
    (void)state;
    replay_all("small", 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_expressions_and_layout),
    };
    return cmocka_run_group_tests(tests, load_cases, free_cases);
}
