/* curl_api.c - a table of names, looked up once. */
#include "net/curl_api.h"

#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

static const struct {
    const char *name;
    size_t slot;
} symbols[] = {
    {"curl_global_init", offsetof(struct curl_api, global_init)},
    {"curl_easy_init", offsetof(struct curl_api, init)},
    {"curl_easy_setopt", offsetof(struct curl_api, setopt)},
    {"curl_easy_perform", offsetof(struct curl_api, perform)},
    {"curl_easy_getinfo", offsetof(struct curl_api, getinfo)},
    {"curl_easy_strerror", offsetof(struct curl_api, strerror)},
    {"curl_easy_cleanup", offsetof(struct curl_api, cleanup)},
    {"curl_slist_append", offsetof(struct curl_api, slist_append)},
    {"curl_slist_free_all", offsetof(struct curl_api, slist_free)},
};

/* Distributions have the same interface over several TLS libraries. */
static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", "libcurl.so"};

enum plim_status curl_api_open(struct curl_api *api, struct plim_error *err)
{
    void *library = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !library; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return plim_fail(err, PLIM_UNSUPPORTED, "sending needs libcurl; install it (Debian: libcurl4)");
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        /* Through memcpy: C has no cast from an object pointer to a function pointer. */
        void *address = dlsym(library, symbols[i].name);
        memcpy((char *)api + symbols[i].slot, &address, sizeof address);
        if (!address)
            return plim_fail(err, PLIM_UNSUPPORTED, "libcurl has no %s; install a newer one",
                             symbols[i].name);
    }
    if (api->global_init(CURL_GLOBAL_DEFAULT))
        return plim_fail(err, PLIM_UNSUPPORTED, "libcurl could not be started; install a newer one");
    return PLIM_OK;
}
