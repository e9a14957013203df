/* pack_snapshot.h - plimsoll pack on a PyTorch memory snapshot. */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stdint.h>

struct pack_snapshot_options {
    const char *picture; /* .html or .svg; NULL: none */
    const char *step;    /* the file for the packed step; NULL: none */
    int64_t device;      /* -1: every one; picture and step then show the one that reserves most */
    int64_t effort_ms;
    int top;
    bool json;
};

/* Appends to `out` what a perfect arena would take, and writes the files asked for. The text is emptied. */
enum plim_status cli_pack_snapshot(struct strbuf *text, const char *name,
                                   const struct pack_snapshot_options *options, struct strbuf *out,
                                   struct plim_error *err);
