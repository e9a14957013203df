/* preset.c - see preset.h; data/devices.yaml, data/instances.yaml and data/profiles.yaml. */
#include "job/preset.h"
#include "base/bytes.h"
#include "base/embedded.h"
#include "base/nearest.h"
#include "base/yaml.h"
#include "device/registry.h"
#include "job/job.h"
#include "tape/pass.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

static const char *const profile_names[] = {"aggressive", "balanced", "conservative"};
enum { PROFILES = sizeof profile_names / sizeof *profile_names, BALANCED = 1 };

static enum plim_status load(const char *file, struct doc **out, struct plim_error *err)
{
    const struct plim_data *data = embedded_find(file);
    if (!data) return plim_fail(err, PLIM_BUG, "data/%s.yaml is not part of this build", file);
    return yaml_parse(data->text, data->size, file, out, err);
}

/* --- names nobody knows ---------------------------------------------------------------------------------- */

enum { NAME_MAX_LETTERS = 64 };

/* Letters and digits alone, small: "RTX 4090" and "rtx-4090" are one. `keep`: isalnum or isdigit. */
static const char *squeeze(const char *text, int (*keep)(int), char *out)
{
    size_t n = 0;
    for (; *text && n + 1 < NAME_MAX_LETTERS; text++)
        if (keep((unsigned char)*text)) out[n++] = (char)tolower((unsigned char)*text);
    out[n] = '\0';
    return out;
}

/* A part of a name is enough. */
static bool is_part(const char *word, const char *name)
{
    char a[NAME_MAX_LETTERS], b[NAME_MAX_LETTERS];
    return *squeeze(word, isalnum, a) && strstr(squeeze(name, isalnum, b), a);
}

/* A slip of the finger keeps the first letter and the number: V100 and H100 are two cards, not a typo. */
static bool is_slip(const char *word, const char *name)
{
    char a[NAME_MAX_LETTERS], b[NAME_MAX_LETTERS];
    return tolower((unsigned char)*word) == *name &&
           !strcmp(squeeze(word, isdigit, a), squeeze(name, isdigit, b));
}

static void add_parts(const char *word, const struct node *devices, struct strbuf *out)
{
    const char *last = NULL;
    for (size_t i = 0; i < node_count(devices); i++) {
        const char *name = node_item(devices, i)->key;
        if (!is_part(word, name)) continue;
        if (last) strbuf_addf(out, "%s%s", out->len ? ", " : "", last);
        last = name;
    }
    if (last) strbuf_addf(out, "%s%s", out->len ? " or " : "", last);
}

/* Suggests similar names; nothing when none is similar. */
static void guess(const char *word, const struct node *devices, struct strbuf *out)
{
    add_parts(word, devices, out);
    if (out->len) return;
    struct nearest near = nearest_begin(word);
    for (size_t i = 0; i < node_count(devices); i++)
        if (is_slip(word, node_item(devices, i)->key)) nearest_offer(&near, node_item(devices, i)->key);
    if (near.best) strbuf_add(out, near.best);
}

/* Names of training.device. */
static const char *device_here(const char *name)
{
    if (!strcmp(name, "cpu") || !strcmp(name, "auto")) return name;
    if (!strcmp(name, "gpu")) return "cuda";
    return strncmp(name, "cuda", 4) ? NULL : name;
}

static enum plim_status unknown(const char *name, const struct node *devices, struct plim_error *err)
{
    const char *here = device_here(name);
    if (here)
        return plim_fail(err, PLIM_BAD_INPUT,
                         "'%s' is not a preset; select a device of this machine with training.device: %s",
                         name, here);
    STRBUF_AUTO meant = STRBUF_INIT;
    guess(name, devices, &meant);
    enum plim_status status =
        meant.len
            ? plim_fail(err, PLIM_BAD_INPUT, "preset '%s' is not known; did you mean %s?", name, meant.data)
            : plim_fail(err, PLIM_BAD_INPUT, "preset '%s' is not known; see plimsoll plan --list-devices",
                        name);
    return status;
}

