// Parts, copies and rows of tensors. Sums are made in the order of memory, by one thread per result, so that the bits
// never change.
#include "numbers.cuh"

#ifndef INDEX
#define INDEX real
#endif
typedef INDEX index_type;

struct Box {
    int rank;
    unsigned extents[8];
    long long steps[8];
};

// dx[place] = dy[i]: the extents of dy, and the distances of its elements in dx, which is 0 elsewhere.
extern "C" __global__ void into_box(const real *dy, real *dx, Box box, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        unsigned rest = (unsigned)i;
        Offset place = 0;
        // Unrolled, because an array indexed by a variable would be copied to local memory.
#pragma unroll
        for (int d = 7; d >= 0; --d) {
            if (d >= box.rank) continue;
            place += rest % box.extents[d] * box.steps[d];
            rest /= box.extents[d];
        }
        dx[place] = dy[i];
    }
}

// dx is outer x width, dy outer x tiles x width.
extern "C" __global__ void tile_backward(const real *dy, real *dx, int tiles, Offset width, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const real *from = dy + i / width * tiles * width + i % width;
        real total = 0;
        for (int t = 0; t < tiles; ++t) total += from[t * width];
        dx[i] = total;
    }
}

// Whether an index is one of `rows` rows.
__device__ inline bool is_row(index_type given, Offset rows) {
    const double value = (double)given;
    return value >= 0 && value < (double)rows && value == (double)(Offset)value;
}

// Rows of `width` elements; NaN for a row that does not exist.
extern "C" __global__ void gather(
    const real *x, const index_type *places, real *y, Offset rows, Offset width, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const index_type place = places[i / width];
        const bool there = is_row(place, rows);
        y[i] = there ? x[(Offset)place * width + i % width] : (real)__uint_as_float(0x7fc00000u);
    }
}

extern "C" __global__ void gather_backward(
    const real *dy, const index_type *places, real *dx, Offset given, Offset width, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const Offset row = i / width, column = i % width;
        real total = 0;
        for (Offset k = 0; k < given; ++k)
            if ((double)places[k] == (double)row) total += dy[k * width + column];
        dx[i] = total;
    }
}
