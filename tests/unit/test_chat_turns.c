/* run-tests: not=tsan */
/* test_chat_turns.c - what the assistant wrote, found by turns (text/chat/turns.h), is what rendering every prefix finds;
 * in a number of steps that grows with the messages, not with their square. */
#include "base/file.h"
#include "base/json.h"
#include "base/rng.h"
#include "text/chat/tree.h"
#include "text/chat_template.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#define LOOP(body)  "{% for m in messages %}" body "{% endfor %}"
#define PROMPT      "{% if add_generation_prompt %}<assistant>{% endif %}"
#define PLAIN       "<{{ m.role }}>{{ m.content }};"
#define LOOP_PROMPT "{% if loop.last and add_generation_prompt %}<assistant>{% endif %}"

static const struct {
    const char *text; /* a file of tests/golden/chat when it ends in .jinja */
    bool proved;
} templates[] = {
    {"chatml.jinja", true},
    {"llama3.jinja", true},
    {"mistral_v01.jinja", true},
    {"qwen2.jinja", true},
    {"qwen25.jinja", true},
    {"llama31.jinja", true},
    {"mistral_v02.jinja", true},
    {"mistral_v03.jinja", false}, /* looks for the last user's message */
    {"macros.jinja", false},      /* two loops, and a namespace */
    {LOOP(PLAIN) PROMPT, true},
    {LOOP(PLAIN LOOP_PROMPT), true},
    {LOOP("{% if not loop.first %}|{% endif %}" PLAIN LOOP_PROMPT) "{{ messages[-1].role if false }}", true},
    {LOOP(PLAIN) "{% if messages[-1].role == 'user' and add_generation_prompt %}<assistant>{% endif %}",
     true},
    {"{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}[{{ messages[0].content }}]{% else %}"
     "{% set rest = messages %}{% endif %}{% for m in rest %}" PLAIN "{% endfor %}" PROMPT,
     true},
    {"{% set rest = messages[1:] if messages[0].role == 'system' else messages %}{% for m in rest %}" PLAIN
     "{{ messages[2].role[0] }}{{ rest[1].role[0] }}{% endfor %}" PROMPT,
     true},
    {LOOP("{% if loop.index0 == 0 or messages[loop.index0 - 1].role != m.role %}({% endif %}" PLAIN
          "{% if loop.last or messages[loop.index0 + 1].role != m.role %}){% endif %}") PROMPT,
     true},
    {LOOP("{% if messages[loop.index0 - 1].role != m.role %}({% endif %}" PLAIN) PROMPT,
     true}, /* the last at first */
    {LOOP("{{ loop.nextitem.role if loop.nextitem }}" PLAIN) PROMPT, true},
    {LOOP("{% if add_generation_prompt %}!{% endif %}" PLAIN) PROMPT, true}, /* other texts with a prompt */
    {LOOP(PLAIN "{% if loop.index == 9 %}{% break %}{% endif %}") PROMPT, true},
    {LOOP("{% if m.role == 'system' %}{% continue %}{% endif %}" PLAIN) PROMPT, true},
    {LOOP("{% for w in m.content.split() %}{{ w }}{{ '_' if not loop.last }}{% endfor %}" PLAIN) PROMPT,
     true},
    {"{% if messages %}" LOOP(PLAIN) PROMPT "{% endif %}", true},
    {"{% for m in other %}{% endfor %}{% set ns = namespace(a=1) %}{% set ns.a = 2 %}" LOOP(
         PLAIN "{{ ns.a }}") PROMPT,
     true},
    {"{% set messages = messages[1:] %}" LOOP(PLAIN) PROMPT, true},
    {"{% set n = messages | length %}" LOOP(PLAIN "{{ n }}"), false},
    {LOOP("{{ messages | length }}" PLAIN), false},
    {LOOP(PLAIN "{{ loop.length }}"), false},
    {LOOP(PLAIN "{{ loop.revindex }}"), false},
    {LOOP(PLAIN "{{ messages[-1].content }}"), false},
    {LOOP(PLAIN "{{ messages[loop.index0 + 2].role }}"), false},
    {"{% for m in messages if m.role != 'system' %}" PLAIN "{% endfor %}" PROMPT, false},
    {"{% for m in messages[:-1] %}" PLAIN "{% endfor %}", false},
    {"{% for m in messages[::-1] %}" PLAIN "{% endfor %}", false},
    {"{% set ns = namespace(n=0) %}" LOOP("{% set ns.n = ns.n + 1 %}{{ ns.n }}" PLAIN) PROMPT, false},
    {"{% set it = 'abc' | map('upper') %}" LOOP("{{ it | join }}" PLAIN) PROMPT, false},
    {"{% set ns = namespace(n=0) %}{% macro f() %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{% endmacro %}" LOOP(
         "{{ f() }}" PLAIN),
     false},
    {LOOP("{{ 'x' if loop.changed(m.role) }}" PLAIN) PROMPT, false},
    {"{% macro f(l) %}{{ l | length }}{% endmacro %}" LOOP(PLAIN "{{ f(messages) }}"), false},
};
enum { TEMPLATES = sizeof templates / sizeof *templates };

