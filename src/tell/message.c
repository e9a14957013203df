/* message.c - see message.h: one function a listener. */
#include "tell/message.h"
#include "base/bytes.h"
#include "base/json.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* How each notice looks where there are colours and pictures. */
static const struct look {
    const char *emoji;
    int colour;
} looks[NOTICES] = {[NOTICE_START] = {":ship:", 0x2f6fde},
                    [NOTICE_PROGRESS] = {":compass:", 0x6b7a90},
                    [NOTICE_WARNING] = {":warning:", 0xe0a100},
                    [NOTICE_ERROR] = {":x:", 0xd03a2b},
                    [NOTICE_END] = {":anchor:", 0x2e9e5b}};

static const struct number {
    const char *key, *label;
} numbers[MESSAGE_NUMBERS] = {[NUMBER_LOSS] = {"loss", "loss"},
                              [NUMBER_EVAL] = {"eval_loss", "evaluation"},
                              [NUMBER_RATE] = {"learning_rate", "learning rate"},
                              [NUMBER_NORM] = {"grad_norm", "gradient norm"},
                              [NUMBER_SPEED] = {"tokens_per_second", "tokens/s"}};

enum { PAIR = 64 };

static bool step_pair(const struct message *m, char label[PAIR], char value[PAIR])
{
    snprintf(label, PAIR, "step");
    snprintf(value, PAIR, "%lld of %lld", (long long)m->step, (long long)m->steps);
    return m->steps > 0;
}

static bool number_pair(const struct message *m, int i, char label[PAIR], char value[PAIR])
{
    snprintf(label, PAIR, "%s", numbers[i].label);
    snprintf(value, PAIR, "%.5g", m->number[i]);
    return isfinite(m->number[i]);
}

static bool memory_pair(const struct message *m, char label[PAIR], char value[PAIR])
{
    char used[BYTES_TEXT], budget[BYTES_TEXT];
    snprintf(label, PAIR, "memory");
    snprintf(value, PAIR, "%s of %s (%.12s)", bytes_format(used, (uint64_t)m->used),
             bytes_format(budget, (uint64_t)m->budget), m->status);
    return m->budget > 0;
}

enum { PAIRS = MESSAGE_NUMBERS + 2 };

/* A label and what is to be read under it; false: there is nothing. */
static bool pair_at(const struct message *m, int i, char label[PAIR], char value[PAIR])
{
    if (i == 0) return step_pair(m, label, value);
    return i <= MESSAGE_NUMBERS ? number_pair(m, i - 1, label, value) : memory_pair(m, label, value);
}

static void put_json(const struct message *m, struct json_writer *w)
{
    json_str(w, "event", notice_name(m->notice));
    json_str(w, "run", m->run);
    json_str(w, "job", m->job);
    json_str(w, "host", m->host);
    json_double(w, "time", m->time);
    json_str(w, "text", m->text);
    if (m->steps) json_int(w, "step", m->step), json_int(w, "steps", m->steps);
    json_double(w, "seconds", m->seconds);
    for (int i = 0; i < MESSAGE_NUMBERS; i++)
        if (isfinite(m->number[i])) json_double(w, numbers[i].key, m->number[i]);
    if (!m->budget) return;
    json_begin_object(w, "memory");
    json_int(w, "used", m->used);
    json_int(w, "budget", m->budget);
    json_str(w, "status", m->status);
    json_end_object(w);
}

static void put_discord(const struct message *m, struct json_writer *w)
{
    char label[PAIR], value[PAIR];
    struct strbuf line = STRBUF_INIT;
    strbuf_addf(&line, "%s **%s** %s", looks[m->notice].emoji, m->run, m->text);
    json_str(w, "username", "Plimsoll");
    json_str(w, "content", strbuf_text(&line));
    strbuf_release(&line);
    json_begin_object(w, "allowed_mentions");
    json_begin_array(w, "parse");
    json_end_array(w);
    json_end_object(w);
    json_begin_array(w, "embeds");
    json_begin_object(w, NULL);
    json_str(w, "title", notice_name(m->notice));
    json_int(w, "color", looks[m->notice].colour);
    json_begin_array(w, "fields");
    for (int i = 0; i < PAIRS; i++) {
        if (!pair_at(m, i, label, value)) continue;
        json_begin_object(w, NULL);
        json_str(w, "name", label);
        json_str(w, "value", value);
        json_bool(w, "inline", true);
        json_end_object(w);
    }
    json_end_array(w);
    json_end_object(w);
    json_end_array(w);
}

/* Slack's three letters with a meaning. */
static void put_escaped(struct strbuf *out, const char *text)
{
    for (; *text; text++)
        if (*text == '&')
            strbuf_add(out, "&amp;");
        else if (*text == '<')
            strbuf_add(out, "&lt;");
        else if (*text == '>')
            strbuf_add(out, "&gt;");
        else
            strbuf_addc(out, *text);
}

static void put_block(struct json_writer *w, const char *type, const char *text, bool in_list)
{
    json_begin_object(w, NULL);
    json_str(w, "type", type);
    if (in_list) json_begin_array(w, "elements");
    json_begin_object(w, in_list ? NULL : "text");
    json_str(w, "type", "mrkdwn");
    json_str(w, "text", text);
    json_end_object(w);
    if (in_list) json_end_array(w);
    json_end_object(w);
}

static void put_slack(const struct message *m, struct json_writer *w)
{
    char label[PAIR], value[PAIR];
    STRBUF_AUTO line = STRBUF_INIT, below = STRBUF_INIT;
    strbuf_addf(&line, "%s *", looks[m->notice].emoji);
    put_escaped(&line, m->run);
    strbuf_add(&line, "* ");
    put_escaped(&line, m->text);
    for (int i = 0; i < PAIRS; i++)
        if (pair_at(m, i, label, value))
            strbuf_addf(&below, "%s%s %s", below.len ? "  |  " : "", label, value);
    json_str(w, "text", strbuf_text(&line));
    json_begin_array(w, "blocks");
    put_block(w, "section", strbuf_text(&line), false);
    if (below.len) put_block(w, "context", strbuf_text(&below), true);
    json_end_array(w);
}

static void (*const shapes[HOOK_KINDS])(const struct message *, struct json_writer *) = {
    [HOOK_JSON] = put_json, [HOOK_DISCORD] = put_discord, [HOOK_SLACK] = put_slack};

void message_put(const struct message *m, enum hook_kind kind, struct strbuf *out)
{
    struct json_writer w = json_object(out, 0);
    shapes[kind](m, &w);
    json_end_object(&w);
}
