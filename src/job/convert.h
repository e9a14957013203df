/* convert.h - converts the configuration of other trainers to a job file.
 *
 *     struct conversion c;
 *     job_convert(&doc->root, "args.json", &c, &err);
 *     if (!c.refusals) fputs(strbuf_text(&c.yaml), stdout);  // a job file; a comment after each key names its source
 *     fputs(strbuf_text(&c.refused), stderr);                // one line per setting that cannot be converted, and why
 *     conversion_release(&c);
 *
 * Reads the JSON of Hugging Face's TrainingArguments, DeepSpeed's JSON (deepspeed.h) and YAML with the names of Axolotl and
 * LLaMA-Factory. Every key is converted, or known not to affect training (convert_keys.c; the YAML ends with the reasons as
 * comments), or refused: a job file without it would train something else. Where the file gives no value and the other
 * trainer's default differs from ours, theirs is written. PLIM_BAD_INPUT: unknown format; PLIM_UNSUPPORTED: torchtune.
 */
#pragma once

#include "base/node.h"
#include "base/strbuf.h"

struct conversion {
    struct strbuf yaml, left; /* left: settings without effect, one per line */
    struct strbuf refused;    /* one per line; the YAML is then incomplete */
    int refusals;
};

/* After an error nothing needs releasing. */
enum plim_status job_convert(const struct node *root, const char *file, struct conversion *out,
                             struct plim_error *err);
void conversion_release(struct conversion *c);
