/* torch_snapshot.c - from the tree of a snapshot to arrays of events and blocks.
 *
 * A trace of a million events is mostly references to a few thousand stacks. PyTorch's pickle shares them, so the reader keeps
 * a table from the address of a stack's children to its frame, and a table of frames by content; the tree is freed as soon as
 * the arrays are made.
 */
#include "store/torch_snapshot.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/pickle_read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TREE_RATIO = 32 }; /* bytes of tree for a byte of file; snapshots take eight to ten */

/* An open-addressed table of keys to frames. */
struct table {
    struct slot {
        uint64_t key;
        int value; /* + 1; 0: free */
    } * slots;
    size_t count, mask;
};

struct reader {
    struct torch_snapshot *snap;
    const char *name;
    struct table stacks; /* by the address of the list's children */
    struct table frames; /* by content */
    int frame_cap, device_cap;
    struct plim_error *err;
};

static enum plim_status no_memory(const struct reader *r)
{
    return plim_fail(r->err, PLIM_NO_MEMORY, "%s: out of memory", r->name);
}

/* --- tables --------------------------------------------------------------------------------------------------------- */

/* Keys are products: their upper bits are the better mixed ones. */
static size_t home(uint64_t key, size_t mask) { return (size_t)(key ^ key >> 32) & mask; }

static bool table_grow(struct table *t)
{
    size_t slots = t->slots ? 2 * (t->mask + 1) : 256;
    struct slot *old = t->slots, *fresh = calloc(slots, sizeof *fresh);
    if (!fresh) return false;
    for (size_t i = 0; old && i <= t->mask; i++) {
        size_t at = home(old[i].key, slots - 1);
        if (!old[i].value) continue;
        while (fresh[at].value) at = (at + 1) & (slots - 1);
        fresh[at] = old[i];
    }
    free(old);
    t->slots = fresh, t->mask = slots - 1;
    return true;
}

/* The key's slot: with a value, or free for it; the next one with this key after `after`. NULL: no memory. */
static struct slot *table_slot(struct table *t, uint64_t key, const struct slot *after)
{
    if (!after && 2 * t->count >= (t->slots ? t->mask + 1 : 0) && !table_grow(t)) return NULL;
    size_t at = after ? (size_t)(after - t->slots + 1) & t->mask : home(key, t->mask);
    while (t->slots[at].value && t->slots[at].key != key) at = (at + 1) & t->mask;
    return &t->slots[at];
}

static void table_set(struct table *t, struct slot *slot, uint64_t key, int value)
{
    t->count += !slot->value;
    *slot = (struct slot){key, value + 1};
}

/* --- frames --------------------------------------------------------------------------------------------------------- */

/* Folders of the package that have no namesakes in users' programs when they come after torch/. */
static const char *const own_parts[] = {"nn/",          "optim/",    "autograd/", "utils/", "cuda/",
                                        "distributed/", "amp/",      "_",         "fx/",    "functional.py",
                                        "jit/",         "ao/",       "backends/", "func/",  "csrc/",
                                        "storage.py",   "library.py"};

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* Frames of C++ are PyTorch's or the system's: a user's are of Python, in a file or in a cell ("<ipython-input-3>"). Compiled
 * graphs run from generated files below a folder of torchinductor's. */
bool torch_owns_file(const char *file)
{
    static const char *const generated[] = {"-packages/torch/", "/torchinductor_", "<frozen ",
                                            "<eval_with_key>"};
    if (!ends_with(file, ".py") && *file != '<') return true;
    for (size_t i = 0; i < sizeof generated / sizeof generated[0]; i++)
        if (strstr(file, generated[i])) return true;
    for (const char *at = strstr(file, "torch/"); at; at = strstr(at + 1, "torch/"))
        for (size_t i = 0; i < sizeof own_parts / sizeof own_parts[0] && (at == file || at[-1] == '/'); i++)
            if (!strncmp(at + 6, own_parts[i], strlen(own_parts[i]))) return true;
    return false;
}

static bool same_frame(const struct torch_frame *f, const char *file, const char *name, int line)
{
    return f->line == line && !strcmp(f->file, file) && !strcmp(f->name, name);
}

static enum plim_status add_frame(struct reader *r, const char *file, const char *name, int line)
{
    struct torch_snapshot *s = r->snap;
    if (s->frame_count == r->frame_cap) {
        int cap = r->frame_cap ? 2 * r->frame_cap : 64;
        struct torch_frame *more = realloc(s->frames, (size_t)cap * sizeof *more);
        if (!more) return no_memory(r);
        s->frames = more, r->frame_cap = cap;
    }
    struct torch_frame *f = &s->frames[s->frame_count];
    *f = (struct torch_frame){bump_copy(&s->store, file, strlen(file)),
                              bump_copy(&s->store, name, strlen(name)), line};
    if (!f->file || !f->name) return no_memory(r);
    s->frame_count++;
    return PLIM_OK;
}

