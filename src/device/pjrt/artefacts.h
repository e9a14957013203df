/* artefacts.h - executables of PJRT plug-ins, kept for the next start: files *.pjrt in the folder pjrt of the cache.
 *
 *     artefacts_open(&a, context, &pjrt);
 *     artefacts_executable(&a, text, length, &exe, &err);     // from a file, or compiled and then written to one
 *     artefacts_tell(&a);                                     // "compiled 3 programs in 4.2 s"
 *     artefacts_close(&a);
 *
 * A file's key names all that an executable depends on: the plug-in's file (path, size, time), the platform's name and version, the
 * kind of device, the compiler's options and flags, and the program's text (two hashes and its length). A file is used only if it
 * belongs to this user, nobody else may write it, and its key and checksum are right. Another is ignored with one line, and written anew. The
 * folder holds ARTEFACTS_MOST bytes, or PLIMSOLL_PJRT_CACHE (0: nothing is kept): files that were used longest ago go first.
 *
 * File: struct artefact_head, the key's text, the serialised executable. The checksum is of all that follows it.
 */
#pragma once

#include "device/pjrt/pjrt_client.h"

#define ARTEFACTS_MOST   ((uint64_t)8 << 30)
#define ARTEFACTS_FOLDER "pjrt"
#define ARTEFACTS_ENDING ".pjrt"

struct artefact_head {
    char magic[8];
    uint64_t checksum;
    uint32_t version, key_bytes;
    uint64_t bytes; /* of the executable */
    /* As in struct pjrt_bytes: some plug-ins report them only after they compiled. */
    int64_t argument, output, alias, temp, code, known;
};

struct artefacts {
    struct pjrt *pjrt;
    const struct log *log;
    struct strbuf folder; /* empty: nothing is kept */
    struct strbuf key;    /* all of it but the program */
    uint64_t most, total; /* bytes of the folder: limit, and as far as known */
    /* Since artefacts_tell. */
    int compiled, reused;
    double compile_seconds, reuse_seconds;
};

void artefacts_open(struct artefacts *a, const struct context *context, struct pjrt *pjrt);
void artefacts_close(struct artefacts *a);
enum plim_status artefacts_executable(struct artefacts *a, const char *text, size_t length,
                                      struct pjrt_exe *out, struct plim_error *err);
/* Logs how many programs were compiled or reused since the last call, and in how many seconds; nothing, if there were none. */
void artefacts_tell(struct artefacts *a);
