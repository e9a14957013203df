/* run-tests: not=tsan */
/* The parts of the server that need no network: stop strings, parameters, events, metrics, keys, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/json.h"
#include "net/secret.h"
#include "net/http_answers.h"
#include "serve/ask.h"
#include "serve/metrics.h"
#include "serve/server.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* --- stop strings -------------------------------------------------------------------------------------------- */

/* The text in pieces of `step` bytes; which string stopped it. */
static int feed(const struct stop_string *strings, int count, const char *text, size_t step,
                struct strbuf *out)
{
    struct stop_text stop = {.strings = strings, .count = count};
    int found = -1;
    for (size_t at = 0, len = strlen(text); at < len && found < 0; at += step)
        found = stop_text_add(&stop, text + at, len - at < step ? len - at : step, out);
    if (found < 0) stop_text_end(&stop, out);
    stop_text_release(&stop);
    return found;
}

static void stop_strings_wherever_the_text_is_cut(void **state)
{
    static const struct stop_string strings[] = {{"abcd", 4}, {"bc", 2}, {"\xc3\xa9!", 3}, {"zz", 2}};
    static const struct {
        const char *text, *out;
        int found;
    } cases[] = {
        {"xxabx", "xxabx", -1},
        {"xabcd", "xa", 1}, /* bc is whole before abcd is */
        {"caf\xc3\xa9!x", "caf", 2},
        {"caf\xc3\xa9?", "caf\xc3\xa9?", -1},
        {"z", "z", -1},
        {"zzz", "", 3},
        {"", "", -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t step = 1; step < 8; step++) {
            struct strbuf out = STRBUF_INIT;
            assert_int_equal(feed(strings, 4, cases[i].text, step, &out), cases[i].found);
            assert_string_equal(strbuf_text(&out), cases[i].out);
            strbuf_release(&out);
        }
    }
}

static void stop_string_is_held_back_no_longer_than_needed(void **state)
{
    static const struct stop_string strings[] = {{"\n\nQ:", 4}};
    struct stop_text stop = {.strings = strings, .count = 1};
    struct strbuf out = STRBUF_INIT;
    (void)state;
    assert_int_equal(stop_text_add(&stop, "one\n", 4, &out), -1);
    assert_string_equal(strbuf_text(&out), "one");
    assert_int_equal(stop_text_add(&stop, "two", 3, &out), -1);
    assert_string_equal(strbuf_text(&out), "one\ntwo");
    assert_int_equal(stop_text_add(&stop, "\n\nQ", 3, &out), -1);
    assert_int_equal(stop_text_add(&stop, ": why", 5, &out), 0);
    assert_string_equal(strbuf_text(&out), "one\ntwo");
    stop_text_release(&stop);
    strbuf_release(&out);
}

static void without_stop_strings_text_passes(void **state)
{
    struct strbuf out = STRBUF_INIT;
    (void)state;
    assert_int_equal(feed(NULL, 0, "anything", 3, &out), -1);
    assert_string_equal(strbuf_text(&out), "anything");
    strbuf_release(&out);
}

/* --- parameters ---------------------------------------------------------------------------------------------- */

static bool ask(const char *json, enum ask_form form, struct ask *out, struct refusal *why, struct doc **doc)
{
    struct plim_error err = {0};
    *why = (struct refusal){0};
    assert_int_equal(json_parse(json, strlen(json), "body", doc, &err), PLIM_OK);
    return ask_read(&(*doc)->root, form, out, why);
}

