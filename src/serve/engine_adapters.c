/* engine_adapters.c - see engine_adapters.h. */
#include "base/hash.h"
#include "base/minmax.h"
#include "serve/engine_size.h"

#include <stdlib.h>
#include <string.h>

enum {
    LEAST_ROOM = 64 /* adapters that may be loaded while the server runs */,
    TEXT_MOST = 1024 /* of name and folder */
};

/* --- the list ----------------------------------------------------------------------------------------------- */

/* Under the lock. */
static struct served_adapter *find(const struct engine *e, const char *name)
{
    struct served_adapter *a = e->adapters.first;
    while (a && (a->leaving || strcmp(a->name, name))) a = a->next;
    return a;
}

static void drop_image(struct engine *e, struct served_adapter *a)
{
    e->adapters.images -= a->image != NULL;
    free(a->image);
    a->image = NULL;
}

/* Takes an adapter without users off the list. Under the lock. */
static void forget(struct engine *e, struct served_adapter *a)
{
    struct served_adapter **at = &e->adapters.first;
    while (*at != a) at = &(*at)->next;
    *at = a->next;
    if (a->slot >= 0) e->adapters.in_slot[a->slot] = NULL;
    drop_image(e, a);
    e->adapters.count--;
    free(a->name), free(a->dir), free(a);
}

static void retire(struct engine *e, struct served_adapter *a)
{
    a->leaving = true;
    if (!a->users) forget(e, a);
}

static bool good_name(const char *name)
{
    size_t n = strlen(name);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)name[i] < ' ' || name[i] == 127) return false;
    return n > 0 && n < ENGINE_ADAPTER_NAME;
}

static struct served_adapter *new_adapter(const char *name, const char *dir)
{
    struct served_adapter *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->name = strdup(name), a->dir = strdup(dir), a->slot = -1;
    if (a->name && a->dir) return a;
    free(a->name), free(a->dir), free(a);
    return NULL;
}

/* Under the lock. */
static enum plim_status add(struct engine *e, const char *name, const char *dir, bool replace,
                            struct plim_error *err)
{
    struct adapters *all = &e->adapters;
    struct served_adapter *old = find(e, name), **end = &all->first;
    if (old && !replace)
        return plim_fail(err, PLIM_BAD_INPUT, "adapter '%s' is already loaded; unload it first", name);
    if (all->count >= all->most)
        return plim_fail(err, PLIM_BUSY,
                         "%d adapters are loaded, as many as this server has room for; unload one",
                         all->count);
    struct served_adapter *a = new_adapter(name, dir);
    if (!a) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for an adapter");
    if (old) retire(e, old);
    a->id = ++all->next_id;
    while (*end) end = &(*end)->next;
    *end = a, all->count++;
    return PLIM_OK;
}

static enum plim_status check_text(const char *name, const char *dir, struct plim_error *err)
{
    if (!good_name(name))
        return plim_fail(err, PLIM_BAD_INPUT, "names of adapters have 1 to %d printable characters",
                         ENGINE_ADAPTER_NAME - 1);
    if (strlen(name) + strlen(dir) >= TEXT_MOST)
        return plim_fail(err, PLIM_BAD_INPUT, "adapter '%s': the path of its folder is too long", name);
    return PLIM_OK;
}

enum plim_status engine_load_adapter(struct engine *e, const char *name, const char *dir, bool replace,
                                     struct plim_error *err)
{
    struct adapters *all = &e->adapters;
    if (!all->slots)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "this server has no room for adapters; start it with --max-adapters");
    enum plim_status status = check_text(name, dir, err);
    if (status != PLIM_OK) return status;
    pthread_mutex_lock(&all->files);
    status = all->has_tape ? slot_read(all->slots, &e->spec, &all->tape, dir, NULL, err)
                           : plim_fail(err, PLIM_BUSY, "the server has no plan at the moment; try later");
    pthread_mutex_unlock(&all->files);
    if (status != PLIM_OK) return status;
    LOCKED(&e->lock);
    return add(e, name, dir, replace, err);
}

