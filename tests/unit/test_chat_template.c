/* run-tests: not=tsan */
/* test_chat_template.c - loading templates, what is refused and how, bounds, and spans. That rendering is right is
 * shown against transformers in tests/golden/test_chat_golden.c. */
#include "base/file.h"
#include "base/json.h"
#include "text/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

static struct doc *json(const char *text)
{
    struct plim_error err = {0};
    struct doc *doc;
    if (json_parse(text, strlen(text), "test", &doc, &err) != PLIM_OK) fail_msg("%s", err.text);
    return doc;
}

/* Parse and render with these messages (NULL: one from the user); the text goes to out, an error's to err. */
static enum plim_status run(const char *text, const char *messages, const struct chat_options *options,
                            struct strbuf *out, struct plim_error *err)
{
    struct chat_template *tmpl;
    enum plim_status status = chat_template_parse(text, strlen(text), "t", &tmpl, err);
    if (status != PLIM_OK) return status;
    struct doc *doc = json(messages ? messages : "[{\"role\": \"user\", \"content\": \"x\"}]");
    status = chat_template_render(tmpl, &doc->root, options, out, err);
    doc_free(doc);
    chat_template_free(tmpl);
    return status;
}

static void test_render(void **state)
{
    (void)state;
    static const struct {
        const char *text, *messages, *want;
    } rows[] = {
        {"", NULL, ""},
        {"plain\n", NULL, "plain"},
        {"{% for m in messages %}<{{ m.role }}>{{ m['content'] }}{% endfor %}", NULL, "<user>x"},
        {"{{ bos_token }}|{{ eos_token }}|{{ tools }}|{{ add_generation_prompt }}", NULL, "<b>||None|True"},
        {"{{ messages[0].content[0] }}{{ messages[0].content | length }}",
         "[{\"role\": \"user\", \"content\": \"\xc3\xa9\xe2\x82\xac\"}]",
         "\xc3\xa9"
         "2"},
        {"{{ messages[0].n }}", "[{\"role\": \"x\", \"n\": [1, 1.5, true, null, \"s\"]}]",
         "[1, 1.5, True, None, 's']"},
        {"{{ messages[0].thinking }}{{ messages[0].reasoning_content }}",
         "[{\"role\": \"assistant\", \"reasoning\": \"r\"}]", "rr"},
        {"{{ extra.a }}{{ extra.b }}", NULL, "12"},
    };
    struct doc *variables = json("{\"extra\": {\"a\": 1, \"b\": 2}}");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct chat_options options = {
            .add_generation_prompt = true, .bos_token = "<b>", .variables = &variables->root};
        struct strbuf out = STRBUF_INIT;
        struct plim_error err = {0};
        strbuf_add(&out, "before");
        if (run(rows[i].text, rows[i].messages, &options, &out, &err) != PLIM_OK)
            fail_msg("row %zu: %s", i, err.text);
        assert_string_equal(strbuf_text(&out) + 6, rows[i].want);
        strbuf_release(&out);
    }
    doc_free(variables);
}

