/* pack_csv.h - packing problems as text, in the format of public benchmarks.
 *
 *     id,lower,upper,size
 *     b1,0,3,4
 *     b2,3,9,4
 *
 * The first line names the columns, in any order; `buffer`, `start` and `end` are accepted for `id`, `lower` and `upper`.
 * Times are half-open; ids are any text without a comma. A column `offset` is read if present and always written, so output
 * can be read again. Blanks around fields, blank lines, Windows line ends and a byte order mark are accepted. Any other
 * column is an error: ignoring it (an alignment, say) would give a wrong answer.
 *
 *     struct pack_csv csv;
 *     struct strbuf out = STRBUF_INIT;
 *     if (pack_csv_read(&csv, path, text, len, &err) != PLIM_OK) return err.status;
 *     status = pack_items(csv.items, csv.n, &limits, &result, &err);
 *     pack_csv_write(&csv, &out);                        // then strbuf_status(&out, &err)
 *     pack_csv_release(&csv);
 */
#pragma once

#include "base/bump.h"
#include "base/status.h"
#include "base/strbuf.h"
#include "plan/pack.h"
#include <stdbool.h>
#include <stddef.h>

struct pack_csv {
    struct pack_item *items; /* in the order of the file */
    const char **ids;        /* [n] */
    int n;
    bool has_offsets; /* the file had a column `offset` */
    struct bump store;
};

/* `name` appears in messages, which begin "name:line: ". PLIM_BAD_INPUT or PLIM_NO_MEMORY: csv is empty and
 * needs no release. The text is not kept. */
enum plim_status pack_csv_read(struct pack_csv *csv, const char *name, const char *text, size_t len,
                               struct plim_error *err);

/* Writes id,lower,upper,size,offset: a header and one line per item. */
void pack_csv_write(const struct pack_csv *csv, struct strbuf *out);

void pack_csv_release(struct pack_csv *csv);
