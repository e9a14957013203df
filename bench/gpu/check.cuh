/* check.cuh - a call of CUDA or of ours that must succeed, for the benchmarks here: says which one failed, and ends the program. */
#pragma once

#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        int code_ = (int)(call);                                                                             \
        if (code_) {                                                                                         \
            fprintf(stderr, "%s: %d, %s\n", #call, code_, cudaGetErrorString((cudaError_t)code_));           \
            exit(1);                                                                                         \
        }                                                                                                    \
    } while (0)
