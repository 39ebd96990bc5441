// Copies from global to shared memory that proceed while the thread continues, in groups. Before Ampere they are done
// at once.
#ifndef ASYNCHRONOUS_COPIES  // defined by an emulation, whose functions make the most of the freedom in order
#define ASYNCHRONOUS_COPIES

// Copies 16 bytes, or zeros if not `there`; `from` must be readable in any case.
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

// end_group makes a group of the copies that this thread has requested so far. wait_for_groups waits until all of its
// groups but the last N have arrived.
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
