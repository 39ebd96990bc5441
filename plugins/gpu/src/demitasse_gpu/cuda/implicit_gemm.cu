// Convolutions in float32, and their gradients, for devices whose tensor cores do not support TF32.
#include "implicit_gemm_tiles.cuh"

// One product after the other. Neighbouring lanes share rows, so that 16 bytes of two lanes are read at once.
struct Scalar {
    static constexpr int kColumns = 32, kStages = 2, kTogether = 4;
    static constexpr bool kTurned = false;

    static __device__ int down(int lane) { return lane >> 1 & 7; }
    static __device__ int across(int lane) { return (lane & 1) | lane >> 4 << 1; }

    template <class Place>
    static __device__ void of_lines(const Unit *left, const Unit *right, const Place &here, float (&total)[8][8]) {
        left += here.down * kUnits, right += here.across * 4 * kUnits;
#pragma unroll
        for (int k = 0; k < kUnits; ++k) {
            Unit a[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) a[i] = left[i * 8 * kUnits + (k ^ here.down >> 1)];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                const Unit b = right[(j % 4 + j / 4 * 16) * kUnits + (k ^ here.across)];
#pragma unroll
                for (int e = 0; e < 4; ++e)
#pragma unroll
                    for (int i = 0; i < 8; ++i) total[i][j] += a[i].values[e] * b.values[e];
            }
        }
    }

    template <int kLeft, int kRight, class Place>
    static __device__ void of_terms(const Unit *left, const Unit *right, const Place &here, float (&total)[8][8]) {
        left += here.down, right += here.across;
#pragma unroll
        for (int k = 0; k < kDepth; ++k) {
            const Unit a[2] = {left[k * kLeft], left[k * kLeft + 8]};
            const Unit b[2] = {right[k * kRight], right[k * kRight + 4]};
#pragma unroll
            for (int i = 0; i < 8; ++i)
#pragma unroll
                for (int j = 0; j < 8; ++j) total[i][j] += a[i / 4].values[i % 4] * b[j / 4].values[j % 4];
        }
    }

    static __device__ int row_of_terms(int i, int down) { return down * 4 + i / 4 * 32 + i % 4; }
    static __device__ int column_of_terms(int j, int across) { return across * 4 + j * 16; }
};

TILES(Scalar, , 2, 4, 2)
TILES(Scalar, , 2, 2, 3)
TILES(Scalar, , 1, 4, 3)
TILES(Scalar, , 1, 2, 6)