/* The number of a frame, the same for the same place. */
static enum plim_status intern(struct reader *r, const struct node *frame, int *out)
{
    const char *file = node_string(node_get(frame, "filename"), "??"),
               *name = node_string(node_get(frame, "name"), "");
    int64_t wide = node_int(node_get(frame, "line"), 0);
    int line = wide > 0 && wide < INT32_MAX ? (int)wide : 0;
    uint64_t key = hash_text(file) ^ 31 * hash_text(name) ^ (uint64_t)line * 0x9e3779b97f4a7c15u;
    struct slot *slot = table_slot(&r->frames, key, NULL);
    while (slot && slot->value && !same_frame(&r->snap->frames[slot->value - 1], file, name, line))
        slot = table_slot(&r->frames, key, slot);
    if (!slot) return no_memory(r);
    enum plim_status status = slot->value ? PLIM_OK : add_frame(r, file, name, line);
    if (status != PLIM_OK) return status;
    if (!slot->value) table_set(&r->frames, slot, key, r->snap->frame_count - 1);
    *out = slot->value - 1;
    return PLIM_OK;
}

/* The frame that a stack stands for: the innermost that is not PyTorch's, else the outermost of Python's. */
static const struct node *choose(const struct node *frames)
{
    const struct node *last = NULL;
    for (size_t i = 0; i < node_count(frames); i++) {
        const struct node *f = node_item(frames, i);
        const char *file = node_string(node_get(f, "filename"), "??");
        if (!torch_owns_file(file)) return f;
        if (ends_with(file, ".py")) last = f;
    }
    return last;
}

static enum plim_status frame_of(struct reader *r, const struct node *owner, int *out)
{
    const struct node *frames = node_get(owner, "frames"), *old = node_item(node_get(owner, "history"), 0);
    if (!node_count(frames)) frames = node_get(old, "frames");
    *out = TORCH_NO_FRAME;
    if (!node_count(frames)) return PLIM_OK;
    uint64_t key = (uint64_t)(uintptr_t)frames->as.list.items * 0x9e3779b97f4a7c15u;
    struct slot *slot = table_slot(&r->stacks, key,
                                   NULL); /* multiplying by an odd number loses nothing: no two share a key */
    if (!slot) return no_memory(r);
    if (!slot->value) {
        const struct node *chosen = choose(frames);
        int frame = TORCH_NO_FRAME;
        enum plim_status status = chosen ? intern(r, chosen, &frame) : PLIM_OK;
        if (status != PLIM_OK) return status;
        table_set(&r->stacks, slot, key, frame + 1); /* 0: none */
    }
    *out = slot->value - 2;
    return PLIM_OK;
}

char *torch_frame_text(const struct torch_snapshot *snap, int frame, char out[TORCH_FRAME_TEXT])
{
    if (frame < 0 || frame >= snap->frame_count) {
        snprintf(out, TORCH_FRAME_TEXT, "no Python frame (backward, or C++)");
        return out;
    }
    const struct torch_frame *f = &snap->frames[frame];
    const char *file = f->file;
    int slashes = 0;
    for (const char *p = file + strlen(file); p > file; p--)
        if (p[-1] == '/' && ++slashes == 2) {
            file = p;
            break;
        }
    snprintf(out, TORCH_FRAME_TEXT, "%.80s:%d %.60s", file, f->line, f->name);
    return out;
}

/* --- segments and blocks -------------------------------------------------------------------------------------------- */

static struct torch_device *device_at(struct reader *r, int number)
{
    struct torch_snapshot *s = r->snap;
    for (int i = 0; i < s->device_count; i++)
        if (s->devices[i].number == number) return &s->devices[i];
    if (s->device_count == r->device_cap) {
        int cap = r->device_cap ? 2 * r->device_cap : 8;
        struct torch_device *more = realloc(s->devices, (size_t)cap * sizeof *more);
        if (!more) return NULL;
        s->devices = more, r->device_cap = cap;
    }
    struct torch_device *d = &s->devices[s->device_count++];
    *d = (struct torch_device){.number = number};
    return d;
}

/* A number that must be there and must not be negative. */
static bool need(const struct node *map, const char *key, int64_t *out)
{
    return node_is_whole(node_get(map, key), out) && *out >= 0;
}

static enum plim_status add_block(struct reader *r, struct torch_device *d, size_t *cap,
                                  const struct torch_block *b)
{
    if (d->block_count == *cap) {
        size_t more = *cap ? 2 * *cap : 256;
        struct torch_block *blocks = realloc(d->blocks, more * sizeof *blocks);
        if (!blocks) return no_memory(r);
        d->blocks = blocks, *cap = more;
    }
    d->blocks[d->block_count++] = *b;
    return PLIM_OK;
}