/* --- reading a preset ------------------------------------------------------------------------------------ */

static uint64_t bytes_of(const struct node *node)
{
    uint64_t n = 0;
    if (node && node->kind == NODE_INT) return (uint64_t)node->as.integer;
    bytes_parse(node_string(node, "0"), &n, NULL);
    return n;
}

/* The place of a text in a list, or `fallback`. */
static int index_of(const char *text, const char *const *names, int count, int fallback)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(text, names[i])) return i;
    return fallback;
}

static int precision_of(const char *text)
{
    enum precision p = precision_parse(text);
    return p < PRECISION_COUNT ? p : PRECISION_F32;
}

static void read_facts(const struct node *d, struct device_facts *f)
{
    bool unified = node_bool(node_get(d, "host"), false);
    *f = (struct device_facts){0};
    facts_set_memory(f, unified ? MEMORY_PROCESS : MEMORY_CARD);
    snprintf(f->name, sizeof f->name, "%s", d->key);
    f->memory_bytes = bytes_of(node_get(d, "memory"));
    f->overhead_bytes = bytes_of(node_get(d, "overhead"));
    f->align = unified ? 64 : 256;
    f->threads = (int)node_int(node_get(d, "threads"), 1);
    f->capability = (int)(node_float(node_get(d, "capability"), 0) * 10 + 0.5);
    f->flops[DT_F32] = node_float(node_get(d, "f32"), 1e12);
    f->tf32_flops = node_float(node_get(d, "tf32"), 0);
    f->flops[DT_BF16] = node_float(node_get(d, "bf16"), 1e12);
    f->flops[DT_F16] = node_float(node_get(d, "f16"), 1e12);
    facts_set_fp8(f);
    for (int t = 0; t < DT_COUNT; t++) f->attn_flops[t] = f->flops[t] / 2;
    f->expert_share = node_float(node_get(d, "experts"), 1);
    f->bandwidth = node_float(node_get(d, "bandwidth"), 1e11);
    f->lower_bandwidth = node_float(node_get(d, "lower"), 1e9);
    f->host_bandwidth = unified ? 0 : node_float(node_get(d, "host_memory"), 40e9);
    f->host_op_seconds = node_float(node_get(d, "host_op"), 130e-6);
    f->host_uncached_stores = !unified; /* such cards are mostly in x86 machines */
    f->host_total = node_float(node_get(d, "host_total"), 1.5 * f->host_bandwidth);
    f->duplex_cost = node_float(node_get(d, "duplex"), 0.5);
    f->copy_pace = node_float(node_get(d, "copy_pace"), 6);
    f->coded_rate = unified ? 0.5e9 * f->threads : 0;
    f->op_seconds = unified ? 2e-6 : 4e-6;
    device_absent_facts(f);
}

static void read_preset(const struct node *d, struct preset *out)
{
    *out = (struct preset){
        .cards = 1,
        .batch = node_int(node_get(d, "batch"), 1),
        .accumulation = node_int(node_get(d, "accumulation"), 1),
        .precision = precision_of(node_string(node_get(d, "precision"), "")),
        .profile = index_of(node_string(node_get(d, "profile"), ""), profile_names, PROFILES, BALANCED)};
    read_facts(d, &out->facts);
}

bool preset_machine(const char *name, struct preset_machine *out)
{
    struct doc *doc;
    if (load("instances", &doc, NULL) != PLIM_OK) return false;
    const struct node *machine = node_get(&doc->root, name);
    *out = (struct preset_machine){.cards = (int)node_int(node_get(machine, "cards"), 1),
                                   .host = bytes_of(node_get(machine, "host"))};
    snprintf(out->device, sizeof out->device, "%s", node_string(node_get(machine, "device"), ""));
    snprintf(out->link, sizeof out->link, "%s", node_string(node_get(machine, "link"), ""));
    doc_free(doc);
    return machine != NULL;
}