enum plim_status engine_unload_adapter(struct engine *e, const char *name, struct plim_error *err)
{
    LOCKED(&e->lock);
    struct served_adapter *a = find(e, name);
    if (!a) return plim_fail(err, PLIM_BAD_INPUT, "there is no adapter '%.128s'", name);
    retire(e, a);
    return PLIM_OK;
}

bool engine_has_adapter(struct engine *e, const char *name)
{
    LOCKED(&e->lock);
    return find(e, name) != NULL;
}

void engine_each_adapter(struct engine *e, void (*put)(void *arg, const char *name, const char *dir),
                         void *arg)
{
    LOCKED(&e->lock);
    for (const struct served_adapter *a = e->adapters.first; a; a = a->next)
        if (!a->leaving) put(arg, a->name, a->dir);
}

/* --- requests ------------------------------------------------------------------------------------------------ */

enum plim_status adapters_join(struct engine *e, struct request *r, const char *name, struct plim_error *err)
{
    struct served_adapter *a = find(e, name);
    if (!a) return plim_fail(err, PLIM_BAD_INPUT, "there is no adapter '%.128s'", name);
    r->adapter = a, a->users++;
    r->sequence.variant = hash64(&a->id, sizeof a->id, e->schedule.seed);
    return PLIM_OK;
}

void adapters_part(struct engine *e, struct request *r)
{
    struct served_adapter *a = r->adapter;
    r->adapter = NULL;
    if (a && --a->users == 0 && a->leaving) forget(e, a);
}

/* --- slots --------------------------------------------------------------------------------------------------- */

struct writing {
    const struct exec *exec;
    const struct tape *tape; /* of the slot */
    int slot;
};

/* Writes bytes of a slot; the tensor is one of the tape of one token, and has the same name in every tape. */
static enum plim_status write_tensor(void *arg, int tensor, const void *bytes, int64_t count,
                                     struct plim_error *err)
{
    const struct writing *w = arg;
    const struct tensor *t = &w->tape->tensors[tensor];
    int id = tape_find(w->exec->tape, t->label, t->layer);
    return exec_write(w->exec, id, bytes, w->slot * count, count, err);
}

static enum plim_status fill_image(void *arg, int tensor, const void *bytes, int64_t count,
                                   struct plim_error *err)
{
    struct served_adapter *a = arg;
    (void)tensor, (void)err;
    memcpy(a->image + a->image_at, bytes, (size_t)count);
    a->image_at += count;
    return PLIM_OK;
}

/* Room for one image more: the one that was used longest ago goes. */
static void take_image(struct engine *e, struct served_adapter *a)
{
    struct adapters *all = &e->adapters;
    struct served_adapter *oldest = NULL;
    LOCKED(&e->lock);
    for (struct served_adapter *b = all->first; b && all->images >= all->most_images; b = b->next)
        if (b->image && (!oldest || b->used < oldest->used)) oldest = b;
    if (oldest) drop_image(e, oldest);
    if (all->images < all->most_images) a->image = malloc((size_t)all->slot_bytes);
    all->images += a->image != NULL;
    a->image_at = 0;
}

/* An image has the tensors of the tape in their order. */
static enum plim_status write_image(const struct engine *e, struct writing *w, const char *image,
                                    struct plim_error *err)
{
    enum plim_status status = PLIM_OK;
    for (int i = 0, b; i < w->tape->ntensors && status == PLIM_OK; i++) {
        if (!adapter_slots_pair(e->adapters.slots, w->tape, i, &b)) continue;
        int64_t first = adapter_slot_bytes(&w->tape->tensors[i]),
                second = adapter_slot_bytes(&w->tape->tensors[b]);
        status = write_tensor(w, i, image, first, err);
        if (status == PLIM_OK) status = write_tensor(w, b, image + first, second, err);
        image += first + second;
    }
    return status;
}

