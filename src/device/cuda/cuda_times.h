/* cuda_times.h - when ops ran on their streams, by events that the card records as they pass.
 *
 *     cuda_times_open(ops, stream, &times);
 *     cuda_times_name(times, op);                        // what is queued next is of this op; -1: of none
 *     cuda_times_start(times, stream, capturing);        // on the stream that it runs on
 *     ... kernels or a copy ...
 *     cuda_times_end(times, stream, capturing);
 *     cuda_times_read(times, spans);                     // when the card has done it all
 *     cuda_times_close(times);
 *
 * On the compute stream an op without anything to wait for begins when the one before it ends, and needs one event. Nothing waits for
 * an event, so lanes overlap as they do without. Every function accepts NULL times and does nothing. Codes are cudaError_t as int.
 */
#pragma once

#include "base/clock.h"
#include "device/cuda/cuda_api.h"

struct cuda_times;

int cuda_times_open(int ops, cudaStream_t compute, struct cuda_times **out);
void cuda_times_close(struct cuda_times *t);
void cuda_times_name(struct cuda_times *t, int op);
/* The compute stream has waited for another one: the next op does not begin where the last one ended. */
void cuda_times_waited(struct cuda_times *t);
int cuda_times_start(struct cuda_times *t, cudaStream_t stream, bool capturing);
int cuda_times_end(struct cuda_times *t, cudaStream_t stream, bool capturing);
/* Sets the spans of the ops that ran. */
void cuda_times_read(struct cuda_times *t, struct clock_span *spans);
