/* report.h - presents a plan as text, JSON or a page. All functions write into a strbuf; none prints. */
#pragma once

#include "base/json.h"
#include "job/disk_line.h"
#include "report/savings.h"

/* Everything a report may show. savings and remedies may be empty. */
struct plan_report {
    const struct job *job;
    const struct loader_sizes *loader;
    const struct job_length *length;
    const struct plan_request *request;
    const struct plan *plan;
    int64_t naive_total; /* without any technique, whole batch at once; 0: unknown */
    struct saving savings[SAVINGS_MAX];
    int nsavings;
    double
        forward_seconds; /* of a step with updates inside the next forward; 0: no faster, or not possible */
    struct remedy remedies[REMEDIES_MAX];
    int nremedies;
    const char *pins[KNOB_COUNT]; /* keys that pin a knob */
    int npins;
    struct disk_line disk; /* zero: not relevant, the device is not here */
    bool all_settings;     /* text: include settings at their defaults */
};

/* True if the plan stays within every known limit: the budget, the host's and the disk's. */
bool report_fits(const struct plan_report *report);

/* Computes savings (and remedies if the plan does not fit). The report borrows all arguments. */
enum plim_status report_fill(struct plan_report *report, const struct job *job,
                             const struct loader_sizes *loader, const struct job_length *length,
                             const struct plan_request *request, const struct plan *plan,
                             struct plim_error *err);

/* One JSON object; docs/output.md describes its fields. */
void report_json(const struct plan_report *report, struct strbuf *out);
/* The knobs as a JSON object value, shared with the train events. */
void report_json_knobs(struct json_writer *w, const char *key, const struct job *job,
                       const struct knobs *knobs);

/* "savings": [...], inside an object. */
void report_json_savings(struct json_writer *w, const struct plan_report *report);

/* The savings as a table. */
void report_savings(const struct plan_report *report, bool colour, struct strbuf *out);

/* A table with bars. */
void report_text(const struct plan_report *report, bool colour, struct strbuf *out);

/* A self-contained page of the arena and the lower tiers: address x time, coloured by class, with names under
 * the pointer. */
void report_html(const struct plan_report *report, struct strbuf *out);

/* ---- words that text and page share (report_words.c) ---- */

/* "fits: 19.3 GiB of 21.6 GiB, and 20 GiB of the host, where 28.8 GiB may be taken". Names every known limit,
 * and the need of lower tiers if tensors leave the device. */
void report_verdict(const struct plan_report *report, struct strbuf *out);

/* True if the plan fits the device; the budget may be larger than the device. */
bool report_holds_device(const struct plan_report *report);

/* "needs 90.2 GiB of host memory", if the host's memory is unknown; otherwise nothing. */
void report_host_need(const struct plan_report *report, struct strbuf *out);

/* A sentence if the plan or its budget exceeds the device's memory, or its free memory; otherwise nothing. */
void report_memory(const struct plan_report *report, struct strbuf *out);

/* "adamw after backward, optimizer state on the host, updated there, 56 % of the parameters come from the host" */
void report_places(const struct plan_report *report, struct strbuf *out);

/* "at the peak, op 812 of 1563 (matmul, in backward)" */
void report_peak(const struct plan_report *report, struct strbuf *out);

/* Added to the remedies when no budget can be raised far enough: "or a device with 122 GiB: rtx-4090 has 24.0
 * GiB". */
void report_larger_device(const struct plan_report *report, struct strbuf *out);

/* Ranks that train together, each with this plan; bytes a rank sends per step; and the step's time with a
 * free link divided by its time. */
int report_ranks(const struct plan_report *report);
double report_link_bytes(const struct plan_report *report);
double report_link_efficiency(const struct plan_report *report);

enum { DURATION_TEXT = 32 };

/* Three digits and a convenient unit: "388 ms", "76.2 s", "28.7 min", "5.25 h", "3.1 days". Returns buf. */
char *report_duration(char buf[DURATION_TEXT], double seconds);

/* Predicted seconds of one pass over the training data, and of the whole run; 0: unknown. */
double report_epoch_seconds(const struct job *job, const struct job_length *length, const struct plan *plan);
double report_run_seconds(const struct job *job, const struct job_length *length, const struct plan *plan);
/* "an epoch is about 4000 rows, 125 steps, 38 % padding: 1.2 min; the run's 100 steps take 57.6 s" and a
 * newline. */
void report_run(const struct job *job, const struct job_length *length, const struct plan *plan,
                struct strbuf *out);

/* Formats the saving of one technique: "83.0 GiB", "takes 89.7 GiB", "-" for nothing. Returns buf. */
enum { SAVED_TEXT = 48 };
char *report_saved(char buf[SAVED_TEXT], int64_t bytes);

/* The tier below this device: "host" or "disk"; and the memory that the budget counts: "device" or
 * "memory". */
const char *report_lower_name(const struct plan_report *report);
const char *report_near_name(const struct plan_report *report);

/* Host memory of the data loader if the budget counts it; 0 with a GPU. */
int64_t report_counted_loader(const struct plan_report *report);
