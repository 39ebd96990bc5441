// Means over the labels that workers who share a batch do not ignore.
#include "labels.cuh"
#include "reductions.cuh"

// The number of labels that, without their fractions, are not `ignored`; by one block.
extern "C" __global__ void count_labels(const label_type *label, double *labels, double ignored, Offset count) {
    double found = 0;
    for (Offset i = threadIdx.x; i < count; i += blockDim.x) found += trunc((double)label[i]) != ignored;
    found = block_sum(found);
    if (threadIdx.x == 0) *labels = found;
}

extern "C" __global__ void over_divisor(const real *x, const double *divisor, real *y, double share, Offset count) {
    const double over = share * largest_of(*divisor, 1.0);
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) y[i] = (real)((double)x[i] / over);
}
