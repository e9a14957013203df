/* run-tests: not=tsan */
/* Records with prompts, completions and conversations: what becomes of each form of data, and one line for each bad one. */
#include "data/record.h"
#include "data/record_preference.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define MESSAGE(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
static const char template_text[] = "{% if tools %}<{{ tools[0].name }}>{% endif %}"
                                    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.role == "
                                    "'assistant' %}#{% endif %}{% endfor %}"
                                    "{% if add_generation_prompt %}[assistant]{% endif %}";

static struct chat_template *chat;
static const struct codec bytes = {.eos = 255, .vocab_size = 256};

static int open_chat(void **)
{
    struct plim_error err = {0};
    assert_int_equal(chat_template_parse(template_text, sizeof template_text - 1, "test", &chat, &err),
                     PLIM_OK);
    return 0;
}

static int close_chat(void **)
{
    chat_template_free(chat);
    return 0;
}

static struct record_rules rules_of(enum record_kind kind)
{
    struct record_rules r = {
        .kind = kind, .codec = &bytes, .chat = chat, .append_eos = true, .longest = 4096};
    if (kind == RECORD_PAIR) r.field[0] = "prompt", r.field[1] = "completion";
    if (kind == RECORD_CHAT) r.field[0] = "messages";
    if (kind == RECORD_PREFERENCE) r.field[0] = "prompt", r.field[1] = "chosen", r.field[2] = "rejected";
    if (kind == RECORD_UNPAIRED) r.field[0] = "prompt", r.field[1] = "completion", r.field[2] = "label";
    r.part_most[0] = r.part_most[1] = 64;
    r.tools_field = "tools";
    return r;
}

static enum plim_status encode(const struct record_rules *rules, const char *line, struct token_list *out,
                               struct plim_error *err)
{
    struct record_encoder *enc;
    char copy[1024];
    snprintf(copy, sizeof copy, "%s", line);
    assert_int_equal(record_encoder_open(rules, &enc, err), PLIM_OK);
    enum plim_status status = record_encode(enc, copy, strlen(copy), RECORD_WHOLE, out, err);
    record_encoder_close(enc);
    return status;
}

/* Tokens as text: the end mark is '$', tokens that are not learned are in upper case. */
static void spell(const int32_t *token, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        int32_t id = token_id(token[i]);
        char c = id == 255 ? '$' : (char)id;
        *out++ = !token_is_target(token[i]) && c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
    }
    *out = 0;
}

static void expect_line(const struct record_rules *rules, const char *line, const char *want)
{
    struct token_list out = {0};
    struct plim_error err = {0};
    char text[512];
    if (encode(rules, line, &out, &err) != PLIM_OK) fail_msg("%s: %s", line, err.text);
    spell(out.id, out.count, text);
    assert_string_equal(text, want);
    token_list_release(&out);
}

/* "prompt|first|second" of a preference. */
static void expect_sides(const struct record_rules *rules, const char *line, const char *want, int label)
{
    struct token_list out = {0};
    struct plim_error err = {0};
    char part[3][256], text[800];
    if (encode(rules, line, &out, &err) != PLIM_OK) fail_msg("%s: %s", line, err.text);
    size_t prompt = (size_t)out.id[PREFERENCE_PROMPT], first = (size_t)out.id[PREFERENCE_FIRST];
    assert_int_equal(out.id[PREFERENCE_LABEL], label);
    spell(out.id + PREFERENCE_HEADER, prompt, part[0]);
    spell(out.id + PREFERENCE_HEADER + prompt, first, part[1]);
    spell(out.id + PREFERENCE_HEADER + prompt + first, out.count - PREFERENCE_HEADER - prompt - first,
          part[2]);
    snprintf(text, sizeof text, "%s|%s|%s", part[0], part[1], part[2]);
    assert_string_equal(text, want);
    token_list_release(&out);
}

