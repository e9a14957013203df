/* cmd_watch.c - plimsoll watch: a run in the terminal, as lines, or on a page. It reads the run's folder and asks its socket;
 * the run does not know of it. */
#include "cli/cli.h"
#include "watch/run_frame.h"
#include "watch/run_log.h"
#include "watch/run_page.h"

#include <stdatomic.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

struct watch_flags {
    bool web, plain;
    int64_t port;
    bool port_given;
};

#define AT(field) offsetof(struct watch_flags, field)
static const struct option_row rows[] = {
    {"web", 'w', OPTION_FLAG, AT(web), NULL, "serve a page on the loopback until stopped"},
    {"port", 'p', OPTION_INT64, AT(port), "N", "with --web: port to listen on; default: any free one",
     .given = OPTION_GIVEN(struct watch_flags, port_given), .expected = "0 to 65535", .most = 65535},
    {"plain", 0, OPTION_FLAG, AT(plain), NULL,
     "print lines instead of a screen (the default if the output is not a terminal)"},
};

static const struct option_example examples[] = {
    {"watch", "the newest run below this folder"},
    {"watch runs/small", "memory bars with the four thresholds, loss, tokens/s, events"},
    {"watch runs/small --web", "the same on a page, with the arena map and curves"},
    {"watch runs/small --plain | grep -v loss", "events, without the steps"},
    {NULL, NULL}};

static const struct command command = {
    .name = "watch",
    .summary = "watch a run, in the terminal or on a page",
    .usage = "[OPTION...] [RUN]",
    .description = "RUN is the folder of a training run (output.dir), running or finished, or a file with "
                   "its JSON lines; default: the run below this folder that wrote last. A terminal shows "
                   "one screen that is refreshed; any other output gets one line per event. Both end with "
                   "the run. --web prints the address of a page on 127.0.0.1 and serves it, with /metrics "
                   "for Prometheus, until stopped. watch reads the run's folder and its control socket; the "
                   "run never waits for it.",
    COMMAND_ROWS(rows),
    .examples = examples,
    .takes_files = true,
};

static void wait_a_moment(double seconds)
{
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (long)seconds))},
        NULL);
}

/* --- lines ----------------------------------------------------------------------------------------------------------- */

struct lines {
    struct run_state state;
    bool lost; /* nobody reads them any more */
};

static void hear_line(void *arg, const struct node *event)
{
    struct lines *l = arg;
    STRBUF_AUTO line = STRBUF_INIT;
    run_state_hear(&l->state, event);
    run_event_text(event, l->state.steps, &line);
    if (line.len && !l->lost) {
        strbuf_addc(&line, '\n');
        l->lost = fwrite(line.data, 1, line.len, stdout) != line.len;
    }
}

/* A run that was killed has no last word. */
static void tell_silence(const struct run_state *s)
{
    if (s->begun && !s->ended)
        printf("the run stopped after step %lld without a last line\n", (long long)s->step);
}

static int follow_lines(struct run_log *log, const atomic_int *stop)
{
    struct lines l = {0};
    bool live = true;
    while (!*stop && !l.lost) {
        enum run_read how = run_log_read(log, hear_line, &l);
        if (how == RUN_ANEW) l.state = (struct run_state){0};
        if (how != RUN_READ_ALL) continue;
        l.lost |= fflush(stdout) != 0;
        if (!live) break; /* what it wrote last was read after it had gone */
        run_state_ask(&l.state, log->folder, NULL);
        live = run_state_live(&l.state);
        if (live) wait_a_moment(0.2);
    }
    if (!l.lost && !*stop) tell_silence(&l.state);
    bool left = l.lost && errno == EPIPE;
    if (l.lost && !left) cli_say("standard output: write failed");
    return l.lost && !left ? 2 : 0;
}

/* --- a screen -------------------------------------------------------------------------------------------------------- */

static void screen_size(int *width, int *height)
{
    struct winsize size = {0};
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    *width = known ? size.ws_col : 80, *height = known ? size.ws_row : 24;
}