/* Each is refused with exactly this line, and the output stays as it was. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        enum plim_status status;
        const char *want;
    } rows[] = {
        {"a\n\n{{ x | xmlattr }}", PLIM_UNSUPPORTED, "t:3: filter 'xmlattr' is not supported"},
        {"{{ x is nosuch }}", PLIM_UNSUPPORTED, "t:1: test 'nosuch' is not supported"},
        {"{% if 1 %}{{ 1 | from_json }}{% endif %}", PLIM_UNSUPPORTED,
         "t:1: filter 'from_json' is not supported"}, /* met when it runs */
        {"{% if 0 %}{% for x in y %}{{ 1 | from_json }}{% endfor %}{% endif %}", PLIM_UNSUPPORTED,
         "t:1: filter 'from_json' is not supported"}, /* a loop is looked at at once, as in Jinja */
        {"\n{% include 'x' %}", PLIM_UNSUPPORTED, "t:2: tag 'include' is not supported"},
        {"{% call m() %}{% endcall %}", PLIM_UNSUPPORTED, "t:1: tag 'call' is not supported"},
        {"{{ 'x'.encode() }}", PLIM_UNSUPPORTED, "t:1: method 'encode' of a 'str' is not supported"},
        {"{{ joiner() }}", PLIM_BAD_INPUT, "t:1: 'joiner' is undefined"},
        {"{% for x in y recursive %}{% endfor %}", PLIM_UNSUPPORTED,
         "t:1: a recursive loop is not supported"},
        {"{{ f(*a) }}", PLIM_UNSUPPORTED, "t:1: arguments with * or ** are not supported"},
        {"{% macro m() %}{{ varargs }}{% endmacro %}", PLIM_UNSUPPORTED,
         "t:1: 'varargs' in a macro is not supported"},
        {"{{ '%d' % 3 }}", PLIM_UNSUPPORTED, "t:1: operator '%' of a text is not supported"},
        {"{{ 7 // 2 }}", PLIM_UNSUPPORTED, "t:1: operator '//' is not supported"},
        {"{{ '{:>5}'.format(1) }}", PLIM_UNSUPPORTED, "t:1: format: the field '{:>5}' is not supported"},
        {"{{ 'a' | wordcount }}", PLIM_UNSUPPORTED, "t:1: filter 'wordcount' is not supported"},
        {"{{ 3 is odd }}", PLIM_UNSUPPORTED, "t:1: test 'odd' is not supported"},
        {"{{ [1] | select('gt', 0) | list }}", PLIM_UNSUPPORTED, "t:1: select: test 'gt' is not supported"},
        {"{% with x = 1 %}{% endwith %}", PLIM_UNSUPPORTED, "t:1: tag 'with' is not supported"},
        {"{{ 9223372036854775807 + 1 }}", PLIM_UNSUPPORTED,
         "t:1: a whole number beyond 64 bits is not supported"},
        {"{% if x %}", PLIM_BAD_INPUT, "t:1: {% if %} is never closed"},
        {"\n{% endfor %}", PLIM_BAD_INPUT, "t:2: 'endfor' without its beginning"},
        {"{{ 1 + }}", PLIM_BAD_INPUT, "t:1: expected an expression, found '}}'"},
        {"{{ (1, }}", PLIM_BAD_INPUT, NULL},
        {"{{ 'a }}", PLIM_BAD_INPUT, "t:1: text without its closing quote"},
        {"{# a", PLIM_BAD_INPUT, "t:1: comment without an end '#}'"},
        {"{% break %}", PLIM_BAD_INPUT, "t:1: break and continue belong into a loop"},
        {"a\n{{ raise_exception('roles must ' ~ 'alternate') }}", PLIM_BAD_INPUT,
         "t:2: roles must alternate"},
        {"{{ messages[0].nope.x }}", PLIM_BAD_INPUT, "t:1: 'nope' is undefined"},
        {"{{ nope() }}", PLIM_BAD_INPUT, "t:1: 'nope' is undefined"},
        {"{{ 1 + 'a' }}", PLIM_BAD_INPUT, "t:1: '+' does not work between 'int' and 'str'"},
        {"{{ [].append(1) }}", PLIM_BAD_INPUT,
         "t:1: 'append' would change its list, which a chat template may not do"},
        {"\xff", PLIM_BAD_INPUT, "t:1: the template is not UTF-8"},
        {"{{ 'x' | replace('a') }}", PLIM_BAD_INPUT, "t:1: 'replace' needs 2 arguments"},
        {"{{ [] | tojson(default=1) }}", PLIM_UNSUPPORTED,
         "t:1: 'tojson' with the argument 'default' is not supported"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct strbuf out = STRBUF_INIT;
        struct plim_error err = {0};
        strbuf_add(&out, "kept");
        assert_int_equal(run(rows[i].text, NULL, NULL, &out, &err), rows[i].status);
        if (rows[i].want) assert_string_equal(err.text, rows[i].want);
        assert_string_equal(strbuf_text(&out), "kept");
        strbuf_release(&out);
    }
}

/* A template that would never end, or grow without end, is an error, and soon. */
static void test_bounds(void **state)
{
    (void)state;
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"{% set r = range(9999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
         "takes too long"},
        {"{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}", "recurses too deeply"},
        {"{% set n = namespace(s='12345678') %}{% for i in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
         "too much memory"},
        {"{{ 'ab' * 4611686018427387904 }}", "too much memory"},
        {"{{ [0] * 4611686018427387904 }}", "too much memory"},
        {"{% for i in range(99999) %}{{ 'x' * 99 }}{% endfor %}", "more than"},
        {"{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x }}",
         "nested"},
        {"{% set n = namespace(x=[]) %}{% for i in range(999) %}{% set n.x = [n.x] %}{% endfor %}{{ n.x | "
         "tojson }}",
         "nested"},
        {"{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = [n.x, n.x] %}{% endfor %}"
         "{{ n.x == n.x + [] or n.x == [n.x[0], n.x[1]] }}",
         "t"},
        {"{% set n = namespace() %}{% set n.a = [n] %}{{ n }}", "nested"},
        {"{% set x = 'a' * 900000 %}{% set y = x ~ '' %}{% for i in range(9999) %}{{ x == y }}{{ x < y }}"
         "{{ x.startswith(y) }}{{ y in {x: 1} }}{% endfor %}",
         "takes too long"},
        {"{{ range(100001) }}", "more than 100000"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct chat_options options = {.max_steps = 1000000, .max_bytes = 4 << 20};
        struct strbuf out = STRBUF_INIT;
        struct plim_error err = {0};
        assert_int_equal(run(rows[i].text, NULL, &options, &out, &err), PLIM_BAD_INPUT);
        if (!strstr(err.text, rows[i].want)) fail_msg("row %zu: %s", i, err.text);
        assert_int_equal(out.len, 0);
        strbuf_release(&out);
    }
}

