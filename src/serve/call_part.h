/* call_part.h - what the two halves of a call share. */
#ifndef PLIM_SERVE_CALL_PART_H
#define PLIM_SERVE_CALL_PART_H

#include <stdbool.h>
#include <stddef.h>

/* Room for `more` items behind count in the array that `array` points to; false when memory is short. */
bool call_room(void *array, size_t count, size_t more, size_t *cap, size_t size);

#endif