static void expect_bad(const struct record_rules *rules, const char *line, const char *want)
{
    struct token_list out = {0};
    struct plim_error err = {0};
    assert_int_equal(encode(rules, line, &out, &err), PLIM_BAD_INPUT);
    assert_string_equal(err.text, want);
    assert_int_equal(out.count, 0);
    token_list_release(&out);
}

/* A prompt and its completion, as texts and as conversations; either part may be learned. */
static void test_pairs(void **)
{
    struct record_rules r = rules_of(RECORD_PAIR);
    const char *text = "{\"prompt\": \"ask\", \"completion\": \"tell\"}";
    const char *talk =
        "{\"prompt\": [" MESSAGE("user", "ask") "], \"completion\": [" MESSAGE("assistant", "tell") "]}";
    expect_line(&r, text, "ASKtell$");
    expect_line(&r, talk, "[USER]ASK[ASSISTANT]tell#");
    r.learn_all = true;
    expect_line(&r, text, "asktell$");
    expect_line(&r, talk, "[user]ask[assistant]tell#");
    r.learn_all = false;
    expect_bad(&r, "{\"prompt\": \"ask\", \"completion\": [" MESSAGE("assistant", "tell") "]}",
               "the field 'completion' is a list, not text");
    expect_bad(&r, "{\"prompt\": [" MESSAGE("user", "ask") "], \"completion\": []}",
               "the field 'completion' is empty");
    r.chat = NULL;
    expect_bad(&r, talk,
               "the field 'prompt' is a list of messages; set data.chat_template to the model's folder");
}

static void test_conversations(void **)
{
    struct record_rules r = rules_of(RECORD_CHAT);
    const char *line = "{\"messages\": [" MESSAGE("user", "ask") ", " MESSAGE(
        "assistant", "tell") ", " MESSAGE("user", "more") ", " MESSAGE("assistant", "so") "], \"tools\": %s}";
    char tools[512];
    snprintf(tools, sizeof tools, line, "[{\"name\": \"add\"}]");
    expect_line(&r, tools, "<ADD>[USER]ASK[ASSISTANT]tell#[USER]MORE[ASSISTANT]so#");
    snprintf(tools, sizeof tools, line, "\"[{\\\"name\\\": \\\"add\\\"}]\"");
    expect_line(&r, tools, "<ADD>[USER]ASK[ASSISTANT]tell#[USER]MORE[ASSISTANT]so#");
    snprintf(tools, sizeof tools, line, "null");
    expect_line(&r, tools, "[USER]ASK[ASSISTANT]tell#[USER]MORE[ASSISTANT]so#");
    r.learn_all = true;
    expect_line(&r, tools, "[user]ask[assistant]tell#[user]more[assistant]so#");
    snprintf(tools, sizeof tools, line, "7");
    expect_bad(&r, tools, "the field 'tools' is a number, not a list of tools or a text with one");
}

static void test_preferences(void **)
{
    struct record_rules r = rules_of(RECORD_PREFERENCE);
    expect_sides(&r, "{\"prompt\": \"ask \", \"chosen\": \"well\", \"rejected\": \"bad\"}", "ask |well$|bad$",
                 0);
    expect_sides(&r, "{\"chosen\": \"ask well\", \"rejected\": \"ask bad\"}", "ask| well$| bad$", 0);
    expect_sides(&r, "{\"prompt\": null, \"chosen\": \"yes\", \"rejected\": \"no\"}", "|yes$|no$", 0);
    expect_sides(
        &r,
        "{\"prompt\": [" MESSAGE("user", "ask") "], \"chosen\": [" MESSAGE(
            "assistant", "well") "], \"rejected\": [" MESSAGE("assistant",
                                                              "bad") "], \"tools\": [{\"name\": \"t\"}]}",
        "<t>[user]ask[assistant]|well#|bad#", 0);
    expect_sides(
        &r,
        "{\"chosen\": [" MESSAGE("user", "ask") ", " MESSAGE(
            "assistant", "well") "], \"rejected\": [" MESSAGE("user", "ask") ", " MESSAGE("assistant",
                                                                                          "bad") "]}",
        "[user]ask[assistant]|well#|bad#", 0);
    r.part_most[0] = 3;
    expect_sides(&r, "{\"prompt\": \"prompt\", \"chosen\": \"well\", \"rejected\": \"bad\"}", "pro|wel|bad",
                 0);
}