/* Deep nesting in the text itself is refused by the parser. */
static void test_nesting(void **state)
{
    (void)state;
    static const struct {
        const char *begin, *middle, *end;
    } rows[] = {
        {"{{ ", "(", "1"},     {"{{ ", "[", "1"},         {"{{ ", "not ", "1 }}"},
        {"{{ ", "-", "1 }}"},  {"{{ 1", " + 1", " }}"},   {"", "{% if 1 %}", ""},
        {"{{ x", ".y", " }}"}, {"{{ x", "|upper", " }}"}, {"{{ 1", " if 1 else 1", " }}"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct strbuf text = STRBUF_INIT;
        struct plim_error err = {0};
        struct chat_template *tmpl;
        strbuf_add(&text, rows[i].begin);
        for (int k = 0; k < 5000; k++) strbuf_add(&text, rows[i].middle);
        strbuf_add(&text, rows[i].end);
        assert_int_not_equal(chat_template_parse(text.data, text.len, "t", &tmpl, &err), PLIM_OK);
        assert_null(tmpl);
        strbuf_release(&text);
    }
}

/* ---- spans ---- */

static const char talk[] =
    "[{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Yo\"},"
    " {\"role\": \"user\", \"content\": \"So?\"}, {\"role\": \"assistant\", \"content\": \"No\"}]";

static enum plim_status spans_of(const char *text, struct strbuf *out, struct chat_spans *spans,
                                 struct plim_error *err)
{
    struct chat_template *tmpl;
    assert_int_equal(chat_template_parse(text, strlen(text), "t", &tmpl, err), PLIM_OK);
    struct doc *doc = json(talk);
    enum plim_status status = chat_template_render_spans(tmpl, &doc->root, NULL, out, spans, err);
    doc_free(doc);
    chat_template_free(tmpl);
    return status;
}

static void test_spans(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }};{% endfor %}{% if add_generation_prompt "
        "%}<a>{% endif %}",
        "{% for m in messages %}<{{ m.role[0] }}>{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }};{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor "
        "%}",
    };
    for (size_t i = 0; i < 2; i++) {
        struct strbuf out = STRBUF_INIT;
        struct chat_spans spans = {0};
        struct plim_error err = {0};
        strbuf_add(&out, "...");
        assert_int_equal(spans_of(rows[i], &out, &spans, &err), PLIM_OK);
        assert_string_equal(strbuf_text(&out), "...<u>Hi;<a>Yo;<u>So?;<a>No;");
        assert_int_equal(spans.count, 2);
        assert_memory_equal(strbuf_text(&out) + 3 + spans.span[0].begin, "Yo;", 3);
        assert_int_equal(spans.span[0].end - spans.span[0].begin, 3);
        assert_memory_equal(strbuf_text(&out) + 3 + spans.span[1].begin, "No;", 3);
        assert_int_equal(spans.span[1].end, out.len - 3);
        chat_spans_release(&spans);
        strbuf_release(&out);
    }
}

static void test_spans_need_prefixes(void **state)
{
    (void)state;
    struct strbuf out = STRBUF_INIT;
    struct chat_spans spans = {0};
    struct plim_error err = {0};
    assert_int_equal(
        spans_of("{{ messages | length }}{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}",
                 &out, &spans, &err),
        PLIM_UNSUPPORTED);
    assert_non_null(
        strstr(err.text, "t: the template writes the first 1 messages differently when more follow"));
    assert_int_equal(out.len, 0);
    assert_int_equal(spans.count, 0);
    strbuf_release(&out);
    chat_spans_release(&spans);
}

/* Thoughts stay in the last answer alone, as in Qwen3's template: an earlier turn is learned as the whole text has it. */
static void test_spans_of_dropped_thoughts(void **state)
{
    (void)state;
    static const char text[] =
        "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = "
        "loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}<{{ m.role[0] }}>"
        "{% if m.role == 'assistant' and loop.index0 > ns.last %}(hm){% endif %}"
        "{{ m.content.split('</think>')[-1].strip() }};\n{% endfor %}{% if add_generation_prompt %}<a>{% "
        "endif %}";
    struct strbuf out = STRBUF_INIT;
    struct chat_spans spans = {0};
    struct plim_error err = {0};
    if (spans_of(text, &out, &spans, &err) != PLIM_OK) fail_msg("%s", err.text);
    assert_string_equal(strbuf_text(&out), "<u>Hi;\n<a>Yo;\n<u>So?;\n<a>(hm)No;\n");
    assert_int_equal(spans.count, 2);
    assert_memory_equal(strbuf_text(&out) + spans.span[0].begin, "Yo;\n", 4);
    assert_int_equal(spans.span[0].end - spans.span[0].begin, 4);
    assert_memory_equal(strbuf_text(&out) + spans.span[1].begin, "(hm)No;\n", 8);
    assert_int_equal(spans.span[1].end, out.len);
    strbuf_release(&out);
    chat_spans_release(&spans);
}