/* Leaves a tenth of a machine's memory to its system, which never reports all of it either. */
enum plim_status preset_find(const char *name, struct preset *out, struct plim_error *err)
{
    struct doc *doc;
    struct preset_machine machine;
    bool rented = preset_machine(name, &machine);
    const char *card = rented ? machine.device : name;
    enum plim_status status = load("devices", &doc, err);
    if (status != PLIM_OK) return status;
    const struct node *d = node_get(&doc->root, card);
    if (d)
        read_preset(d, out);
    else
        status = unknown(name, &doc->root, err);
    if (d && rented) out->cards = machine.cards, out->facts.host_bytes = (size_t)(machine.host / 10 * 9);
    doc_free(doc);
    return status;
}

/* --- detection ------------------------------------------------------------------------------------------- */

/* The next word of a text: letters and digits in a row. Moves `text` behind it; its length, 0 at the end. */
static size_t next_word(const char **text, const char **word)
{
    while (**text && !isalnum((unsigned char)**text)) ++*text;
    *word = *text;
    while (isalnum((unsigned char)**text)) ++*text;
    return (size_t)(*text - *word);
}

static bool has_word(const char *text, const char *word, size_t len)
{
    const char *other;
    for (size_t n; (n = next_word(&text, &other)) > 0;)
        if (n == len && !strncasecmp(word, other, len)) return true;
    return false;
}

/* How many words a name has of those it needs; 0 when it lacks one. "L4" is not in "NVIDIA L40S". */
static int words_in(const char *name, const char *words)
{
    const char *word;
    int count = 0;
    for (size_t n; (n = next_word(&words, &word)) > 0; count++)
        if (!has_word(name, word, n)) return 0;
    return count;
}

/* A slice of a card, or a smaller card of the same name, is another device. */
static bool is_near(size_t memory, size_t usual)
{
    size_t apart = memory > usual ? memory - usual : usual - memory;
    return apart <= usual / 8;
}

/* How well a preset fits a device: 0 not at all. Of CPUs, the largest that the machine has the memory of, or the
 * smallest. */
static int64_t likeness(const struct node *d, const struct preset *p, const struct device_facts *facts)
{
    size_t usual = p->facts.memory_bytes;
    if (!strcmp(p->facts.name, facts->name)) return INT64_MAX;
    if (p->facts.unified_memory != facts->unified_memory) return 0;
    if (!facts->unified_memory) {
        const char *words = node_string(node_get(d, "words"), "");
        bool any =
            !*words && p->facts.capability; /* a tier: one word less than any card of its own name has */
        if (!is_near(facts->memory_bytes, usual)) return 0;
        return any ? 1 : 2 * words_in(facts->name, words);
    }
    int64_t middle = INT64_C(1) << 40, mib = (int64_t)(usual >> 20);
    return facts->memory_bytes >= usual - usual / 8 ? middle + mib : middle - mib;
}

bool preset_detect(const struct device_facts *facts, struct preset *out)
{
    struct doc *doc;
    struct preset p;
    int64_t best = 0;
    if (load("devices", &doc, NULL) != PLIM_OK) return false;
    for (size_t i = 0; i < node_count(&doc->root); i++) {
        const struct node *d = node_item(&doc->root, i);
        read_preset(d, &p);
        int64_t found = likeness(d, &p, facts);
        if (found > best) best = found, *out = p;
    }
    doc_free(doc);
    return best > 0;
}