static struct chat_template *open_template(int i)
{
    struct chat_template *tmpl = NULL;
    struct plim_error err = {0};
    const char *text = templates[i].text, *src = getenv("SRC_DIR");
    char path[600];
    size_t len = strlen(text);
    enum plim_status status;
    if (len > 6 && !strcmp(text + len - 6, ".jinja")) {
        snprintf(path, sizeof path, "%s/tests/golden/chat/%s", src ? src : ".", text);
        status = chat_template_load(path, NULL, &tmpl, &err);
    } else
        status = chat_template_parse(text, len, "t", &tmpl, &err);
    if (status != PLIM_OK) fail_msg("%s: %s", text, err.text);
    return tmpl;
}

/* ---- conversations ---- */

enum { MOST = 400 };

struct talk {
    const char *role[MOST];
    char content[MOST][24];
    size_t count;
};

static uint64_t dice(uint64_t seed, uint64_t i, uint64_t sides) { return rng_below(seed, 0, i, sides); }

/* Mostly a question and an answer in turn; `wild` ones have runs of a role and tools. */
static void make_talk(struct talk *t, uint64_t seed, size_t count, bool wild)
{
    static const char *const roles[] = {"user", "assistant", "tool", "assistant"};
    bool system = dice(seed, 1, 2);
    t->count = count;
    for (size_t i = 0; i < count; i++) {
        t->role[i] = roles[(i + system) % 2];
        if (wild && i > 1) t->role[i] = roles[dice(seed, 100 + i, 4)];
        if (i == 0 && system) t->role[i] = "system";
        snprintf(t->content[i], sizeof t->content[i], "%s%d %d", dice(seed, 2000 + i, 9) ? "w" : "",
                 (int)dice(seed, 1000 + i, 5), (int)i);
    }
}

static struct doc *messages_of(const struct talk *t, size_t count)
{
    struct strbuf text = STRBUF_INIT;
    struct doc *doc = NULL;
    struct plim_error err = {0};
    strbuf_add(&text, "[");
    for (size_t i = 0; i < count; i++)
        strbuf_addf(&text, "%s{\"role\": \"%s\", \"content\": \"%s\"}", i ? "," : "", t->role[i],
                    t->content[i]);
    strbuf_add(&text, "]");
    if (json_parse(text.data, text.len, "talk", &doc, &err) != PLIM_OK) fail_msg("%s", err.text);
    strbuf_release(&text);
    return doc;
}

/* ---- every prefix ---- */

static const struct chat_options with_tokens = {.bos_token = "<s>", .eos_token = "</s>"};

/* The length of the first messages alone; -1: not a prefix of the whole, or refused. */
static int64_t prefix(const struct chat_template *tmpl, const struct talk *t, size_t count, bool prompt,
                      const struct strbuf *whole)
{
    struct doc *doc = messages_of(t, count);
    struct strbuf out = STRBUF_INIT;
    struct plim_error err = {0};
    struct chat_options options = with_tokens;
    options.add_generation_prompt = prompt;
    enum plim_status status = chat_template_render(tmpl, &doc->root, &options, &out, &err);
    int64_t len = (int64_t)out.len;
    if (status != PLIM_OK || out.len > whole->len || memcmp(strbuf_text(&out), strbuf_text(whole), out.len))
        len = -1;
    strbuf_release(&out);
    doc_free(doc);
    return len;
}