/* Older snapshots have no addresses of blocks: they lie side by side. */
static enum plim_status read_blocks(struct reader *r, struct torch_device *d, size_t *cap,
                                    const struct node *segment, size_t index)
{
    const struct node *blocks = node_get(segment, "blocks");
    int64_t address = node_int(node_get(segment, "address"), 0),
            stream = node_int(node_get(segment, "stream"), 0);
    for (size_t i = 0; i < node_count(blocks); i++) {
        const struct node *b = node_item(blocks, i), *old = node_item(node_get(b, "history"), 0);
        int64_t size;
        if (!need(b, "size", &size))
            return plim_fail(r->err, PLIM_BAD_INPUT,
                             "%s: segments[%zu].blocks[%zu]: no size; is this a memory snapshot of PyTorch?",
                             r->name, index, i);
        address = node_int(node_get(b, "address"), address);
        struct torch_block block = {.address = (uint64_t)address, .size = size, .stream = (uint64_t)stream};
        address += size;
        if (strncmp(node_string(node_get(b, "state"), ""), "active", 6)) continue;
        block.requested = node_int(node_get(b, "requested_size"), node_int(node_get(old, "real_size"), size));
        if (block.requested <= 0 || block.requested > size) block.requested = size;
        enum plim_status status = frame_of(r, b, &block.frame);
        if (status == PLIM_OK) status = add_block(r, d, cap, &block);
        if (status != PLIM_OK) return status;
    }
    return PLIM_OK;
}

static bool is_private(const struct node *pool)
{
    return node_int(node_item(pool, 0), 0) || node_int(node_item(pool, 1), 0);
}

static enum plim_status read_segments(struct reader *r, const struct node *segments)
{
    size_t caps[1024] = {0};
    for (size_t i = 0; i < node_count(segments); i++) {
        const struct node *s = node_item(segments, i);
        int64_t total, number = node_int(node_get(s, "device"), 0);
        if (!need(s, "total_size", &total) || number < 0 || number >= (int64_t)(sizeof caps / sizeof caps[0]))
            return plim_fail(r->err, PLIM_BAD_INPUT,
                             "%s: segments[%zu]: no total_size, or a strange device; is this a memory "
                             "snapshot of PyTorch?",
                             r->name, i);
        struct torch_device *d = device_at(r, (int)number);
        if (!d) return no_memory(r);
        d->reserved += total;
        d->segment_count++;
        d->expandable += node_bool(node_get(s, "is_expandable"), false);
        if (is_private(node_get(s, "segment_pool_id"))) d->private_pool += total;
        enum plim_status status = read_blocks(r, d, &caps[number], s, i);
        if (status != PLIM_OK) return status;
    }
    return PLIM_OK;
}

/* --- traces --------------------------------------------------------------------------------------------------------- */

static const char *const action_names[TORCH_ACTIONS] = {"alloc",
                                                        "free_requested",
                                                        "free_completed",
                                                        "segment_alloc",
                                                        "segment_free",
                                                        "segment_map",
                                                        "segment_unmap",
                                                        "oom",
                                                        ""};

static enum torch_action action_of(const char *name)
{
    int i = 0;
    while (i < TORCH_OTHER && strcmp(action_names[i], name)) i++;
    return (enum torch_action)i;
}

static enum plim_status read_event(struct reader *r, const struct node *node, struct torch_event *out)
{
    int64_t address = 0, size = 0;
    const char *name = node_string(node_get(node, "action"), NULL);
    if (!name) return PLIM_BAD_INPUT;
    out->action = action_of(name);
    if (out->action < TORCH_OOM) {
        if (!node_is_whole(node_get(node, "addr"), &address) || !need(node, "size", &size))
            return PLIM_BAD_INPUT;
    } else {
        size = node_int(node_get(node, "size"), 0);
    }
    out->address = (uint64_t)address, out->size = size;
    out->stream = (uint64_t)node_int(node_get(node, "stream"), 0);
    out->time_us = node_int(node_get(node, "time_us"), 0);
    return frame_of(r, node, &out->frame);
}

static enum plim_status read_trace(struct reader *r, const struct node *trace, size_t number)
{
    size_t n = node_count(trace);
    if (!n) return PLIM_OK;
    struct torch_device *d = number < 1024 ? device_at(r, (int)number) : NULL;
    if (!d || !(d->events = malloc(n * sizeof *d->events))) return no_memory(r);
    for (size_t i = 0; i < n; i++) {
        enum plim_status status = read_event(r, node_item(trace, i), &d->events[i]);
        if (status == PLIM_BAD_INPUT)
            return plim_fail(r->err, PLIM_BAD_INPUT,
                             "%s: device_traces[%zu][%zu]: no action, address or size; is this a memory "
                             "snapshot of PyTorch?",
                             r->name, number, i);
        if (status != PLIM_OK) return status;
    }
    d->event_count = n;
    return PLIM_OK;
}

