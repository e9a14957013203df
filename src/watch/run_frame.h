/* run_frame.h - a run as one screen of text: bars of memory against the four lines, curves, and what was told last.
 *
 *     struct run_frame frame = {.name = "runs/small", .live = true, .width = 80, .height = 24, .colour = true};
 *     run_frame_draw(&state, &frame, &out);       // lines that end with \n: fewer than `height`, none wider than `width`
 *
 * Pure: what it draws follows from its arguments.
 */
#ifndef PLIM_WATCH_RUN_FRAME_H
#define PLIM_WATCH_RUN_FRAME_H

#include "watch/run_state.h"

struct run_frame {
    const char *name;
    bool live;
    int width, height; /* of the screen */
    bool colour;
    double now; /* seconds since 1970, for what is left; 0: not told */
};

void run_frame_draw(const struct run_state *state, const struct run_frame *frame, struct strbuf *out);

/* A memory as a bar of `width` columns, with a mark at each of the four lines. */
void run_frame_bar(const struct gauge *gauge, int width, bool colour, struct strbuf *out);

#endif
