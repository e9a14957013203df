/* same_program.c - ranks of different programs would add up what neither of them means: they are told apart before anything else is
 * exchanged, by the number that the linker makes of what it has linked (the build ID). */
#define _GNU_SOURCE /* dl_iterate_phdr */
#include "comm/lane.h"

#include <elf.h>
#include <link.h>
#include <string.h>

enum { ID_MOST = 64 };

struct build_id {
    unsigned char bytes[ID_MOST];
    size_t size;
};

static size_t padded(size_t n) { return (n + 3) & ~(size_t)3; }

/* The notes of the first object, which is the program. */
static int find_id(struct dl_phdr_info *info, size_t size, void *arg)
{
    struct build_id *id = arg;
    (void)size;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        const char *at = (const char *)(info->dlpi_addr + h->p_vaddr), *end = at + h->p_memsz;
        while (h->p_type == PT_NOTE && at + sizeof(ElfW(Nhdr)) <= end) {
            const ElfW(Nhdr) *note = (const void *)at;
            const char *name = at + sizeof *note, *text = name + padded(note->n_namesz);
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 && !memcmp(name, "GNU", 4)) {
                id->size = note->n_descsz < ID_MOST ? note->n_descsz : ID_MOST;
                memcpy(id->bytes, text, id->size);
                return 1;
            }
            at = text + padded(note->n_descsz);
        }
    }
    return 1;
}

enum plim_status comm_same_program(struct comm *comm, struct plim_error *err)
{
    struct build_id id = {.size = 0};
    dl_iterate_phdr(find_id, &id);
    return comm_same(comm, &id, sizeof id, "the program", err);
}
