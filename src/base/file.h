/* file.h - files, with errors that carry the path and the system's words.
 *
 *     struct strbuf text = STRBUF_INIT;
 *     file_read("job.yaml", 16 << 20, &text, &err);
 *     file_write_atomic("state.json", text.data, text.len, &err);
 *
 * An atomic write puts a temporary file beside the target, syncs it, renames it over the target and syncs the
 * folder: after a crash at any moment the target holds the old content or the new one, never a mixture. Large
 * files are written piece by piece:
 *
 *     struct file_atomic f;
 *     file_atomic_begin(&f, path, &err);
 *     file_pwrite_full(f.fd, data, n, offset, f.temp, &err);
 *     file_atomic_commit(&f, &err);                      // or file_atomic_abandon(&f)
 *
 * All errors are PLIM_IO unless said otherwise. Writes pass the fault point FAULT_WRITE (base/fault.h).
 */
#pragma once

#include "base/status.h"
#include "base/strbuf.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Opens a file for random access. Never waits for a pipe: PLIM_BAD_INPUT. The caller closes it. */
enum plim_status file_open(const char *path, int *fd, struct plim_error *err);

/* PLIM_BAD_INPUT if the path is a pipe: use it for files that are read more than once. A missing file is not an error
 * here. */
enum plim_status file_refuse_pipe(const char *path, struct plim_error *err);

/* Appends the whole file to out. PLIM_BAD_INPUT when it is larger than max_bytes or a folder. A pipe is
 * accepted, unless nothing arrives for FILE_PIPE_SECONDS: then nobody is writing to it. */
enum { FILE_PIPE_SECONDS = 5 };
enum plim_status file_read(const char *path, uint64_t max_bytes, struct strbuf *out, struct plim_error *err);

/* Replaces the file by data[0..len), durably; new files get mode 0666 less the umask. */
enum plim_status file_write_atomic(const char *path, const void *data, size_t len, struct plim_error *err);

struct file_atomic {
    int fd; /* open for writing; -1 when nothing is open */
    char *path, *temp;
};

/* PLIM_BAD_INPUT if the path is a pipe, a device or a folder, or a link to one: a rename would replace it. A
 * missing file is fine. A link to a file is fine too; the rename replaces the link. */
enum plim_status file_refuse_special(const char *path, struct plim_error *err);

/* Calls file_refuse_special first. After a failed begin or commit nothing needs cleaning up. abandon after
 * commit does nothing. */
enum plim_status file_atomic_begin(struct file_atomic *f, const char *path, struct plim_error *err);
enum plim_status file_atomic_commit(struct file_atomic *f, struct plim_error *err);
void file_atomic_abandon(struct file_atomic *f);

/* Reads or writes all n bytes at offset, or fails. A file that ends too early is PLIM_BAD_INPUT. `path` is
 * for the error. Interrupted and partial calls are continued. */
enum plim_status file_pread_full(int fd, void *buf, size_t n, uint64_t offset, const char *path,
                                 struct plim_error *err);
enum plim_status file_pwrite_full(int fd, const void *buf, size_t n, uint64_t offset, const char *path,
                                  struct plim_error *err);

/* Creates a folder and its parents; an existing folder is fine. */
enum plim_status file_make_dirs(const char *path, struct plim_error *err);

/* Makes the names in the folder that holds `path` durable. */
enum plim_status file_sync_parent(const char *path, struct plim_error *err);

bool file_exists(const char *path);

/* Size of a regular file; -1 if there is none. */
int64_t file_bytes(const char *path);

/* Bytes that this process may still write below the folder. If the folder does not exist, its nearest
 * existing parent is asked. -1: unknown. Passes the fault point FAULT_DISK. */
int64_t file_free_bytes(const char *folder);