/* As chat_template.h describes it; false: refused. */
static bool by_prefixes(const struct chat_template *tmpl, const struct talk *t, const struct strbuf *whole,
                        struct chat_span *spans, size_t *count)
{
    *count = 0;
    for (size_t i = 0; i < t->count; i++) {
        size_t first = i;
        if (strcmp(t->role[i], "assistant")) continue;
        while (i + 1 < t->count && !strcmp(t->role[i + 1], "assistant")) i++;
        int64_t begin = prefix(tmpl, t, first, true, whole), end = prefix(tmpl, t, i + 1, false, whole);
        if (begin < 0 || end < 0) return false;
        spans[(*count)++] = (struct chat_span){(size_t)begin, (size_t)(end < begin ? begin : end)};
    }
    return true;
}

static bool compare(const struct chat_template *tmpl, const struct talk *t)
{
    static struct chat_span want[MOST];
    size_t count;
    struct doc *doc = messages_of(t, t->count);
    struct strbuf whole = STRBUF_INIT, out = STRBUF_INIT;
    struct chat_spans got = {0};
    struct plim_error err = {0};
    bool good = chat_template_render(tmpl, &doc->root, &with_tokens, &whole, &err) == PLIM_OK &&
                by_prefixes(tmpl, t, &whole, want, &count);
    enum plim_status status = chat_template_render_spans(tmpl, &doc->root, &with_tokens, &out, &got, &err);
    if (good) assert_int_equal(status, PLIM_OK); /* else contents may tell */
    if (good) {
        assert_int_equal(got.count, count);
        assert_memory_equal(got.span, want, count * sizeof *want);
        assert_string_equal(strbuf_text(&out), strbuf_text(&whole));
    }
    chat_spans_release(&got);
    strbuf_release(&whole);
    strbuf_release(&out);
    doc_free(doc);
    return good;
}

static void test_turns_are_prefixes(void **state)
{
    (void)state;
    static struct talk t;
    for (int i = 0; i < TEMPLATES; i++) {
        struct chat_template *tmpl = open_template(i);
        int good = 0;
        if ((tmpl->loop != NULL) != templates[i].proved) fail_msg("%s", templates[i].text);
        for (uint64_t seed = 0; seed < 24; seed++) {
            make_talk(&t, seed + 1, 7 + dice(seed, 0, 12), seed % 3 == 2);
            good += compare(tmpl, &t);
        }
        print_message("%3d of 24 conversations have spans: %.60s\n", good, templates[i].text);
        chat_template_free(tmpl);
    }
}

/* ---- steps ---- */

/* The least bound with which spans are found. */
static uint64_t steps_of(const struct chat_template *tmpl, size_t count)
{
    static struct talk t;
    make_talk(&t, 2, count, false);
    struct doc *doc = messages_of(&t, count);
    uint64_t low = 1, high = 10000000;
    while (low < high) {
        struct strbuf out = STRBUF_INIT;
        struct chat_spans spans = {0};
        struct plim_error err = {0};
        struct chat_options options = with_tokens;
        options.max_steps = (low + high) / 2;
        bool enough = chat_template_render_spans(tmpl, &doc->root, &options, &out, &spans, &err) == PLIM_OK;
        *(enough ? &high : &low) = options.max_steps + !enough;
        chat_spans_release(&spans);
        strbuf_release(&out);
    }
    doc_free(doc);
    return low;
}

static void test_steps_grow_with_messages(void **state)
{
    (void)state;
    int measured = 0;
    for (int i = 0; i < TEMPLATES; i++) {
        struct chat_template *tmpl = open_template(i);
        uint64_t half = templates[i].proved ? steps_of(tmpl, MOST / 2) : 10000000;
        if (half < 10000000) {
            uint64_t all = steps_of(tmpl, MOST);
            print_message("%7lld %7lld %.60s\n", (long long)half, (long long)all, templates[i].text);
            assert_true(2 * all <= 5 * half);
            measured++;
        }
        chat_template_free(tmpl);
    }
    assert_true(measured >= 14);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_turns_are_prefixes),
        cmocka_unit_test(test_steps_grow_with_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
