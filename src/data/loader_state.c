/* loader_state.c - a loader's state as JSON, and back. The names are part of the checkpoint format. */
#include "data/loader_part.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
#define FIELD(name)                                                                                          \
    {                                                                                                        \
#name, offsetof(struct loader_state, name)                                                           \
    }
    FIELD(rows), FIELD(epoch), FIELD(index), FIELD(visit),   FIELD(offset),
    FIELD(line), FIELD(skip),  FIELD(bad),   FIELD(dropped),
#undef FIELD
};

void loader_save(const struct loader *l, struct strbuf *out)
{
    struct loader_state state;
    loader_state(l, &state);
    strbuf_addf(out, "{");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        uint64_t value;
        memcpy(&value, (const char *)&state + fields[i].offset, sizeof value);
        strbuf_addf(out, "\"%s\":%" PRIu64 ",", fields[i].name, value);
    }
    strbuf_addf(out, "\"order\":\"%016" PRIx64 "\"}", loader_order(l));
}

/* Checkpoints of the first format have a number of rows and nothing else. */
static enum plim_status from_position(struct loader *l, uint64_t position, struct plim_error *err)
{
    int64_t n = loader_plain_rows(l);
    if (n < 1)
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "the checkpoint says how many rows were seen, but not where they end in these data; start "
            "with another output.dir");
    struct loader_state state = {
        .rows = position, .epoch = position / (uint64_t)n, .index = position % (uint64_t)n};
    return loader_seek(l, &state, err);
}

enum plim_status loader_restore(struct loader *l, const struct node *saved, uint64_t position,
                                struct plim_error *err)
{
    struct loader_state state = {0};
    char mine[17];
    if (!saved) return from_position(l, position, err);
    snprintf(mine, sizeof mine, "%016" PRIx64, loader_order(l));
    if (strcmp(mine, node_string(node_get(saved, "order"), "")))
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "the data files or their options are not those the checkpoint was made with; restore them, "
            "or start with another output.dir");
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        int64_t value = node_int(node_get(saved, fields[i].name), -1);
        if (value < 0)
            return plim_fail(err, PLIM_BAD_INPUT, "the loader's state in the checkpoint lacks '%s'",
                             fields[i].name);
        uint64_t bits = (uint64_t)value;
        memcpy((char *)&state + fields[i].offset, &bits, sizeof bits);
    }
    return loader_seek(l, &state, err);
}