/* ---- loading ---- */

static char folder[256];

static void put(const char *name, const char *text)
{
    char path[512];
    struct plim_error err = {0};
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (file_write_atomic(path, text, strlen(text), &err) != PLIM_OK) fail_msg("%s", err.text);
}

/* Load, render no message, compare; NULL want: loading fails, and the message has `why` in it. */
static void check_load(const char *name, const char *which, const char *want, const char *why)
{
    char path[512];
    struct chat_template *tmpl;
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    struct doc *none = json("[]");
    snprintf(path, sizeof path, "%s%s%s", folder, *name ? "/" : "", name);
    enum plim_status status = chat_template_load(path, which, &tmpl, &err);
    if (want) {
        if (status != PLIM_OK) fail_msg("%s", err.text);
        assert_int_equal(chat_template_render(tmpl, &none->root, NULL, &out, &err), PLIM_OK);
        assert_string_equal(strbuf_text(&out), want);
    } else {
        assert_int_not_equal(status, PLIM_OK);
        if (!strstr(err.text, why)) fail_msg("%s", err.text);
    }
    doc_free(none);
    strbuf_release(&out);
    chat_template_free(tmpl);
}

static void test_load(void **state)
{
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/chat-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(folder));
    check_load("", NULL, NULL, "neither chat_template.jinja nor tokenizer_config.json");
    put("tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"lstrip\": false}}");
    check_load("", NULL, NULL, "'chat_template' is missing");
    put("tokenizer_config.json",
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\", \"lstrip\": false},"
        " \"pad_token\": null, \"chat_template\": \"C{{ bos_token }}{{ eos_token }}{{ pad_token }}\"}");
    check_load("", NULL, "C<s></s>", NULL);
    check_load("tokenizer_config.json", "default", "C<s></s>", NULL);
    check_load("tokenizer_config.json", "tool_use", NULL, "only one, without a name");
    put("named.json", "{\"chat_template\": [{\"name\": \"default\", \"template\": \"D\"},"
                      " {\"name\": \"tool_use\", \"template\": \"T{{ bos_token }}\"}]}");
    check_load("named.json", NULL, "D", NULL);
    check_load("named.json", "tool_use", "T", NULL);
    check_load("named.json", "rag", NULL, "no chat template 'rag'; there are: default, tool_use");
    put("chat_template.jinja", "J{{ bos_token }}");
    check_load("", NULL, "J<s>", NULL); /* preferred, with the tokens of the file beside it */
    check_load("chat_template.jinja", NULL, "J<s>", NULL);
    put("broken.jinja", "\n{% if %}");
    check_load("broken.jinja", NULL, NULL, "broken.jinja:2: expected an expression");
    check_load("missing.jinja", NULL, NULL, "missing.jinja");
    static const char *const names[] = {"tokenizer_config.json", "named.json", "chat_template.jinja",
                                        "broken.jinja"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        unlink(path);
    }
    rmdir(folder);
}

/* What the caller hands over is checked as well. */
static void test_odd_messages(void **state)
{
    (void)state;
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    assert_int_equal(run("x", "{\"role\": \"user\"}", NULL, &out, &err), PLIM_BAD_INPUT);
    assert_string_equal(err.text, "t:1: messages must be a list");
    assert_int_equal(run("x", "[{}, 3]", NULL, &out, &err), PLIM_BAD_INPUT);
    assert_string_equal(err.text, "t:1: message 2 is not a map with a role");
    assert_int_equal(run("x", "[]", &(struct chat_options){.bos_token = "\xff"}, &out, &err), PLIM_BAD_INPUT);
    strbuf_release(&out);
}

static void test_clock(void **state)
{
    (void)state;
    struct tm tm = {.tm_year = 124, .tm_mon = 6, .tm_mday = 26};
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    assert_int_equal(
        run("{{ strftime_now('%d %b %Y') }}", NULL, &(struct chat_options){.now = &tm}, &out, &err), PLIM_OK);
    assert_string_equal(strbuf_text(&out), "26 Jul 2024");
    assert_int_equal(run("{{ strftime_now('%Y')|int > 2024 }}", NULL, NULL, &out, &err), PLIM_OK);
    strbuf_release(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_render),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_bounds),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_spans),
        cmocka_unit_test(test_spans_need_prefixes),
        cmocka_unit_test(test_spans_of_dropped_thoughts),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_odd_messages),
        cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