static int count_lines(const struct strbuf *text)
{
    int n = 0;
    for (size_t i = 0; i < text->len; i++) n += text->data[i] == '\n';
    return n;
}

/* Over the frame before: up, each line cleared to its end, and what is left of a longer frame cleared, too. */
static void draw(const struct run_state *state, const char *name, bool live, int *drawn)
{
    struct run_frame frame = {.name = name, .live = live, .colour = cli_colour(STDOUT_FILENO)};
    STRBUF_AUTO text = STRBUF_INIT, out = STRBUF_INIT;
    screen_size(&frame.width, &frame.height);
    run_frame_draw(state, &frame, &text);
    if (*drawn) strbuf_addf(&out, "\033[%dA", *drawn);
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] == '\n') strbuf_add(&out, "\033[K");
        strbuf_addc(&out, text.data[i]);
    }
    strbuf_add(&out, "\033[J");
    *drawn = count_lines(&text);
    fwrite(strbuf_text(&out), 1, out.len, stdout);
    fflush(stdout);
}

static int follow_screen(struct run_log *log, const char *name, const atomic_int *stop)
{
    struct run_state *state = calloc(1, sizeof *state);
    int drawn = 0;
    bool live = true;
    if (!state) return 4;
    while (!*stop) {
        enum run_read how = run_log_read(log, run_state_hear, state);
        if (how == RUN_ANEW) *state = (struct run_state){0};
        if (how != RUN_READ_ALL) continue;
        bool gone = !live;
        run_state_ask(state, log->folder, NULL);
        live = !gone && run_state_live(state);
        draw(state, name, live, &drawn);
        if (gone) break;
        if (live) wait_a_moment(0.5);
    }
    if (!*stop) tell_silence(state);
    free(state);
    return 0;
}

/* --- a page ---------------------------------------------------------------------------------------------------------- */

static int serve_page(const char *run, int port, const atomic_int *stop)
{
    struct run_page *page;
    struct plim_error err = {0};
    enum plim_status status = run_page_open(run, port, &page, &err);
    if (status != PLIM_OK) return cli_error(&err);
    printf("http://127.0.0.1:%d\n", run_page_port(page));
    fflush(stdout);
    while (!*stop) wait_a_moment(0.2);
    run_page_close(page);
    return 0;
}

static enum plim_status check(const struct watch_flags *f, struct plim_error *err)
{
    if (f->port_given && !f->web)
        return plim_fail(err, PLIM_BAD_INPUT, "watch: option '--port' is for the page; add --web");
    return PLIM_OK;
}

static int watch(const struct watch_flags *f, const char *run)
{
    struct plim_error err = {0};
    struct run_log log;
    const atomic_int *stop = cli_stop_flag();
    if (f->web) return serve_page(run, (int)f->port, stop);
    if (run_log_open(&log, run, &err) != PLIM_OK) return cli_error(&err);
    signal(SIGPIPE, SIG_IGN); /* a reader that leaves ends the watching, not with a signal */
    const char *term = getenv("TERM");
    bool screen = isatty(STDOUT_FILENO) && !f->plain && term && strcmp(term, "dumb") != 0;
    int code = screen ? follow_screen(&log, run, stop) : follow_lines(&log, stop);
    run_log_close(&log);
    return code;
}

static const struct watch_flags defaults;

static int run(void *flags, const struct string_list *args)
{
    const struct watch_flags *f = flags;
    struct plim_error err = {0};
    char newest[MODEL_PATH];
    enum plim_status status = check(f, &err);
    if (status == PLIM_OK && !args->count) status = run_log_newest(".", newest, sizeof newest, &err);
    return status == PLIM_OK ? watch(f, args->count ? args->items[0] : newest) : cli_error(&err);
}

const struct subcommand subcommand_watch = {&command, run, CLI_FLAGS(defaults),
                                            0,        1,   "give one run, or none for the newest"};