void preset_list(struct strbuf *out)
{
    struct doc *doc;
    struct preset p;
    if (load("devices", &doc, NULL) != PLIM_OK) return;
    for (size_t i = 0; i < node_count(&doc->root); i++) {
        char memory[BYTES_TEXT];
        read_preset(node_item(&doc->root, i), &p);
        const char *why = p.facts.no_kernels;
        strbuf_addf(out, "%-12s %9s  %s  batch %lld x %lld, %s%s%s\n", p.facts.name,
                    bytes_format(memory, p.facts.memory_bytes), precision_name((enum precision)p.precision),
                    (long long)p.batch, (long long)p.accumulation, profile_names[p.profile],
                    *why ? "; cannot run there yet: " : "", why);
    }
    doc_free(doc);
    if (load("instances", &doc, NULL) != PLIM_OK) return;
    for (size_t i = 0; i < node_count(&doc->root); i++) {
        const struct node *machine = node_item(&doc->root, i);
        char host[BYTES_TEXT];
        strbuf_addf(out, "%-13s %lld x %s, %s of the host\n", machine->key,
                    (long long)node_int(node_get(machine, "cards"), 1),
                    node_string(node_get(machine, "device"), ""),
                    bytes_format(host, bytes_of(node_get(machine, "host"))));
    }
    doc_free(doc);
}

static void put_device(struct json_writer *w, const struct preset *p)
{
    const struct device_facts *f = &p->facts;
    json_begin_object(w, NULL);
    json_str(w, "kind", "preset");
    json_str(w, "name", f->name);
    json_uint(w, "memory_bytes", f->memory_bytes);
    json_uint(w, "overhead_bytes", f->overhead_bytes);
    if (f->capability) json_int(w, "capability", f->capability);
    json_str(w, "precision", precision_name((enum precision)p->precision));
    json_int(w, "batch_size", p->batch);
    json_int(w, "accumulation", p->accumulation);
    json_str(w, "profile", profile_names[p->profile]);
    json_str(w, "cannot_run", *f->no_kernels ? f->no_kernels : NULL);
    json_end_object(w);
}

static void put_machine(struct json_writer *w, const struct node *machine)
{
    json_begin_object(w, NULL);
    json_str(w, "kind", "machine");
    json_str(w, "name", machine->key);
    json_str(w, "device", node_string(node_get(machine, "device"), ""));
    json_int(w, "cards", node_int(node_get(machine, "cards"), 1));
    json_uint(w, "host_bytes", bytes_of(node_get(machine, "host")));
    json_end_object(w);
}

void preset_json(struct json_writer *w)
{
    struct doc *doc;
    struct preset p;
    if (load("devices", &doc, NULL) != PLIM_OK) return;
    for (size_t i = 0; i < node_count(&doc->root); i++) {
        read_preset(node_item(&doc->root, i), &p);
        put_device(w, &p);
    }
    doc_free(doc);
    if (load("instances", &doc, NULL) != PLIM_OK) return;
    for (size_t i = 0; i < node_count(&doc->root); i++) put_machine(w, node_item(&doc->root, i));
    doc_free(doc);
}

/* --- what a job takes of it ------------------------------------------------------------------------------ */

/* Keys that a preset fills where the job leaves them open. */
enum { TAKE_BATCH, TAKE_ACCUMULATION, TAKE_PRECISION, TAKE_PROFILE, TAKES };
static const char *const takes[TAKES] = {"training.batch_size", "training.gradient_accumulation_steps",
                                         "training.mixed_precision", "profile"};

static bool is_open(const struct job *job, int i)
{
    const struct job_training *t = &job->training;
    bool typed = i == TAKE_PRECISION && (job_given(job, &t->fp16) || job_given(job, &t->bf16));
    return !typed && !job_key_given(job, takes[i]);
}

bool job_awaits_device(const struct job *job)
{
    return job->training.precision == PRECISION_AUTO ||
           (!strcmp(job->training.preset, "auto") && is_open(job, TAKE_PRECISION));
}