static void parameters_are_read(void **state)
{
    struct ask a;
    struct refusal why;
    struct doc *doc;
    (void)state;
    assert_true(ask(
        "{\"model\":\"m\",\"prompt\":\"x\",\"max_tokens\":7,\"temperature\":0.5,\"top_p\":0.9,\"top_k\":-1,"
        "\"n\":2,\"seed\":-3,\"stop\":[\"a\",\"b\"],\"logprobs\":3,\"echo\":true,\"stream\":true,"
        "\"stream_options\":{\"include_usage\":true},\"user\":\"u\",\"best_of\":1,\"suffix\":null}",
        ASK_COMPLETION, &a, &why, &doc));
    assert_string_equal(a.model, "m");
    assert_int_equal(a.max_tokens, 7);
    assert_int_equal(a.top_k, 0);
    assert_int_equal(a.n, 2);
    assert_int_equal(a.stops, 2);
    assert_int_equal(a.logprobs, 3);
    assert_true(a.echo && a.stream && a.usage_wanted);
    struct sampling s = ask_sampling(&a, 99);
    assert_true(s.temperature > 0.49 && s.temperature < 0.51 && s.seed == (uint64_t)-3);
    doc_free(doc);
    assert_true(ask("{\"messages\":[],\"logprobs\":true,\"top_logprobs\":4}", ASK_CHAT, &a, &why, &doc));
    assert_int_equal(a.logprobs, 4);
    assert_int_equal(a.max_tokens, -1);
    assert_int_equal(ask_sampling(&a, 99).seed, 99);
    doc_free(doc);
    assert_true(ask("{\"prompt\":\"x\"}", ASK_COMPLETION, &a, &why, &doc));
    assert_int_equal(a.max_tokens, 16);
    assert_int_equal(a.logprobs, -1);
    doc_free(doc);
}

static void wrong_parameters_are_named(void **state)
{
    static const struct {
        enum ask_form form;
        const char *json;
        int status;
        const char *param, *says;
    } cases[] = {
        {ASK_COMPLETION, "{\"max_tokens\":\"7\"}", 422, "max_tokens", "whole number"},
        {ASK_COMPLETION, "{\"max_tokens\":0}", 422, "max_tokens", "1 or more"},
        {ASK_COMPLETION, "{\"max_tokens\":1.5}", 422, "max_tokens", "whole number"},
        {ASK_COMPLETION, "{\"max_tokens\":-1}", 422, "max_tokens", "range"},
        {ASK_COMPLETION, "{\"temperature\":-0.1}", 422, "temperature", "range"},
        {ASK_COMPLETION, "{\"top_p\":1.01}", 422, "top_p", "range"},
        {ASK_COMPLETION, "{\"n\":0}", 422, "n", "range"},
        {ASK_COMPLETION, "{\"n\":1000}", 422, "n", "range"},
        {ASK_COMPLETION, "{\"stop\":\"\"}", 422, "stop", "1 to"},
        {ASK_COMPLETION, "{\"stop\":[1]}", 422, "stop", "text"},
        {ASK_COMPLETION, "{\"logprobs\":21}", 422, "logprobs", "0 to 20"},
        {ASK_COMPLETION, "{\"stream\":1}", 422, "stream", "true or false"},
        {ASK_COMPLETION, "{\"stream_options\":{\"include_usage\":true}}", 422, "stream_options", "stream"},
        {ASK_COMPLETION, "{\"model\":3}", 422, "model", "text"},
        {ASK_COMPLETION, "{\"max_token\":3}", 422, "max_token", "max_tokens"},
        {ASK_COMPLETION, "{\"best_of\":3}", 422, "best_of", "not supported"},
        {ASK_COMPLETION, "{\"logit_bias\":{\"1\":2}}", 422, "logit_bias", "not supported"},
        {ASK_CHAT, "{\"tools\":[{}]}", 422, "tools", "not supported"},
        {ASK_CHAT, "{\"top_logprobs\":2}", 422, "top_logprobs", "logprobs"},
        {ASK_CHAT, "{\"response_format\":{\"type\":\"json_object\"}}", 422, "response_format", "text"},
        {ASK_CHAT, "{\"prompt\":\"x\"}", 422, "prompt", "unknown"},
        {ASK_TGI, "{\"max_new_tokens\":0}", 422, "max_new_tokens", "range"},
        {ASK_COMPLETION, "{\"\":3}", 400, "", "no name"},
        {ASK_COMPLETION, "{\"n\\u0000x\":1}", 422, "n", "unknown"},
        {ASK_COMPLETION, "[]", 400, "", "JSON object"},
    };
    struct ask a;
    struct refusal why;
    struct doc *doc;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_false(ask(cases[i].json, cases[i].form, &a, &why, &doc));
        assert_int_equal(why.status, cases[i].status);
        assert_string_equal(why.param, cases[i].param);
        if (!strstr(why.message, cases[i].says)) fail_msg("%s: %s", cases[i].json, why.message);
        doc_free(doc);
    }
}

