/* string_methods.h - the methods of strings; the last row has no name. */
#pragma once

#include "text/chat/eval.h"

extern const struct chat_row chat_string_methods[];
