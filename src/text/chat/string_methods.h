/* string_methods.h - the methods of texts, ended by a row without a name. */
#ifndef PLIM_TEXT_CHAT_STRING_METHODS_H
#define PLIM_TEXT_CHAT_STRING_METHODS_H

#include "text/chat/eval.h"

extern const struct chat_row chat_string_methods[];

#endif