/* --- events, refusals ---------------------------------------------------------------------------------------- */

static void events_are_data_lines(void **state)
{
    struct strbuf out = STRBUF_INIT;
    (void)state;
    sse_event(&out, "[DONE]", 6);
    sse_event(&out, "", 0);
    sse_event(&out, "a\nb\r\nc\rd\n", 9);
    assert_string_equal(strbuf_text(&out),
                        "data: [DONE]\n\ndata: \n\ndata: a\ndata: b\ndata: c\ndata: d\ndata: \n\n");
    strbuf_release(&out);
}

static void refusals_are_json(void **state)
{
    struct refusal why = {0};
    struct plim_error err = {0};
    struct strbuf out = STRBUF_INIT;
    (void)state;
    assert_false(refuse(&why, 422, "n", "invalid_value", "n: \"%d\"", 3));
    refusal_write(&why, &out);
    assert_string_equal(strbuf_text(&out),
                        "{\"error\":{\"message\":\"n: \\\"3\\\"\",\"type\":\"invalid_request_error\","
                        "\"param\":\"n\",\"code\":\"invalid_value\"}}");
    strbuf_release(&out);
    plim_fail(&err, PLIM_BUSY, "full");
    refuse_error(&why, NULL, &err);
    assert_int_equal(why.status, 429);
    plim_fail(&err, PLIM_NO_FIT, "never");
    refuse_error(&why, NULL, &err);
    assert_int_equal(why.status, 400);
    plim_fail(&err, PLIM_BUG, "bug");
    refuse_error(&why, NULL, &err);
    assert_int_equal(why.status, 500);
}

/* --- metrics ------------------------------------------------------------------------------------------------- */

static void histograms_add_up(void **state)
{
    struct metrics m;
    struct metrics_now now = {.engine = {.blocks = 8, .blocks_used = 2, .running = 1}};
    struct strbuf out = STRBUF_INIT;
    (void)state;
    metrics_init(&m);
    metrics_observe(&m, METRIC_FIRST_TOKEN, 0.0005);
    metrics_observe(&m, METRIC_FIRST_TOKEN, 0.001); /* a bound belongs to its bucket */
    metrics_observe(&m, METRIC_FIRST_TOKEN, 1e6);
    metrics_ended(&m, END_LENGTH);
    metrics_answered(&m, 200);
    metrics_answered(&m, 429);
    metrics_answered(&m, 200);
    metrics_write(&m, &now, "vllm:", "a\"b\\c\n", &out);
    const char *text = strbuf_text(&out);
    assert_non_null(strstr(
        text, "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\\\\c\\n\",le=\"0.001\"} 2\n"));
    assert_non_null(
        strstr(text, "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\\\\c\\n\",le=\"80\"} 2\n"));
    assert_non_null(strstr(
        text, "vllm:time_to_first_token_seconds_bucket{model_name=\"a\\\"b\\\\c\\n\",le=\"+Inf\"} 3\n"));
    assert_non_null(
        strstr(text, "vllm:time_to_first_token_seconds_count{model_name=\"a\\\"b\\\\c\\n\"} 3\n"));
    assert_non_null(strstr(text, "vllm:kv_cache_usage_perc{model_name=\"a\\\"b\\\\c\\n\"} 0.25\n"));
    assert_non_null(strstr(text, "finished_reason=\"length\"} 1\n"));
    assert_non_null(strstr(text, "code=\"200\"} 2\n"));
    assert_non_null(strstr(text, "code=\"429\"} 1\n"));
    assert_true(metrics_mean(&m, METRIC_FIRST_TOKEN) > 3e5);
    assert_true(metrics_mean(&m, METRIC_E2E) <= 0);
    strbuf_release(&out);
    metrics_release(&m);
}

/* --- keys ---------------------------------------------------------------------------------------------------- */

static void write_file(char *path, size_t size, const char *text)
{
    const char *folder = getenv("TMPDIR");
    snprintf(path, size, "%s/keys", folder ? folder : "/tmp");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    chmod(path, 0600);
}

