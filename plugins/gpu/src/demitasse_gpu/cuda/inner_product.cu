// The matrix products of an inner product's three passes.
#include "products.cuh"

#ifndef LEFT
#define LEFT stored
#endif
#ifndef RIGHT
#define RIGHT real
#endif
#ifndef RESULT
#define RESULT stored
#endif
typedef LEFT left_type;
typedef RIGHT right_type;
typedef RESULT result_type;

struct Matrices {
    long long rows, columns, depth;
    long long left_row, left_step, right_step, right_column;  // distances in memory along m, k and k, n
};

// result = left right + bias, with negative results set to 0 if `rectified`; result is row-major.
extern "C" __global__ void multiply(
    Matrices s, const left_type *left, const right_type *right, const real *bias, result_type *result,
    int rectified) {
    product(
        s.rows, s.columns, 0, s.depth, s.left_step == 1, s.right_step == 1,
        [&](Offset m, Offset k) { return (real)widened(left[m * s.left_row + k * s.left_step]); },
        [&](Offset k, Offset n) { return (real)widened(right[k * s.right_step + n * s.right_column]); },
        [&](Offset m, Offset n, real total) {
            if (bias) total += bias[n];
            if (rectified) total = total < 0 ? 0 : total;
            result[m * s.columns + n] = Narrow<result_type>::of(total);
        });
}
