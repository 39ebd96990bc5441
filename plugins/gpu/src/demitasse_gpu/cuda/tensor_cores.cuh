// What tensor cores multiply: TF32 numbers, which have float32's exponent and a mantissa of 10 bits.
#pragma once

// d = a b + c, for 16 x 8 and 8 x 8 numbers. A warp's lanes hold four numbers each of a, c and d, and two of b, as
// mma.m16n8k8 requires. With g = lane / 4 and t = lane % 4, those of a are at (g, t), (g + 8, t), (g, t + 4) and (g +
// 8, t + 4), those of b at (t, g) and (t + 4, g), those of c and d at (g, 2 t), (g, 2 t + 1), (g + 8, 2 t) and (g + 8,
// 2 t + 1). The bits of float32 that TF32 does not have are ignored. Without such cores (before Ampere), lanes exchange
// their numbers, in blocks of at most 256 threads.
__device__ inline void multiply_tf32(
    float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2], const float (&c)[4]) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
        : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]));
#else
    __shared__ float told[8][32][6];
    float(*of_warp)[6] = told[threadIdx.x / 32];
    const int lane = threadIdx.x % 32, line = lane / 4, pair = lane % 4 * 2;
    for (int k = 0; k < 6; ++k) of_warp[lane][k] = __uint_as_float((k < 4 ? a[k] : b[k - 4]) & ~0x1fffu);
    __syncwarp();
    for (int k = 0; k < 4; ++k) {
        d[k] = c[k];
        for (int term = 0; term < 8; ++term)
            d[k] += of_warp[line * 4 + term % 4][term / 4 * 2 + k / 2] * of_warp[(pair + k % 2) * 4 + term % 4][4 + term / 4];
    }
    __syncwarp();
#endif
}

// Each lane gives the address of one of four times eight rows of 16 bytes, and gets, of each four, word lane % 4 of row
// lane / 4.
__device__ inline void load_rows(unsigned (&words)[4], const void *row) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750
    unsigned place;
    asm("{ .reg .u64 p; cvta.to.shared.u64 p, %1; cvt.u32.u64 %0, p; }" : "=r"(place) : "l"(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
                 : "r"(place)
                 : "memory");
#else
    __shared__ const void *told[8][32];
    const void **of_warp = told[threadIdx.x / 32];
    const int lane = threadIdx.x % 32;
    of_warp[lane] = row;
    __syncwarp();
    for (int k = 0; k < 4; ++k) words[k] = static_cast<const unsigned *>(of_warp[k * 8 + lane / 4])[lane % 4];
    __syncwarp();
#endif
}
