/* embedder_part.h - shared by embedder.c and classify.c. */
#pragma once

#include "api/handle.h"
#include "api/labelling.h"
#include "serve/embed_text.h"
#include <plimsoll/text.h>

/* Bytes of a text that plim_classify reads: memory is planned for them, as for a line of `plimsoll classify`. */
enum { CLASSIFY_LONGEST = 64 << 10 };

struct plim_embedder {
    struct handle handle;
    struct text_model model;
    struct text_rows *rows;      /* NULL: labels */
    struct labelling *labelling; /* NULL: vectors */
};
