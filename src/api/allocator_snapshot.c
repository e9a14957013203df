/* allocator_snapshot.c - the segments, blocks and history of an allocator in the form of torch.cuda.memory._snapshot(), as a
 * pickle for memory_viz or as JSON. See plimsoll/allocator.h.
 *
 * A block's owner (plim_alloc_for) is its only frame. */
#include "api/allocator.h"
#include "base/file.h"
#include "base/pickle.h"

#include <string.h>

/* Writes one document in either form. */
struct form {
    bool pickle;
    struct pickle_writer p;
    struct json_writer j;
    struct cache *cache;
    int blocks; /* of the segment under way that are still to come */
};

static void begin_dict(struct form *f, const char *key)
{
    if (f->pickle)
        pickle_begin_dict(&f->p, key);
    else
        json_begin_object(&f->j, key);
}

static void end_dict(struct form *f)
{
    if (f->pickle)
        pickle_end_dict(&f->p);
    else
        json_end_object(&f->j);
}

static void begin_list(struct form *f, const char *key)
{
    if (f->pickle)
        pickle_begin_list(&f->p, key);
    else
        json_begin_array(&f->j, key);
}

static void end_list(struct form *f)
{
    if (f->pickle)
        pickle_end_list(&f->p);
    else
        json_end_array(&f->j);
}

static void put_int(struct form *f, const char *key, uint64_t value)
{
    if (f->pickle)
        pickle_int(&f->p, key, (int64_t)value);
    else
        json_uint(&f->j, key, value);
}

static void put_str(struct form *f, const char *key, const char *value)
{
    if (f->pickle)
        pickle_str(&f->p, key, value);
    else
        json_str(&f->j, key, value);
}

static void put_bool(struct form *f, const char *key, bool value)
{
    if (f->pickle)
        pickle_bool(&f->p, key, value);
    else
        json_bool(&f->j, key, value);
}

static void put_pool(struct form *f)
{
    if (f->pickle) {
        pickle_pair(&f->p, "segment_pool_id", 0, 0);
    } else {
        json_begin_array(&f->j, "segment_pool_id");
        json_int(&f->j, NULL, 0);
        json_int(&f->j, NULL, 0);
        json_end_array(&f->j);
    }
}

static void put_frames(struct form *f, const void *owner)
{
    begin_list(f, "frames");
    if (owner) {
        begin_dict(f, NULL);
        put_str(f, "name", owner);
        put_str(f, "filename", "owner");
        put_int(f, "line", 0);
        end_dict(f);
    }
    end_list(f);
}

static void end_segment(struct form *f)
{
    end_list(f);
    end_dict(f);
}

static void put_segment(void *arg, const struct cache_segment *s)
{
    struct form *f = arg;
    begin_dict(f, NULL);
    put_int(f, "device", 0);
    put_int(f, "address", s->address);
    put_int(f, "total_size", s->bytes);
    put_int(f, "allocated_size", s->allocated);
    put_int(f, "active_size", s->active);
    put_int(f, "requested_size", s->requested);
    put_int(f, "stream", s->stream);
    put_str(f, "segment_type", s->pool == CACHE_SMALL ? "small" : "large");
    put_pool(f);
    put_bool(f, "is_expandable", s->expandable);
    put_frames(f, s->frames);
    begin_list(f, "blocks");
    f->blocks = s->blocks;
    if (!f->blocks) end_segment(f);
}

static void put_block(void *arg, const struct cache_block *b)
{
    static const char *const states[] = {[CACHE_LIVE] = "active_allocated",
                                         [CACHE_PENDING] = "active_pending_free",
                                         [CACHE_CACHED] = "inactive"};
    struct form *f = arg;
    begin_dict(f, NULL);
    put_int(f, "address", b->address);
    put_int(f, "size", b->bytes);
    put_int(f, "requested_size", b->requested);
    put_str(f, "state", states[b->state]);
    put_frames(f, b->state == CACHE_CACHED ? NULL : b->frames);
    end_dict(f);
    if (!--f->blocks) end_segment(f);
}

static void put_event(void *arg, const struct cache_event *e)
{
    struct form *f = arg;
    begin_dict(f, NULL);
    put_str(f, "action", cache_action_name(e->action));
    put_int(f, e->action == CACHE_DID_OOM ? "device_free" : "addr", e->address);
    put_int(f, "size", e->bytes);
    put_int(f, "stream", e->stream);
    put_int(f, "time_us", (uint64_t)e->time_us);
    put_frames(f, e->frames);
    end_dict(f);
}

static void put_all(struct form *f)
{
    struct cache_visitor visitor = {.segment = put_segment, .block = put_block, .arg = f};
    begin_dict(f, NULL);
    begin_list(f, "device_traces");
    begin_list(f, NULL);
    cache_history_each(f->cache, put_event, f);
    end_list(f);
    end_list(f);
    begin_list(f, "segments");
    cache_walk(f->cache, &visitor);
    end_list(f);
    begin_dict(f, "allocator_settings");
    put_str(f, "allocator", "plimsoll");
    end_dict(f);
    begin_list(f, "external_annotations");
    end_list(f);
    end_dict(f);
}

enum plim_status allocator_snapshot(struct plim_allocator *a, bool pickle, const char *path,
                                    struct plim_error *err)
{
    struct strbuf text = STRBUF_INIT;
    struct form form = {.pickle = pickle, .cache = a->cache};
    if (pickle)
        pickle_writer_init(&form.p, &text);
    else
        json_writer_init(&form.j, &text, 0);
    put_all(&form);
    if (pickle) pickle_end(&form.p);
    enum plim_status status = strbuf_status(&text, err);
    if (status == PLIM_OK) status = file_write_atomic(path, text.data, text.len, err);
    strbuf_release(&text);
    return status;
}

enum plim_status plim_allocator_snapshot(struct plim_allocator *a, const char *path, struct plim_error *err)
{
    size_t n = path ? strlen(path) : 0;
    if (!handle_is(a, HANDLE_ALLOCATOR, "plim_allocator_snapshot", err)) return PLIM_BAD_INPUT;
    bool pickle = n > 7 && !strcmp(path + n - 7, ".pickle");
    if (!pickle && !(n > 5 && !strcmp(path + n - 5, ".json")))
        return plim_fail(err, PLIM_BAD_INPUT,
                         "plim_allocator_snapshot: '%.200s': write a name that ends in .pickle or .json",
                         path ? path : "");
    return allocator_snapshot(a, pickle, path, err);
}
