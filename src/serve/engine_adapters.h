/* engine_adapters.h - adapters that requests choose by name, beside one model.
 *
 *     engine_load_adapter(e, "poet", "adapters/poet", false, &err);
 *     engine_submit(e, &(struct engine_request){.adapter = "poet", ...}, &id, &err);
 *     engine_unload_adapter(e, "poet", &err);
 *
 * Adapters that run are in slots on the device (model/adapter_slots.h); requests of all of them, and of none, share a step. An adapter
 * gets a slot when its first request begins; where all are taken, it replaces the one that has been idle longest. A request waits while
 * every slot belongs to a running request. Adapters without a slot are in host memory, as far as the plan has room, or on disk.
 *
 * Every load of an adapter is another variant: blocks of keys and values are shared only by requests of the same one.
 */
#pragma once

#include "model/adapter_slots.h"
#include "runtime/load.h"

struct engine;
struct engine_plan;
struct request;
struct seats;

/* An adapter by name. Fields are guarded by the engine's lock. */
struct served_adapter {
    struct served_adapter *next; /* in the order of loading */
    char *name, *dir;
    uint64_t id;      /* of this load, never used again */
    int slot;         /* -1: none */
    int users;        /* requests that run or wait */
    int running;      /* those that run: it keeps its slot */
    uint64_t used;    /* when a request last began */
    bool leaving;     /* no new requests; gone with its last user */
    char *image;      /* its slot's bytes in host memory; NULL: on disk only. The stepping thread's */
    int64_t image_at; /* bytes of it that are filled */
};

struct adapters {
    struct bump bump;
    struct adapter_slots *slots;             /* NULL: the engine has no adapters */
    int asked;                               /* slots for all adapters of the options */
    struct served_adapter *first, **in_slot; /* in_slot [slots->count] */
    int count, most;                         /* adapters, and as many as there may be */
    uint64_t clock, next_id;
    int images, most_images;
    int64_t slot_bytes, read_bytes;
    pthread_mutex_t files; /* guards `tape` */
    struct tape tape;      /* of one token: shapes and types of a slot */
    bool has_tape;
};

/* Names are not empty, shorter than this, and have no control characters. */
#define ENGINE_ADAPTER_NAME 128

/* From any thread. PLIM_BAD_INPUT: the name is taken (unless `replace`) or the files are not an adapter of this model;
 * PLIM_UNSUPPORTED: no slots, or something that slots cannot hold; PLIM_BUSY: too many adapters. */
enum plim_status engine_load_adapter(struct engine *e, const char *name, const char *dir, bool replace,
                                     struct plim_error *err);
/* Requests under way finish with it. PLIM_BAD_INPUT: there is none. */
enum plim_status engine_unload_adapter(struct engine *e, const char *name, struct plim_error *err);
bool engine_has_adapter(struct engine *e, const char *name);
/* Calls `put` for every adapter, under the engine's lock. */
void engine_each_adapter(struct engine *e, void (*put)(void *arg, const char *name, const char *dir),
                         void *arg);

/* The rest is for the engine itself. Slots for the adapters of the options; nothing without any. */
enum plim_status adapters_open(struct engine *e, struct plim_error *err);
void adapters_close(struct engine *e);
/* Shapes of a slot under the plan's precision and weights; before an offer is chosen. */
enum plim_status adapters_measure(struct engine *e, struct plim_error *err);
/* Halves the slots, if the options leave their number open; false: they stay. */
bool adapters_shrink(struct engine *e);
int64_t adapters_overhead(const struct engine *e); /* host bytes */
void adapters_note(const struct engine *e, struct engine_plan *plan);
/* After the weights were loaded: fills the slots with the first adapters. */
enum plim_status adapters_fill(struct engine *e, struct plim_error *err);
void adapters_empty(struct engine *e); /* the device's memory is gone */
struct seats adapters_seats(struct engine *e);
/* Under the lock. */
enum plim_status adapters_join(struct engine *e, struct request *r, const char *name, struct plim_error *err);
void adapters_part(struct engine *e, struct request *r);
