/* string_methods.h - the methods of strings; the last row has no name. */
#ifndef PLIM_TEXT_CHAT_STRING_METHODS_H
#define PLIM_TEXT_CHAT_STRING_METHODS_H

#include "text/chat/eval.h"

extern const struct chat_row chat_string_methods[];

#endif
