/* convert.h - configuration of other trainers as a job file of ours.
 *
 *     struct conversion c;
 *     job_convert(&doc->root, "args.json", &c, &err);
 *     fputs(strbuf_text(&c.yaml), stdout);            // a job file; what it came from is a comment behind each key
 *     fputs(strbuf_text(&c.left), stderr);            // one line for each thing that was not carried over, and why
 *     conversion_release(&c);
 *
 * Known are the JSON of Hugging Face's TrainingArguments, DeepSpeed's JSON (deepspeed.h) and YAML with Axolotl's names. What
 * the file does not say, and where the other trainer's default is not ours, is written, too. PLIM_UNSUPPORTED: a wish of
 * DeepSpeed's that cannot be granted; PLIM_BAD_INPUT: none of them.
 */
#ifndef PLIM_JOB_CONVERT_H
#define PLIM_JOB_CONVERT_H

#include "base/node.h"
#include "base/strbuf.h"

struct conversion {
    struct strbuf yaml, left;
};

/* After an error there is nothing to release. */
enum plim_status job_convert(const struct node *root, const char *file, struct conversion *out,
                             struct plim_error *err);
void conversion_release(struct conversion *c);

#endif
