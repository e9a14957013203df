/* cudnn_api.c - a table of names, looked up once. */
#include "device/cuda/cudnn_api.h"
#include <dlfcn.h>
#include <string.h>

static const struct {
    const char *name;
    size_t slot;
    int needed;
} SYMBOLS[] = {
    {"cudnnGetVersion", offsetof(struct cudnn_api, version), 1},
    {"cudnnCreate", offsetof(struct cudnn_api, handle_create), 1},
    {"cudnnDestroy", offsetof(struct cudnn_api, handle_destroy), 1},
    {"cudnnSetStream", offsetof(struct cudnn_api, set_stream), 1},
    {"cudnnBackendCreateDescriptor", offsetof(struct cudnn_api, create), 1},
    {"cudnnBackendDestroyDescriptor", offsetof(struct cudnn_api, destroy), 1},
    {"cudnnBackendFinalize", offsetof(struct cudnn_api, finalize), 1},
    {"cudnnBackendSetAttribute", offsetof(struct cudnn_api, set), 1},
    {"cudnnBackendGetAttribute", offsetof(struct cudnn_api, get), 1},
    {"cudnnBackendExecute", offsetof(struct cudnn_api, execute), 1},
    {"cudnnGetErrorString", offsetof(struct cudnn_api, status_text), 1},
    {"cudnnGetLastErrorString", offsetof(struct cudnn_api, last_error), 0},
};

enum plim_status cudnn_api_open(struct cudnn_api *api, struct plim_error *err)
{
    memset(api, 0, sizeof *api);
    api->library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
    if (!api->library) return plim_fail(err, PLIM_UNSUPPORTED, "cuDNN 9 is not installed: %s", dlerror());
    for (size_t i = 0; i < sizeof SYMBOLS / sizeof *SYMBOLS; i++) {
        /* Through memcpy: C has no cast from an object pointer to a function pointer. */
        void *address = dlsym(api->library, SYMBOLS[i].name);
        memcpy((char *)api + SYMBOLS[i].slot, &address, sizeof address);
        if (address || !SYMBOLS[i].needed) continue;
        cudnn_api_close(api);
        return plim_fail(err, PLIM_UNSUPPORTED, "libcudnn.so.9 has no %s; install a newer cuDNN 9",
                         SYMBOLS[i].name);
    }
    return PLIM_OK;
}

void cudnn_api_close(struct cudnn_api *api)
{
    if (api->library) dlclose(api->library);
    memset(api, 0, sizeof *api);
}
