// Copies from memory to shared memory that go on while the thread does, in groups. Before Ampere they are there at once.
#ifndef ASYNCHRONOUS_COPIES  // which who emulates a device has defined, with functions that make most of that freedom
#define ASYNCHRONOUS_COPIES

// 16 bytes, zeros where they are not `there`; `from` may be read all the same.
__device__ inline void copy_16_bytes(void *to, const void *from, bool there) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    unsigned place;
    asm("{ .reg .u64 p; cvta.to.shared.u64 p, %1; cvt.u32.u64 %0, p; }" : "=r"(place) : "l"(to));
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(place), "l"(from), "r"(bytes) : "memory");
#else
    const uint4 none = {};
    *static_cast<uint4 *>(to) = there ? *static_cast<const uint4 *>(from) : none;
#endif
}

// What this thread has asked to be copied until now is a group; of its groups all but the last N are there.
__device__ inline void end_group() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
template <int N> __device__ inline void wait_for_groups() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
#endif
}

#endif