/* --- all of it ------------------------------------------------------------------------------------------------------ */

static enum plim_status read_settings(struct reader *r, const struct node *settings)
{
    static const char *const keys[] = {"PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"};
    const char *conf = "";
    for (size_t i = 0; i < 2 && !*conf; i++) conf = node_string(node_get(settings, keys[i]), "");
    r->snap->conf = bump_copy(&r->snap->store, conf, strlen(conf));
    return r->snap->conf ? PLIM_OK : no_memory(r);
}

static enum plim_status read_tree(struct reader *r, const struct node *root)
{
    const struct node *segments = root->kind == NODE_LIST ? root : node_get(root, "segments");
    const struct node *traces = node_get(root, "device_traces");
    bool listed =
        root->kind == NODE_LIST && (!node_count(root) || node_get(node_item(root, 0), "total_size"));
    if (!(listed || (root->kind == NODE_MAP &&
                     ((segments && segments->kind == NODE_LIST) || (traces && traces->kind == NODE_LIST)))))
        return plim_fail(r->err, PLIM_BAD_INPUT,
                         "%s: not a memory snapshot of PyTorch: it has neither 'segments' nor "
                         "'device_traces'; write one with "
                         "torch.cuda.memory._dump_snapshot(FILE)",
                         r->name);
    enum plim_status status = read_settings(r, node_get(root, "allocator_settings"));
    if (status == PLIM_OK) status = read_segments(r, segments);
    for (size_t i = 0; i < node_count(traces) && status == PLIM_OK; i++)
        status = read_trace(r, node_item(traces, i), i);
    if (status == PLIM_OK && !r->snap->device_count)
        return plim_fail(r->err, PLIM_BAD_INPUT,
                         "%s: the snapshot is empty: no segment and no event; call "
                         "torch.cuda.memory._record_memory_history() before "
                         "the work, and dump it after",
                         r->name);
    return status;
}

static enum plim_status read_document(struct strbuf *text, const char *name, struct doc **doc,
                                      struct plim_error *err)
{
    struct quota quota = {.most = ((uint64_t)64 << 20) + TREE_RATIO * (uint64_t)text->len,
                          .why = "far more than a snapshot of its size needs"};
    const char *p = strbuf_text(text);
    if (text->len >= 4 && (!memcmp(p, "PK\3\4", 4) || !memcmp(p, "\x1f\x8b", 2)))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "%s: a compressed file or one of torch.save; unpack it, or write a snapshot with "
                         "torch.cuda.memory._dump_snapshot(FILE)",
                         name);
    size_t blank = strspn(p, " \t\r\n");
    bool json = !strncmp(p, "\xef\xbb\xbf", 3) || p[blank] == '{' || p[blank] == '[';
    if (json) return json_parse_taking(text, name, &quota, doc, err);
    enum plim_status status = pickle_parse(p, text->len, name, &quota, doc, err);
    strbuf_release(text);
    return status;
}

enum plim_status torch_snapshot_read(struct torch_snapshot *out, struct strbuf *text, const char *name,
                                     struct plim_error *err)
{
    struct reader r = {.snap = out, .name = name, .err = err};
    struct doc *doc = NULL;
    *out = (struct torch_snapshot){.conf = ""};
    enum plim_status status = read_document(text, name, &doc, err);
    if (status == PLIM_OK) status = read_tree(&r, &doc->root);
    doc_free(doc);
    free(r.stacks.slots);
    free(r.frames.slots);
    if (status != PLIM_OK) torch_snapshot_release(out);
    return status;
}

void torch_snapshot_release(struct torch_snapshot *snap)
{
    for (int i = 0; i < snap->device_count; i++) {
        free(snap->devices[i].events);
        free(snap->devices[i].blocks);
    }
    free(snap->devices);
    free(snap->frames);
    bump_free(&snap->store);
    *snap = (struct torch_snapshot){.conf = ""};
}

bool torch_snapshot_looks_so(const char *path, const char *bytes, size_t len)
{
    static const char *const endings[] = {".pickle", ".pkl", ".json"};
    size_t blank = 0;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++)
        if (ends_with(path, endings[i])) return true;
    while (blank < len && strchr(" \t\r\n", bytes[blank])) blank++;
    return pickle_looks_so(bytes, len) || (blank < len && (bytes[blank] == '{' || bytes[blank] == '['));
}
