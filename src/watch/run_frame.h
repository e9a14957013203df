/* run_frame.h - draws a run as one screen of text: memory bars with the four thresholds, curves, and recent messages.
 *
 *     struct run_frame frame = {.name = "runs/small", .live = true, .width = 80, .height = 24, .colour = true};
 *     run_frame_draw(&state, &frame, &out);       // lines that end with \n: fewer than `height`, none wider than `width`
 *
 * Pure: the output depends only on the arguments.
 */
#pragma once

#include "watch/run_state.h"

struct run_frame {
    const char *name;
    bool live;
    int width, height; /* of the screen */
    bool colour;
    double now; /* seconds since 1970, for the remaining time; 0: not shown */
};

void run_frame_draw(const struct run_state *state, const struct run_frame *frame, struct strbuf *out);

/* Draws a memory as a bar of `width` columns with a mark at each of the four thresholds. */
void run_frame_bar(const struct gauge *gauge, int width, bool colour, struct strbuf *out);
