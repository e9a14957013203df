/* run_same.c - see run_same.h. Rank 0 sends its list, a line for each key; everybody compares, and all agree. */
#include "train/run_same.h"
#include "base/schema_value.h"
#include "base/strbuf.h"

#include <stdlib.h>
#include <string.h>

/* Keys that decide no bit of a run by itself, and what ranks do together. */
static const char *const together[] = {"training.steps",
                                       "training.epochs",
                                       "training.batch_size",
                                       "training.gradient_accumulation_steps",
                                       "training.eval_every",
                                       "training.eval_rows",
                                       "training.eval_strategy",
                                       "training.save_every",
                                       "training.save_strategy",
                                       "training.zero_stage",
                                       "training.zero.sum_gradients",
                                       "output.gather_weights"};

static enum plim_status list(const struct job *job, const struct doc *facts, struct strbuf *out,
                             struct plim_error *err)
{
    for (size_t i = 0; i < node_count(&facts->root); i++) {
        const struct node *n = node_item(&facts->root, i);
        strbuf_addf(out, "%s=%s\n", n->key, node_string(n, ""));
    }
    for (size_t i = 0; i < sizeof together / sizeof *together; i++) {
        strbuf_addf(out, "%s=", together[i]);
        schema_exact(schema_find(&job_schema, together[i]), job, out);
        strbuf_addf(out, "\n");
    }
    return strbuf_status(out, err);
}

/* The first line in which two lists differ. */
static enum plim_status compare(int rank, char *mine, char *theirs, struct plim_error *err)
{
    char *here, *there;
    while ((here = strsep(&mine, "\n")) && (there = strsep(&theirs, "\n"))) {
        if (!strcmp(here, there)) continue;
        char *value = strchr(here, '='), *other = strchr(there, '=');
        if (value) *value++ = '\0';
        return plim_fail(
            err, PLIM_BAD_INPUT,
            "rank %d: %.96s is not that of rank 0 (%.120s, and %.120s there); start every rank with the "
            "same files",
            rank, here, value ? value : "absent", other ? other + 1 : "absent");
    }
    return PLIM_OK;
}

enum plim_status run_same(struct comm *comm, const struct job *job, const struct doc *facts,
                          struct plim_error *err)
{
    if (!comm) return PLIM_OK;
    STRBUF_AUTO mine = STRBUF_INIT;
    enum plim_status status = comm_agree(comm, list(job, facts, &mine, err), err);
    int64_t bytes = (int64_t)mine.len + 1;
    if (status == PLIM_OK) status = comm_broadcast(comm, &bytes, sizeof bytes, 0, err);
    char *theirs = status == PLIM_OK ? malloc((size_t)bytes) : NULL;
    if (theirs && comm->rank == 0) memcpy(theirs, strbuf_text(&mine), (size_t)bytes);
    if (status == PLIM_OK && !theirs)
        status = plim_fail(err, PLIM_NO_MEMORY, "out of memory while ranks compared jobs");
    if (status == PLIM_OK) status = comm_broadcast(comm, theirs, (size_t)bytes, 0, err);
    if (status == PLIM_OK) status = compare(comm->rank, mine.data, theirs, err);
    free(theirs);
    return comm_agree(comm, status, err);
}