static void test_references(void **)
{
    struct record_rules r = rules_of(RECORD_PREFERENCE);
    struct token_list out = {0};
    struct plim_error err = {0};
    float logp[2];
    const char *line =
        "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"ref_chosen_logps\": -1.5, "
        "\"reference_rejected_logps\": -2}";
    assert_int_equal(encode(&r, line, &out, &err), PLIM_OK);
    memcpy(logp, out.id + PREFERENCE_REFERENCE, sizeof logp);
    assert_true(logp[0] == -1.5f && logp[1] == -2.0f);
    token_list_release(&out);
}

static void test_unpaired(void **)
{
    struct record_rules r = rules_of(RECORD_UNPAIRED);
    expect_sides(&r, "{\"prompt\": \"ask\", \"completion\": \"well\", \"label\": true}", "ask|well$|", 1);
    expect_sides(&r, "{\"prompt\": \"ask\", \"completion\": \"bad\", \"label\": \"0\"}", "ask|bad$|", 0);
    expect_sides(&r,
                 "{\"prompt\": [" MESSAGE("user", "ask") "], \"completion\": [" MESSAGE(
                     "assistant", "so") "], \"label\": false}",
                 "[user]ask[assistant]|so#|", 0);
    expect_bad(&r, "{\"prompt\": \"ask\", \"completion\": \"well\", \"label\": 2}",
               "the field 'label' is another value, not true or false");
    expect_bad(&r, "{\"prompt\": \"ask\", \"completion\": \"well\"}",
               "the field 'label' is missing; name another one with data.label_field, or skip bad records");
}

static void test_bad_preferences(void **)
{
    static const char *const cases[][2] = {
        {"{\"prompt\": \"a\", \"chosen\": \"same\", \"rejected\": \"same\"}",
         "the fields 'chosen' and 'rejected' are the same; a preference needs two completions that differ"},
        {"{\"chosen\": \"same\", \"rejected\": \"same\"}",
         "the fields 'chosen' and 'rejected' are the same; a preference needs two completions that differ"},
        {"{\"prompt\": \"a\", \"chosen\": \"\", \"rejected\": \"b\"}", "the field 'chosen' is empty"},
        {"{\"prompt\": 3, \"chosen\": \"b\", \"rejected\": \"c\"}",
         "the field 'prompt' is a number, not text like the others"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": [" MESSAGE("assistant", "c") "]}",
         "the field 'rejected' is a list, not text like the others"},
        {"{\"chosen\": [" MESSAGE("user", "a") "], \"rejected\": [" MESSAGE("user", "a") "]}",
         "the field 'chosen' has no message that 'rejected' has not; a preference needs two completions that "
         "differ"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\", \"ref_chosen_logps\": 2}",
         "the field 'ref_chosen_logps' is no log-probability, a number up to 0"},
        {"{\"prompt\": \"a\", \"chosen\": \"b\"}",
         "the field 'rejected' is missing; name another one with data.rejected_field, or skip bad records"},
    };
    struct record_rules r = rules_of(RECORD_PREFERENCE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) expect_bad(&r, cases[i][0], cases[i][1]);
    r.chat = NULL;
    expect_bad(
        &r, "{\"prompt\": [], \"chosen\": [], \"rejected\": []}",
        "the field 'chosen' is a list of messages, and there is no chat template; set data.chat_template");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pairs),       cmocka_unit_test(test_conversations),
        cmocka_unit_test(test_preferences), cmocka_unit_test(test_references),
        cmocka_unit_test(test_unpaired),    cmocka_unit_test(test_bad_preferences)};
    return cmocka_run_group_tests(tests, open_chat, close_chat);
}