static void keys_match_whole(void **state)
{
    char path[4096];
    struct secrets keys;
    struct plim_error err = {0};
    (void)state;
    write_file(path, sizeof path, "# ours\nalpha-key-1\r\n\nbeta-key-22\n");
    assert_int_equal(secrets_load(path, &keys, &err), PLIM_OK);
    assert_int_equal(keys.count, 2);
    assert_false(keys.open_to_others);
    assert_true(secrets_match(&keys, "alpha-key-1", 11));
    assert_true(secrets_match(&keys, "beta-key-22", 11));
    assert_false(secrets_match(&keys, "alpha-key-", 10));
    assert_false(secrets_match(&keys, "alpha-key-1alpha-key-1", 22)); /* a key said twice is another one */
    assert_false(secrets_match(&keys, "", 0));
    secrets_release(&keys);
    assert_false(secrets_match(&keys, "", 0));
    chmod(path, 0644);
    assert_int_equal(secrets_load(path, &keys, &err), PLIM_OK);
    assert_true(keys.open_to_others);
    secrets_release(&keys);
    unlink(path);
}

static void bad_keys_are_refused_without_being_told(void **state)
{
    static const char *const texts[] = {"", "# only a remark\n", "short\n", "two words of it\n"};
    char path[4096];
    struct secrets keys;
    struct plim_error err = {0};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        write_file(path, sizeof path, texts[i]);
        assert_int_equal(secrets_load(path, &keys, &err), PLIM_BAD_INPUT);
        assert_null(strstr(err.text, "two words"));
    }
    unlink(path);
    assert_int_equal(secrets_load(path, &keys, &err), PLIM_IO);
}

static void server_bytes_count_everything(void **state)
{
    struct server_options small = {.limits = HTTP_LIMITS, .tree_bytes = 1 << 20, .answer_bytes = 1 << 20},
                          large = small;
    (void)state;
    if (!http_present()) skip();
    large.answer_bytes += 54321;
    assert_int_equal(server_bytes(&large) - server_bytes(&small), 54321);
    large = small, large.limits.connections += 100;
    assert_true(server_bytes(&large) - server_bytes(&small) >= 100 * 2 * small.limits.head_bytes);
    large = small, large.limits.bodies_bytes += 12345;
    assert_int_equal(server_bytes(&large) - server_bytes(&small), 12345);
}

static void server_fits_a_small_budget(void **state)
{
    struct server_options o = {.limits = HTTP_LIMITS};
    (void)state;
    if (!http_present()) skip();
    server_fit(&o, INT64_MAX);
    assert_int_equal(o.tree_bytes, SERVER_TREE);
    assert_int_equal(o.limits.connections, 1024);
    server_fit(&o, 40 << 20);
    assert_true(server_bytes(&o) <= 40 << 20);
    assert_in_range(o.limits.body_bytes, 1 << 20, 2 << 20);
    server_fit(&o, 1);
    assert_int_equal(o.limits.connections, 16);
    assert_true(server_bytes(&o) < 4 << 20);
}

/* A larger budget leaves more for the engine, and never less than the sizes really take. */
static void server_share_leaves_more(void **state)
{
    const struct server_options usual = {.limits = HTTP_LIMITS};
    int64_t left = INT64_MIN;
    (void)state;
    if (!http_present()) skip();
    for (int64_t budget = 1 << 20; budget < (int64_t)8 << 30; budget += budget / 97) {
        struct server_options o = usual;
        int64_t share = server_share(&usual, budget);
        server_fit(&o, budget / SERVER_PART);
        assert_true(share >= server_bytes(&o));
        assert_true(budget - share >= left);
        left = budget - share;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stop_strings_wherever_the_text_is_cut),
        cmocka_unit_test(stop_string_is_held_back_no_longer_than_needed),
        cmocka_unit_test(without_stop_strings_text_passes),
        cmocka_unit_test(parameters_are_read),
        cmocka_unit_test(wrong_parameters_are_named),
        cmocka_unit_test(events_are_data_lines),
        cmocka_unit_test(refusals_are_json),
        cmocka_unit_test(histograms_add_up),
        cmocka_unit_test(keys_match_whole),
        cmocka_unit_test(bad_keys_are_refused_without_being_told),
        cmocka_unit_test(server_bytes_count_everything),
        cmocka_unit_test(server_fits_a_small_budget),
        cmocka_unit_test(server_share_leaves_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
