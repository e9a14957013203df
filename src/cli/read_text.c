/* read_text.c - a whole file, or standard input. */
#include "base/file.h"
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#define LARGEST ((uint64_t)4 << 30)

enum plim_status cli_read_text(const char *path, struct strbuf *out, struct plim_error *err)
{
    char piece[65536];
    if (strcmp(path, "-")) return file_read(path, LARGEST, out, err);
    for (size_t n; (n = fread(piece, 1, sizeof piece, stdin)) > 0 && out->len <= LARGEST;)
        strbuf_addn(out, piece, n);
    if (ferror(stdin)) return plim_fail(err, PLIM_IO, "standard input: read failed");
    if (out->len > LARGEST)
        return plim_fail(err, PLIM_BAD_INPUT, "standard input: more than 4 GiB is too much");
    return strbuf_status(out, err);
}
