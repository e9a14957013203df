/* rotation.cuh - a pair of a head's numbers, half of those that are rotated apart, turned by an angle. One definition, since every kernel that
 * turns must leave the same bits. */
#pragma once

#include "device/cuda/kernels.h"

ON_GPU void turn_pair(float &x1, float &x2, float c, float s)
{
    float y1 = fmaf(-x2, s, x1 * c), y2 = fmaf(x1, s, x2 * c);
    x1 = y1, x2 = y2;
}
