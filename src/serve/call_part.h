/* call_part.h - what the two halves of a call share. */
#ifndef PLIM_SERVE_CALL_PART_H
#define PLIM_SERVE_CALL_PART_H

#include "serve/call.h"

/* Room for `more` items behind count in the array that `array` points to; false when memory is short. */
bool call_room(void *array, size_t count, size_t more, size_t *cap, size_t size);

/* Keeps where a token stands and how likely it was, where somebody wants to know; `top` are e->ntop of the likeliest. */
bool call_add_mark(struct choice *ch, const struct call_event *e, const struct engine_logprob *top);

#endif
