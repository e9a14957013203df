/* call_part.h - shared by call.c and call_text.c. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* Makes room for `more` items after count in *array. Returns false when memory is short. */
bool call_room(void *array, size_t count, size_t more, size_t *cap, size_t size);
