// Labels, of any numeric type, as classes.
#pragma once
#include "numbers.cuh"

#ifndef LABEL
#define LABEL real
#endif
typedef LABEL label_type;

// A label's class; -1 if it is to be ignored, -2 if it is not a class.
__device__ inline int class_of(label_type given, int classes, int ignores, double ignored) {
    const double value = (double)given;
    if (ignores && value == ignored) return -1;
    const bool whole = value >= 0 && value < classes && value == (double)(int)value;
    return whole ? (int)value : -2;
}

__device__ inline Offset row_start(int row, int classes, int inner) {
    return (Offset)(row / inner) * classes * inner + row % inner;
}

__device__ inline real not_a_number() { return (real)__uint_as_float(0x7fc00000u); }