/* Brings an adapter into a slot, from its image or from its files. */
static enum plim_status bring(struct engine *e, struct served_adapter *a, int slot, struct plim_error *err)
{
    const struct adapters *all = &e->adapters;
    struct writing w = {&e->family.runtime.exec, &all->tape, slot};
    if (!a->image && all->most_images) {
        take_image(e, a);
        enum plim_status status = a->image ? slot_read(all->slots, &e->spec, &all->tape, a->dir,
                                                       &(struct slot_sink){fill_image, a}, err)
                                           : PLIM_OK;
        if (status != PLIM_OK) {
            LOCKED(&e->lock);
            drop_image(e, a);
            return status;
        }
    }
    if (a->image) return write_image(e, &w, a->image, err);
    return slot_read(all->slots, &e->spec, &all->tape, a->dir, &(struct slot_sink){write_tensor, &w}, err);
}

/* A slot for an adapter that has none: a free one, or the one that was used longest ago and is idle; -1: all run. */
static int free_slot(const struct adapters *all)
{
    int best = -1;
    for (int i = 0; i < all->slots->count; i++) {
        const struct served_adapter *a = all->in_slot[i];
        if (!a) return i;
        if (!a->running && (best < 0 || a->used < all->in_slot[best]->used)) best = i;
    }
    return best;
}

/* Gives the adapter a slot. Returns false if there is none; *fresh: its bytes are not there yet. */
static bool reserve(struct engine *e, struct served_adapter *a, bool *fresh)
{
    struct adapters *all = &e->adapters;
    LOCKED(&e->lock);
    *fresh = a->slot < 0;
    int slot = *fresh ? free_slot(all) : a->slot;
    if (slot < 0) return false;
    if (all->in_slot[slot]) all->in_slot[slot]->slot = -1;
    all->in_slot[slot] = a, a->slot = slot, a->running++, a->used = ++all->clock;
    return true;
}

static void release(struct engine *e, struct served_adapter *a, bool broken)
{
    LOCKED(&e->lock);
    a->running--;
    if (!broken) return;
    e->adapters.in_slot[a->slot] = NULL, a->slot = -1;
}

static bool take_seat(void *arg, struct sequence *q)
{
    struct engine *e = arg;
    struct request *r = request_of(q);
    struct plim_error err;
    bool fresh;
    if (!r->adapter) return true;
    if (r->why || !reserve(e, r->adapter, &fresh)) return false;
    if (!fresh || bring(e, r->adapter, r->adapter->slot, &err) == PLIM_OK) return true;
    release(e, r->adapter, true);
    r->why = strdup(err.text);
    e->broken = true;
    return false;
}

static void leave_seat(void *arg, struct sequence *q)
{
    struct request *r = request_of(q);
    if (r->adapter) release(arg, r->adapter, false);
}

struct seats adapters_seats(struct engine *e)
{
    return e->adapters.slots ? (struct seats){take_seat, leave_seat, e} : (struct seats){0};
}

enum plim_status adapters_fill(struct engine *e, struct plim_error *err)
{
    struct adapters *all = &e->adapters;
    enum plim_status status = PLIM_OK;
    if (!all->slots) return PLIM_OK;
    all->in_slot = calloc((size_t)all->slots->count, sizeof *all->in_slot);
    if (!all->in_slot) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for the slots of adapters");
    int slot = 0;
    for (struct served_adapter *a = all->first; a && slot < all->slots->count && status == PLIM_OK;
         a = a->next) {
        status = bring(e, a, slot, err);
        LOCKED(&e->lock);
        if (status == PLIM_OK) all->in_slot[slot] = a, a->slot = slot++;
    }
    return status;
}

void adapters_empty(struct engine *e)
{
    struct adapters *all = &e->adapters;
    pthread_mutex_lock(&e->lock);
    for (struct served_adapter *a = all->first; a; a = a->next) a->slot = -1, drop_image(e, a);
    free(all->in_slot), all->in_slot = NULL;
    pthread_mutex_unlock(&e->lock);
    if (!all->slots) return;
    pthread_mutex_lock(&all->files);
    if (all->has_tape) tape_release(&all->tape);
    all->has_tape = false;
    pthread_mutex_unlock(&all->files);
}

/* --- opening --------------------------------------------------------------------------------------------------- */

