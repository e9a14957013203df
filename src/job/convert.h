/* convert.h - configuration of other trainers as a job file of ours.
 *
 *     struct conversion c;
 *     job_convert(&doc->root, "args.json", &c, &err);
 *     if (!c.refusals) fputs(strbuf_text(&c.yaml), stdout);  // a job file; what it came from is a comment behind each key
 *     fputs(strbuf_text(&c.refused), stderr);                // one line for each setting that cannot be converted, and why
 *     conversion_release(&c);
 *
 * Known are the JSON of Hugging Face's TrainingArguments, DeepSpeed's JSON (deepspeed.h) and YAML with the names of Axolotl and
 * LLaMA-Factory. Every key of a file becomes one of ours, is known to have no influence on the training (convert_keys.c; the YAML
 * ends with why, as comments), or is refused: a job file that leaves a wish out would train something else. What the file does not
 * say, and where the other trainer's default is not ours, is written, too. PLIM_BAD_INPUT: none of them; PLIM_UNSUPPORTED:
 * torchtune's.
 */
#ifndef PLIM_JOB_CONVERT_H
#define PLIM_JOB_CONVERT_H

#include "base/node.h"
#include "base/strbuf.h"

struct conversion {
    struct strbuf yaml, left; /* left: settings without effect, one a line */
    struct strbuf refused;    /* one a line; then the YAML is not what was asked for */
    int refusals;
};

/* After an error there is nothing to release. */
enum plim_status job_convert(const struct node *root, const char *file, struct conversion *out,
                             struct plim_error *err);
void conversion_release(struct conversion *c);

#endif