/* The preset that is asked for; found false: none, or not before the device is known. */
static enum plim_status choose(const struct job *job, const struct device_facts *facts, struct preset *out,
                               bool *found, struct plim_error *err)
{
    const char *name = job->training.preset;
    *found = false;
    if (!*name || !strcmp(name, "none")) return PLIM_OK;
    if (!strcmp(name, "auto")) {
        *found = facts && preset_detect(facts, out);
        return PLIM_OK;
    }
    enum plim_status status = preset_find(name, out, err);
    if (status != PLIM_OK) plim_error_prefix(err, "%s: key 'training.preset'", job->name);
    *found = status == PLIM_OK;
    return status;
}

static void note_origin(struct job *job, const char *key, const struct preset *preset)
{
    char where[48];
    snprintf(where, sizeof where, "preset %s", preset->facts.name);
    job_origin_set(job, key, ORIGIN_PRESET, where);
}

enum plim_status job_take_preset(struct job *job, const struct device_facts *facts, struct plim_error *err)
{
    struct preset preset;
    bool found;
    enum plim_status status = choose(job, facts, &preset, &found, err);
    if (!found) return status;
    if (is_open(job, TAKE_BATCH)) job->training.batch_size = preset.batch;
    if (is_open(job, TAKE_ACCUMULATION)) job->training.accumulation = preset.accumulation;
    if (is_open(job, TAKE_PRECISION)) job->training.precision = preset.precision;
    if (is_open(job, TAKE_PROFILE)) job->profile = preset.profile;
    for (int i = 0; i < TAKES; i++)
        if (is_open(job, i)) note_origin(job, takes[i], &preset);
    snprintf(job->preset, sizeof job->preset, "%s", preset.facts.name);
    return PLIM_OK;
}

void job_take_profile(struct job *job, const struct preset *preset)
{
    if (!is_open(job, TAKE_PROFILE) || job->preset[0]) return;
    job->profile = preset->profile;
    note_origin(job, takes[TAKE_PROFILE], preset);
}

void job_preset_text(const struct job *job, const struct device_facts *facts, struct strbuf *out)
{
    int count = 0;
    if (!job->preset[0]) {
        if (!strcmp(job->training.preset, "auto"))
            strbuf_addf(out, "training.preset: none is known for %s; keys keep their defaults", facts->name);
        return;
    }
    strbuf_addf(out, "training.preset %s:", job->preset);
    for (int i = 0; i < TAKES; i++) {
        const char *dot = strchr(takes[i], '.');
        if (!is_open(job, i)) continue;
        strbuf_addf(out, "%s %s ", count++ ? "," : "", dot ? dot + 1 : takes[i]);
        schema_value(schema_find(&job_schema, takes[i]), job, out);
    }
    if (!count) strbuf_add(out, " the job gives every key it would fill");
}

/* --- profiles -------------------------------------------------------------------------------------------- */

enum plim_status profile_find(const char *name, struct profile *out, struct plim_error *err)
{
    struct doc *doc;
    enum plim_status status = load("profiles", &doc, err);
    if (status != PLIM_OK) return status;
    const struct node *p = node_get(&doc->root, name);
    if (p)
        *out = (struct profile){
            node_float(node_get(p, "target"), 0.9), node_float(node_get(p, "warning"), 0.92),
            node_float(node_get(p, "critical"), 0.95), node_float(node_get(p, "emergency"), 0.97)};
    else
        status = plim_fail(err, PLIM_BAD_INPUT,
                           "profile '%s' is not known; write aggressive, balanced or conservative", name);
    doc_free(doc);
    return status;
}

void job_thresholds(const struct job *job, struct profile *out)
{
    if (profile_find(profile_names[job->profile], out, NULL) != PLIM_OK)
        *out = (struct profile){0.90, 0.92, 0.95, 0.97};
    double target = job->target, other = job->batching.enabled ? job->batching.target : 0;
    if (other > 0 && (target <= 0 || other < target)) target = other;
    if (target > 0) out->target = target;
    if (job->warning > 0) out->warning = job->warning;
    if (job->critical > 0) out->critical = job->critical;
    if (job->emergency > 0) out->emergency = job->emergency;
}