static enum plim_status open_slots(struct engine *e, struct plim_error *err)
{
    const struct engine_options *o = &e->options;
    struct adapters *all = &e->adapters;
    const char **dirs = bump_alloc(&all->bump, (size_t)(o->adapter_count + 1) * sizeof *dirs);
    if (!dirs) return plim_fail(err, PLIM_NO_MEMORY, "out of memory for adapters");
    for (int i = 0; i < o->adapter_count; i++) dirs[i] = o->adapters[i].dir;
    struct adapter_slots_wish wish = {dirs, o->adapter_count, o->adapter_slots, o->adapter_rank};
    struct adapter_slots *slots;
    enum plim_status status = adapter_slots_open(&wish, &e->spec, &all->bump, &slots, err);
    if (status == PLIM_OK) all->slots = slots, all->asked = slots->count;
    return status;
}

enum plim_status adapters_open(struct engine *e, struct plim_error *err)
{
    const struct engine_options *o = &e->options;
    struct adapters *all = &e->adapters;
    if (!o->adapter_count && !o->adapter_slots) return PLIM_OK;
    if (e->kind != &engine_decoder)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "%s: adapters beside a %s model are not supported; merge one instead "
                         "(--adapter DIR)",
                         e->model, model_architecture_name(e->spec.arch));
    enum plim_status status = open_slots(e, err);
    all->most = o->adapter_count + (int)max64(LEAST_ROOM, o->adapter_slots);
    for (int i = 0; i < o->adapter_count && status == PLIM_OK; i++) {
        status = check_text(o->adapters[i].name, o->adapters[i].dir, err);
        if (status == PLIM_OK) status = add(e, o->adapters[i].name, o->adapters[i].dir, false, err);
    }
    return status;
}

void adapters_close(struct engine *e)
{
    adapters_empty(e);
    while (e->adapters.first) forget(e, e->adapters.first);
    bump_free(&e->adapters.bump);
    pthread_mutex_destroy(&e->adapters.files);
}

/* --- the plan --------------------------------------------------------------------------------------------------- */

enum plim_status adapters_measure(struct engine *e, struct plim_error *err)
{
    struct engine_tape one = {e, {1, 1, 1, 1, 1}, 0};
    struct adapters *all = &e->adapters;
    struct tape tape;
    if (!all->slots) return PLIM_OK;
    all->slots->count = all->asked;
    enum plim_status status = engine_tape_build(&one, 0, &tape, err);
    if (status != PLIM_OK) return status;
    pthread_mutex_lock(&all->files);
    if (all->has_tape) tape_release(&all->tape);
    all->tape = tape, all->has_tape = true;
    pthread_mutex_unlock(&all->files);
    all->slot_bytes = slot_bytes(all->slots, &tape), all->read_bytes = slot_read_bytes(all->slots, &tape);
    bool more = e->options.adapter_count > all->slots->count;
    int images = e->options.adapter_images;
    all->most_images = e->device->facts.unified_memory || images < 0 ? 0
                       : images                                      ? images
                       : more                                        ? e->options.adapter_count
                                                                     : 0;
    return PLIM_OK;
}

bool adapters_shrink(struct engine *e)
{
    struct adapter_slots *slots = e->adapters.slots;
    if (!slots || e->options.adapter_slots || slots->count == 1) return false;
    slots->count = (slots->count + 1) / 2;
    if (!e->device->facts.unified_memory && !e->options.adapter_images)
        e->adapters.most_images = e->options.adapter_count;
    return true;
}

int64_t adapters_overhead(const struct engine *e)
{
    const struct adapters *all = &e->adapters;
    if (!all->slots) return 0;
    return all->most * (int64_t)(sizeof(struct served_adapter) + TEXT_MOST) + all->read_bytes +
           all->most_images * all->slot_bytes + all->slots->count * (int64_t)sizeof *all->in_slot;
}

void adapters_note(const struct engine *e, struct engine_plan *plan)
{
    const struct adapters *all = &e->adapters;
    if (!all->slots) return;
    plan->adapter_slots = all->slots->count, plan->adapter_rank = all->slots->rank;
    plan->adapter_images = all->most_images, plan->adapters = all->slots->count * all->slot_bytes;
}
