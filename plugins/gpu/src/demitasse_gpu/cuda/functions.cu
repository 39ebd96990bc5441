// Functions of one element and their gradients, and products and maxima of several arrays in the same layout. p, q and
// r are the function's attributes, in the order of kernels/functions.py.
#include "elementwise.cuh"

#define FUNCTION(name, expression)                                                                      \
    extern "C" __global__ void name(const stored *x, stored *y, real p, real q, real r, Offset count) { \
        map(x, y, count, [&](real a) -> real { return expression; });                                   \
    }
// b is x or y, whichever the gradient reads.
#define GRADIENT(name, expression)                                                                      \
    extern "C" __global__ void name##_backward(                                                         \
        const stored *dy, const stored *x, stored *dx, real p, real q, real r, Offset count) {          \
        map(dy, x, dx, count, [&](real a, real b) -> real { return expression; });                      \
    }

// Only exp of numbers below 0 is computed, which stays in range.
__device__ inline real logistic(real a) {
    const real small = exponential(a > 0 ? -a : a);
    return (a > 0 ? 1 : small) / (1 + small);
}

// Clamps to the range from 0 to 1.
__device__ inline real within(real a) { return a < 0 ? 0 : a > 1 ? 1 : a; }

// The cumulative distribution function of the normal distribution.
__device__ inline real normal(real a) { return (real)0.5 * error_beyond((real)-0.70710678118654752 * a); }

// x^y; for the most frequent y exactly, as a product or a root.
__device__ inline real raised(real x, real y) {
    if (y == 0) return 1;
    if (y == 1) return x;
    if (y == 2) return x * x;
    if (y == -1) return 1 / x;
    if (y == (real)0.5 && x >= 0) return root(x);
    return power_of(x, y);
}

FUNCTION(leaky_relu, a > 0 ? a : p * a)
FUNCTION(absolute, a < 0 ? -a : a)
GRADIENT(absolute, b > 0 ? a : b < 0 ? -a : a * b)
FUNCTION(softplus, (a > 0 ? a : 0) + logarithm_of_one_and(exponential(a > 0 ? -a : a)))
GRADIENT(softplus, a * logistic(b))
FUNCTION(clip, a < p ? p : a > q ? q : a)
GRADIENT(clip, b >= p && b <= q ? a : 0)
FUNCTION(elu, a > 0 ? a : p * less_one(a))
GRADIENT(elu, b > 0 ? a : a * (b + p))
FUNCTION(exponential_of, exponential(p * a + q))
GRADIENT(exponential_of, a * b * p)
FUNCTION(logarithm_of, p * logarithm(q * a + r))
GRADIENT(logarithm_of, a * p * q / (q * b + r))
// If the scale or the power is 0, x does not matter, whatever it is.
FUNCTION(power, q == 0 ? raised(r, p) : raised(q * a + r, p))
GRADIENT(power, p == 0 || q == 0 ? 0 : a * p * q * raised(q * b + r, p - 1))
FUNCTION(sigmoid, logistic(a))
GRADIENT(sigmoid, a * b * (1 - b))
FUNCTION(swish, a * logistic(p * a))
GRADIENT(swish, a * (logistic(p * b) + p * b * logistic(p * b) * (1 - logistic(p * b))))
FUNCTION(tanh_of, hyperbolic_tangent(a))
GRADIENT(tanh_of, a * (1 - b * b))
FUNCTION(greater, a > p ? 1 : 0)
FUNCTION(floor_of, whole_below(a))
FUNCTION(round_of, nearest_whole(a))
FUNCTION(hard_sigmoid, within(p * a + q))
GRADIENT(hard_sigmoid, p * b + q > 0 && p * b + q < 1 ? a * p : 0)
FUNCTION(hard_swish, a * within(p * a + q))
GRADIENT(hard_swish, a * (within(p * b + q) + (p * b + q > 0 && p * b + q < 1 ? p * b : 0)))
FUNCTION(error_function, error_integral(a))
GRADIENT(error_function, a * (real)1.1283791670955126 * exponential(-b * b))  // 2 / sqrt(pi)
FUNCTION(gelu, a * normal(a))
GRADIENT(gelu, a * (normal(b) + b * (real)0.39894228040143268 * exponential(-b * b / 2)))
FUNCTION(sine_of, sine(p * a + q))
GRADIENT(sine_of, a * p * cosine(p * b + q))

extern "C" __global__ void times(const stored *x, const stored *y, stored *z, Offset count) {
    map(x, y, z, count, [&](real a, real b) { return a * b; });
}

extern "C" __global__ void over(const stored *x, const stored *y, stored *z, Offset count) {
    map(x, y, z, count, [&](real a, real b) { return a / b; });
}

// y becomes the maximum of y and x, and argmax the number of x where that is x. Of equal inputs the second wins over
// the first, and both win over later ones.
extern "C" __global__ void larger(const stored *x, stored *y, int *argmax, int number, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        const real a = (real)widened(x[i]), b = (real)widened(y[i]);
        const bool takes = number == 1 ? !(b > a) : a > b;
        if (takes) y[i] = x[i];
        if (argmax) argmax[i] = takes ? number : number <= 1 ? 0 : argmax[i];
    }
}

extern "C" __global__ void where_largest(
    const stored *dy, const int *argmax, stored *dx, int number, Offset count) {
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid())
        dx[i] = Narrow<stored>::of(argmax[i] == number ? (real)widened(dy[i]) : 0);
}
