/* cudnn_api.h - the part of cuDNN 9's backend interface we call, found at run time.
 *
 * Building does not need cuDNN: the library is opened with dlopen, and the numbers below are its binary interface, unchanged
 * in every release since 9.0 (bench/gpu/cudnn_probe.c compares them with NVIDIA's header if there is one). Without cuDNN,
 * cudnn_api_open returns PLIM_UNSUPPORTED, and the caller does without it.
 *
 *     struct cudnn_api api;
 *     if (cudnn_api_open(&api, &err) == PLIM_OK) {
 *         void *desc;
 *         int rc = api.create(DNN_DESC_TENSOR, &desc);
 *         ...
 *         cudnn_api_close(&api);
 *     }
 */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "base/status.h"

/* Kinds of descriptors. */
enum dnn_desc {
    DNN_DESC_POINTWISE = 0,
    DNN_DESC_ENGINE = 2,
    DNN_DESC_ENGINECFG = 3,
    DNN_DESC_HEURISTIC = 4,
    DNN_DESC_PLAN = 5,
    DNN_DESC_OP_POINTWISE = 13,
    DNN_DESC_GRAPH = 15,
    DNN_DESC_VARIANT_PACK = 16,
    DNN_DESC_TENSOR = 17,
    DNN_DESC_MATMUL = 18,
    DNN_DESC_OP_MATMUL = 19,
    DNN_DESC_REDUCTION = 21,
    DNN_DESC_OP_REDUCTION = 22,
    DNN_DESC_OP_RESHAPE = 31,
};

/* Types of attribute values. */
enum dnn_value {
    DNN_VALUE_HANDLE = 0,
    DNN_VALUE_DATA_TYPE = 1,
    DNN_VALUE_BOOLEAN = 2,
    DNN_VALUE_INT64 = 3,
    DNN_VALUE_POINTER = 6,
    DNN_VALUE_HEUR_MODE = 8,
    DNN_VALUE_NUMERICAL_NOTE = 11,
    DNN_VALUE_POINTWISE_MODE = 14,
    DNN_VALUE_DESCRIPTOR = 15,
    DNN_VALUE_REDUCTION_MODE = 18,
};

/* Attributes. */
enum dnn_attr {
    DNN_POINTWISE_MODE = 0,
    DNN_POINTWISE_PRECISION = 1,
    DNN_POINTWISE_AXIS = 9,
    DNN_HEURISTIC_MODE = 200,
    DNN_HEURISTIC_GRAPH = 201,
    DNN_HEURISTIC_RESULTS = 202,
    DNN_ENGINECFG_ENGINE = 300,
    DNN_PLAN_HANDLE = 400,
    DNN_PLAN_CONFIG = 401,
    DNN_PLAN_WORKSPACE = 402,
    DNN_OP_POINTWISE_DESC = 750,
    DNN_OP_POINTWISE_X = 751,
    DNN_OP_POINTWISE_B = 752,
    DNN_OP_POINTWISE_Y = 753,
    DNN_OP_POINTWISE_T = 758,
    DNN_GRAPH_HANDLE = 800,
    DNN_GRAPH_OPS = 801,
    DNN_TENSOR_ALIGNMENT = 900,
    DNN_TENSOR_TYPE = 901,
    DNN_TENSOR_DIMS = 902,
    DNN_TENSOR_STRIDES = 903,
    DNN_TENSOR_ID = 906,
    DNN_TENSOR_VIRTUAL = 907,
    DNN_TENSOR_BY_VALUE = 908,
    DNN_PACK_IDS = 1000,
    DNN_PACK_POINTERS = 1001,
    DNN_PACK_WORKSPACE = 1003,
    DNN_ENGINE_INDEX = 1301,
    DNN_ENGINE_NUMERICAL_NOTE = 1303,
    DNN_MATMUL_PRECISION = 1500,
    DNN_OP_MATMUL_A = 1520,
    DNN_OP_MATMUL_B = 1521,
    DNN_OP_MATMUL_C = 1522,
    DNN_OP_MATMUL_DESC = 1523,
    DNN_REDUCTION_MODE = 1600,
    DNN_REDUCTION_PRECISION = 1601,
    DNN_OP_REDUCTION_X = 1610,
    DNN_OP_REDUCTION_Y = 1611,
    DNN_OP_REDUCTION_DESC = 1612,
    DNN_OP_RESHAPE_X = 2200,
    DNN_OP_RESHAPE_Y = 2201,
};

enum dnn_type { DNN_F32 = 0, DNN_F16 = 2, DNN_I32 = 4, DNN_BF16 = 9, DNN_BOOL = 11 };

enum dnn_pointwise {
    DNN_ADD = 0,
    DNN_MUL = 1,
    DNN_DIV = 6,
    DNN_SUB = 9,
    DNN_EXP = 13,
    DNN_LOG = 15,
    DNN_IDENTITY = 21,
    DNN_CMP_GT = 302,
    DNN_CMP_GE = 303,
    DNN_GEN_INDEX = 501,
    DNN_SELECT = 601,
};

enum dnn_reduce { DNN_REDUCE_ADD = 0, DNN_REDUCE_MAX = 3 };
enum dnn_heuristic { DNN_HEUR_FALLBACK = 2, DNN_HEUR_A = 3 };
enum { DNN_NOTE_NONDETERMINISTIC = 4, DNN_NOTE_COUNT = 10 };

/* Functions return cudnnStatus_t: 0 is success. Descriptors and handles are opaque pointers. */
struct cudnn_api {
    void *library;
    size_t (*version)(void); /* 91900 for 9.19.0 */
    int (*handle_create)(void **handle);
    int (*handle_destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*create)(int kind, void **desc);
    int (*destroy)(void *desc);
    int (*finalize)(void *desc);
    int (*set)(void *desc, int attr, int type, int64_t count, const void *values);
    int (*get)(void *desc, int attr, int type, int64_t room, int64_t *count, void *values);
    int (*execute)(void *handle, void *plan, void *pack);
    const char *(*status_text)(int status);
    void (*last_error)(char *text, size_t size); /* NULL: the release does not have it */
};

/* Opens libcudnn.so.9 and fills the table. PLIM_UNSUPPORTED: not installed, or not cuDNN 9. */
enum plim_status cudnn_api_open(struct cudnn_api *api, struct plim_error *err);
void cudnn_api_close(struct cudnn_api *api);
