// Real numbers as kernels compute with them and as they are stored, and how arrays of them are read.
//
// REAL is the type of arithmetic (float or double). STORED is the type of activations in memory: REAL or bfloat16.
// Parameters, statistics and sums are of type REAL.
#pragma once

#ifndef REAL
#define REAL float
#endif
#ifndef STORED
#define STORED REAL
#endif

struct bfloat16 {
    unsigned short bits;
};

typedef REAL real;
typedef STORED stored;
typedef long long Offset;  // in elements; divided in 32 bits, as hosts launch at most 2^32 elements

__device__ inline float widened(float x) { return x; }
__device__ inline double widened(double x) { return x; }
__device__ inline float widened(bfloat16 x) { return __uint_as_float((unsigned)x.bits << 16); }

// Numbers as they are stored: rounded to the nearest bfloat16, ties to even.
template <class T> struct Narrow {
    template <class X> static __device__ T of(X x) { return (T)x; }
};
template <> struct Narrow<bfloat16> {
    template <class X> static __device__ bfloat16 of(X x) {
        const float value = (float)x;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        // One instruction instead of seven, which would take longer than the memory access.
        unsigned short rounded;
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(rounded) : "f"(value));
        return {rounded};
#else
        const unsigned bits = __float_as_uint(value);
        const unsigned short rounded = (unsigned short)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
        return {value != value ? (unsigned short)0x7fc0 : rounded};
#endif
    }
};

template <class T> __device__ constexpr T largest_of(T a, T b) { return a > b ? a : b; }
template <class T> __device__ constexpr T least_of(T a, T b) { return a < b ? a : b; }

__device__ inline float root(float x) { return sqrtf(x); }
__device__ inline double root(double x) { return sqrt(x); }
__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }
__device__ inline float logarithm_of_one_and(float x) { return log1pf(x); }
__device__ inline double logarithm_of_one_and(double x) { return log1p(x); }
__device__ inline float less_one(float x) { return expm1f(x); }  // exp(x) - 1
__device__ inline double less_one(double x) { return expm1(x); }
__device__ inline float hyperbolic_tangent(float x) { return tanhf(x); }
__device__ inline double hyperbolic_tangent(double x) { return tanh(x); }
__device__ inline float error_integral(float x) { return erff(x); }
__device__ inline double error_integral(double x) { return erf(x); }
__device__ inline float error_beyond(float x) { return erfcf(x); }
__device__ inline double error_beyond(double x) { return erfc(x); }
__device__ inline float sine(float x) { return sinf(x); }
__device__ inline double sine(double x) { return sin(x); }
__device__ inline float cosine(float x) { return cosf(x); }
__device__ inline double cosine(double x) { return cos(x); }
__device__ inline float whole_below(float x) { return floorf(x); }
__device__ inline double whole_below(double x) { return floor(x); }
__device__ inline float nearest_whole(float x) { return rintf(x); }  // ties to even
__device__ inline double nearest_whole(double x) { return rint(x); }
__device__ inline float power_of(float x, float y) { return powf(x, y); }
__device__ inline double power_of(double x, double y) { return pow(x, y); }

__device__ inline float inverse_root(float x) { return rsqrtf(x); }
__device__ inline double inverse_root(double x) { return rsqrt(x); }
// The quotient of floats, to two units in the last place, in two instructions instead of ten.
__device__ inline float quick_ratio(float x, float y) { return __fdividef(x, y); }
__device__ inline double quick_ratio(double x, double y) { return x / y; }

// x^-beta; for Caffe's usual beta, two roots instead of a power.
template <class T> __device__ inline T negative_power(T x, T beta) {
    if (beta == (T)0.75) {
        const T r = inverse_root(x);
        return r * (r * inverse_root(r));
    }
    return power_of(x, -beta);
}

// Division of numbers below 2^31 by a number that the host knows, from which it made the other fields
// (kernels/launches.py): three instructions instead of twenty.
struct Divisor {
    unsigned by, multiplier, shift;
};
__device__ inline unsigned quotient(unsigned n, const Divisor &d) {
    return (__umulhi(n, d.multiplier) + n) >> d.shift;
}
// Returns the remainder; `n` becomes the quotient.
__device__ inline unsigned divided(unsigned &n, const Divisor &d) {
    const unsigned whole = quotient(n, d), rest = n - whole * d.by;
    n = whole;
    return rest;
}

// The number of elements in 16 bytes of activations, which a thread moves at once if it can.
constexpr int kWidth = 16 / sizeof(stored);

template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Pack {
    T values[N];
};

template <int N, class T> __device__ inline bool is_aligned(const T *p) {
    return (unsigned long long)p % alignof(Pack<T, N>) == 0;
}

template <int N, class T> __device__ inline Pack<T, N> read(const T *p) {
    return *reinterpret_cast<const Pack<T, N> *>(p);
}

template <int N, class T> __device__ inline void load(const T *p, real (&x)[N]) {
    Pack<T, N> pack = read<N>(p);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = (real)widened(pack.values[k]);
}

template <int N, class T> __device__ inline void store(T *p, const real (&x)[N]) {
    Pack<T, N> pack;
#pragma unroll
    for (int k = 0; k < N; ++k) pack.values[k] = Narrow<T>::of(x[k]);
    *reinterpret_cast<Pack<T, N> *>(p) = pack;
}

__device__ inline Offset thread_of_grid() { return (Offset)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ inline Offset threads_of_grid() { return (Offset)gridDim.x * blockDim.x; }

// Calls work.at<N>(i) for elements i to i + N: in packs if `whole` says that arrays are aligned, then one by one. (Not
// a generic lambda, because NVRTC takes those for host functions.)
template <class Work> __device__ inline void each(Offset count, bool whole, const Work &work) {
    Offset packed = whole ? count / kWidth * kWidth : 0;
    for (Offset i = thread_of_grid() * kWidth; i < packed; i += threads_of_grid() * kWidth)
        work.template at<kWidth>(i);
    for (Offset i = packed + thread_of_grid(); i < count; i += threads_of_grid()) work.template at<1>(i);
}
