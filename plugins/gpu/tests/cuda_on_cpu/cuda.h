// CUDA's built-ins, for g++. Kernels compiled behind this header run on a CPU, one block after the other, as blocks.cpp
// says.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__ __attribute__((used))  // and found by it
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static  // one block runs at a time; nothing else is static, so these are the library's .bss

struct uint3 {
    unsigned int x, y, z;
};
using dim3 = uint3;
extern uint3 threadIdx, blockIdx, blockDim, gridDim;

extern "C" void cuda_on_cpu_barrier(int of_block);
extern "C" void cuda_on_cpu_copy(void *to, const void *from, int bytes);  // zeros if `from` is null
extern "C" void cuda_on_cpu_end_group();
extern "C" void cuda_on_cpu_wait(int groups);
extern "C" int cuda_on_cpu_run(
    void (*body)(void *), void *closure, const unsigned *grid, const unsigned *block, int last_first);
extern "C" unsigned char cuda_on_cpu_lanes[1024][8];

inline void __syncthreads() { cuda_on_cpu_barrier(1); }
inline void __syncwarp() { cuda_on_cpu_barrier(0); }

inline unsigned cuda_on_cpu_thread() {
    return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

// All threads of the warp take part.
template <class T> inline T __shfl_xor_sync(unsigned, T value, int lanes) {
    static_assert(sizeof(T) <= 8, "a shuffle moves 8 bytes at most");
    const unsigned thread = cuda_on_cpu_thread();
    std::memcpy(cuda_on_cpu_lanes[thread], &value, sizeof(T));
    __syncwarp();
    T result;
    std::memcpy(&result, cuda_on_cpu_lanes[thread ^ lanes], sizeof(T));
    __syncwarp();
    return result;
}

// Copies that need not be done before they are waited for (asynchronous_copies.cuh).
#define ASYNCHRONOUS_COPIES
inline void copy_16_bytes(void *to, const void *from, bool there) { cuda_on_cpu_copy(to, there ? from : nullptr, 16); }
inline void end_group() { cuda_on_cpu_end_group(); }
template <int N> inline void wait_for_groups() { cuda_on_cpu_wait(N); }

inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}
inline float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}
inline float __fdividef(float x, float y) { return x / y; }
inline double cospi(double x) { return std::cos(x * 3.14159265358979323846); }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }

extern "C" char __bss_start[] __attribute__((visibility("hidden")));
extern "C" char _end[] __attribute__((visibility("hidden")));

namespace cuda_on_cpu {

template <class P> char kind() {
    if (std::is_pointer<P>::value) return 'p';
    if (std::is_floating_point<P>::value) return 'f';
    if (std::is_unsigned<P>::value) return 'u';
    return std::is_integral<P>::value ? 'i' : 's';
}

template <class... P> struct Kernel {
    void (*function)(P...);
    void **arguments;

    template <std::size_t... I> void call(std::index_sequence<I...>) {
        function(*static_cast<P *>(arguments[I])...);
    }
    static void body(void *closure) {
        static_cast<Kernel *>(closure)->call(std::index_sequence_for<P...>());
    }
};

template <class... P>
int launch(
    void (*function)(P...), const unsigned *grid, const unsigned *block, void **arguments, int last_first) {
    Kernel<P...> kernel{function, arguments};
    std::memset(__bss_start, 0xff, _end - __bss_start);  // NaN wherever nothing was written yet
    return cuda_on_cpu_run(Kernel<P...>::body, &kernel, grid, block, last_first);
}

template <class... P> int describe(void (*)(P...), char *kinds, int *sizes) {
    const char found[] = {kind<P>()..., 0};
    const int bytes[] = {(int)sizeof(P)..., 0};
    std::memcpy(kinds, found, sizeof...(P));
    std::memcpy(sizes, bytes, sizeof...(P) * sizeof(int));
    return sizeof...(P);
}

}  // namespace cuda_on_cpu

#define CUDA_ON_CPU(name)                                                                                    \
    extern "C" int run_##name(                                                                                 \
        const unsigned *grid, const unsigned *block, void **arguments, int last_first) {                       \
        return cuda_on_cpu::launch(name, grid, block, arguments, last_first);                                  \
    }                                                                                                          \
    extern "C" int describe_##name(char *kinds, int *sizes) {                                                  \
        return cuda_on_cpu::describe(name, kinds, sizes);                                                      \
    }
