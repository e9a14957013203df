/* mhd_api.c - a table of names, looked up once. */
#include "net/mhd_api.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    size_t slot;
} symbols[] = {
    {"MHD_start_daemon", offsetof(struct mhd_api, start)},
    {"MHD_stop_daemon", offsetof(struct mhd_api, stop)},
    {"MHD_quiesce_daemon", offsetof(struct mhd_api, quiesce)},
    {"MHD_suspend_connection", offsetof(struct mhd_api, suspend)},
    {"MHD_resume_connection", offsetof(struct mhd_api, resume)},
    {"MHD_get_connection_info", offsetof(struct mhd_api, connection_info)},
    {"MHD_lookup_connection_value", offsetof(struct mhd_api, lookup)},
    {"MHD_get_connection_values_n", offsetof(struct mhd_api, values)},
    {"MHD_create_response_from_callback", offsetof(struct mhd_api, response_from_callback)},
    {"MHD_create_response_from_buffer", offsetof(struct mhd_api, response_from_buffer)},
    {"MHD_add_response_header", offsetof(struct mhd_api, add_header)},
    {"MHD_queue_response", offsetof(struct mhd_api, queue)},
    {"MHD_destroy_response", offsetof(struct mhd_api, destroy_response)},
};

static const char *const names[] = {"libmicrohttpd.so.12", "libmicrohttpd.so"};

enum plim_status mhd_api_open(struct mhd_api *api, struct plim_error *err)
{
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return plim_fail(err, PLIM_UNSUPPORTED,
                         "cannot serve without libmicrohttpd: %s; install it (Debian: libmicrohttpd12)",
                         dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        /* Through memcpy: C has no cast from an object pointer to a function pointer. */
        void *address = dlsym(library, symbols[i].name);
        memcpy((char *)api + symbols[i].slot, &address, sizeof address);
        if (!address)
            return plim_fail(err, PLIM_UNSUPPORTED, "libmicrohttpd has no %s; install a newer one",
                             symbols[i].name);
    }
    return PLIM_OK;
}
