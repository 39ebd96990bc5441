// Convolutions in TF32, and their gradients, by tensor cores. They serve where a library's engines with a fixed order
// of summation are slow: gradients of filters, and images with few channels.
#include "implicit_gemm_tiles.cuh"
#include "tensor_cores.cuh"

// Numbers go to tensor cores as they are, and are truncated to TF32 there. What an instruction reads from consecutive
// registers is loaded as such, because moving it there takes longer than loading it.
struct Cut {
    static constexpr int kColumns = 64, kStages = 3, kTogether = 2;
    static constexpr bool kTurned = true;
    // The products of 16 x 8 that make up a warp's tile.
    static constexpr int kTall = kWarpRows / 16, kWide = kColumns / 8;

    static __device__ int down(int lane) { return lane / 4; }
    static __device__ int across(int lane) { return lane % 4; }

    // total += a b, for eight terms and the j-th eight columns.
    static __device__ void add(
        const unsigned (&a)[kTall][4], const unsigned (&b)[2], int j, float (&total)[8][kColumns / 4]) {
#pragma unroll
        for (int i = 0; i < kTall; ++i) {
            float sum[4];
#pragma unroll
            for (int k = 0; k < 4; ++k) sum[k] = total[i * 2 + k / 2][j * 2 + k % 2];
            multiply_tf32(sum, a[i], b, sum);
#pragma unroll
            for (int k = 0; k < 4; ++k) total[i * 2 + k / 2][j * 2 + k % 2] = sum[k];
        }
    }

    template <class Place>
    static __device__ void of_lines(
        const Unit *left, const Unit *right, const Place &here, float (&total)[8][kColumns / 4]) {
        // The row of one of four loads whose address this lane gives: for a, 16 rows and two units; for b, eight rows
        // and all four units. The rows of b are ordered so that a lane's columns are neighbours.
        const int lane = threadIdx.x % 32, load = lane / 8, row = lane % 8;
        const Unit *of_b = right + turned_right(row / 2 * 4 + row % 2, load);
        unsigned b[kWide][4];
#pragma unroll
        for (int j = 0; j < kWide; ++j) load_rows(b[j], of_b + (j / 2 * 16 + j % 2 * 2) * kUnits);
#pragma unroll
        for (int step = 0; step < 2; ++step) {
            const Unit *of_a = left + turned_left(load % 2 * 8 + row, step * 2 + load / 2);
            unsigned a[kTall][4];
#pragma unroll
            for (int i = 0; i < kTall; ++i) load_rows(a[i], of_a + i * 16 * kUnits);
#pragma unroll
            for (int j = 0; j < kWide; ++j) {
                const unsigned pair[2] = {b[j][step * 2], b[j][step * 2 + 1]};
                add(a, pair, j, total);
            }
        }
    }

    template <int kLeft, int kRight, class Place>
    static __device__ void of_terms(
        const Unit *left, const Unit *right, const Place &here, float (&total)[8][kColumns / 4]) {
        // Two of each eight units, in their permutation.
        const float *of_a[4], *of_b[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) {
            const int unit = (k ^ here.across) * 2 + here.down / 4;
            of_a[k] = reinterpret_cast<const float *>(left + here.across * kLeft + unit) + here.down % 4;
            of_b[k] = reinterpret_cast<const float *>(right + here.across * kRight + unit) + here.down % 4;
        }
#pragma unroll
        for (int deep = 0; deep < kDepth; deep += 8) {
            unsigned a[kTall][4];
#pragma unroll
            for (int i = 0; i < kTall; ++i)
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    a[i][k] = __float_as_uint(of_a[i % 2 * 2 + k % 2][((deep + k / 2 * 4) * kLeft + i / 2 * 8) * 4]);
#pragma unroll
            for (int j = 0; j < kWide; ++j) {
                unsigned b[2];
#pragma unroll
                for (int k = 0; k < 2; ++k)
                    b[k] = __float_as_uint(of_b[j % 4][((deep + k * 4) * kRight + j / 4 * 8) * 4]);
                add(a, b, j, total);
            }
        }
    }

    static __device__ int row_of_terms(int i, int down) { return down + i * 8; }
    static __device__ int column_of_terms(int j, int across) { return across * 2 + j * 8; }
};

TILES(Cut, tf32_, 2, 2, 2)
TILES(Cut, tf32_, 2, 1, 4)
TILES(Cut, tf32_, 1, 2, 4)
