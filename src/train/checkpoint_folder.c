/* checkpoint_folder.c - see checkpoint_folder.h. */
#define _GNU_SOURCE /* renameat2 */
#include "train/checkpoint_folder.h"
#include "base/fault.h"
#include "base/file.h"
#include "store/safetensors.h"
#include "train/checkpoint.h"
#include "train/manifest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PREFIX CHECKPOINT_PREFIX
#define TEMP   CHECKPOINT_TEMP

int64_t checkpoint_name_step(const char *name)
{
    if (strncmp(name, PREFIX, sizeof PREFIX - 1)) return -1;
    const char *digits = name + sizeof PREFIX - 1;
    char *end;
    long long step = strtoll(digits, &end, 10);
    return *digits && !*end ? step : -1;
}

static bool holds(const char *dir, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return file_exists(path);
}

bool checkpoint_is_ours(const char *path)
{
    return holds(path, "trainer.json") || holds(path, "manifest.json") || holds(path, "state");
}

/* Whole or damaged. A folder gets its name when it is whole, so what is missing of one was lost afterwards. */
static bool is_checkpoint(const char *path)
{
    return checkpoint_is_ours(path) || holds(path, "model.safetensors") ||
           holds(path, "model.safetensors.index.json") || holds(path, SAFETENSORS_PIECES);
}

/* Every file of the manifest is there and has its size. Contents are not read: see checkpoint_find. */
static bool seems_whole(const char *path)
{
    struct doc *manifest;
    if (manifest_read(path, &manifest, NULL) != PLIM_OK || !manifest) return false;
    const struct node *files = node_get(&manifest->root, "files");
    bool whole = files != NULL;
    for (size_t i = 0; whole && i < node_count(files); i++) {
        const struct node *entry = node_item(files, i);
        char file[1024];
        snprintf(file, sizeof file, "%s/%s", path, entry->key);
        whole = file_bytes(file) == node_int(node_get(entry, "bytes"), -1);
    }
    doc_free(manifest);
    return whole;
}

int64_t checkpoint_below(const char *dir, int64_t before, char *path, size_t size)
{
    DIR *d = opendir(dir);
    int64_t newest = 0;
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        int64_t step = checkpoint_name_step(e->d_name);
        char found[800];
        snprintf(found, sizeof found, "%s/%s", dir, e->d_name);
        if (step <= newest || step >= before || !is_checkpoint(found)) continue;
        newest = step;
        snprintf(path, size, "%s", found);
    }
    closedir(d);
    return newest;
}

int64_t checkpoint_newest(const char *dir, char *path, size_t size)
{
    return checkpoint_below(dir, INT64_MAX, path, size);
}

int64_t checkpoint_count(const char *dir)
{
    DIR *d = opendir(dir);
    int64_t count = 0;
    for (struct dirent *e; d && (e = readdir(d));) count += checkpoint_name_step(e->d_name) >= 0;
    if (d) closedir(d);
    return count;
}

/* Remove a file, a link or a folder two levels deep: ours have no more. */
static void remove_tree(const char *path, int depth)
{
    if (!unlink(path) || depth < 0) return;
    DIR *d = opendir(path);
    if (!d) return;
    for (struct dirent *e; (e = readdir(d));) {
        char child[1024];
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        snprintf(child, sizeof child, "%s/%s", path, e->d_name);
        remove_tree(child, depth - 1);
    }
    closedir(d);
    rmdir(path);
}

void checkpoint_remove(const char *path) { remove_tree(path, 2); }

/* The oldest checkpoint before `newest` into victim ("" when there is none); how many whole ones there are up to it:
 * damaged ones grow old with the others, but keep none of them from staying. What earlier crashes left half-written or
 * half-removed goes. */
static int64_t find_oldest(const char *dir, int64_t newest, int64_t best, char *victim, size_t size)
{
    int64_t oldest = newest, count = 0;
    DIR *d = opendir(dir);
    *victim = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        int64_t step = checkpoint_name_step(e->d_name);
        char partial[800];
        snprintf(partial, sizeof partial, "%s/%s", dir, e->d_name);
        if (!strncmp(e->d_name, TEMP PREFIX, sizeof TEMP PREFIX - 1)) remove_tree(partial, 2);
        if (best && step == best) continue;
        count += step >= 0 && step <= newest && seems_whole(partial);
        if (step >= 0 && step < oldest) oldest = step, snprintf(victim, size, "%s", partial);
    }
    if (d) closedir(d);
    return count;
}

/* A victim loses its name first: half removed, it must not pass for a checkpoint. */
void checkpoint_prune(const char *dir, int64_t keep, int64_t newest, int64_t best)
{
    char victim[800], away[600];
    snprintf(away, sizeof away, "%s/" TEMP PREFIX "old", dir);
    while (find_oldest(dir, newest, best, victim, sizeof victim) > keep && *victim) {
        if (rename(victim, away)) return; /* not ours to remove */
        fault_may_die();
        remove_tree(away, 2);
    }
}

enum plim_status checkpoint_take_name(const char *temp, const char *path, struct plim_error *err)
{
    fault_may_die();
    if (!rename(temp, path)) {
        fault_may_die();
        return file_sync_parent(path, err);
    }
    if (errno != ENOTEMPTY && errno != EEXIST)
        return plim_fail(err, PLIM_IO, "%s: cannot rename the checkpoint into place: %s", path,
                         strerror(errno));
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE))
        return plim_fail(err, PLIM_IO, "%s: is in the way: %s; remove it or choose another output.dir", path,
                         strerror(errno));
    enum plim_status status = file_sync_parent(path, err);
    remove_tree(temp, 2);
    return status;
}

void checkpoint_clear(const char *dir)
{
    char path[600], away[600];
    snprintf(away, sizeof away, "%s/" TEMP PREFIX "old", dir);
    while (checkpoint_newest(dir, path, sizeof path)) {
        if (rename(path, away)) return; /* not ours to remove */
        remove_tree(away, 2);
    }
}
