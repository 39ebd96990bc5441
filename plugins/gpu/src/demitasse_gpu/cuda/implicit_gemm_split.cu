// Convolutions in float32, and their gradients, by tensor cores, which multiply TF32: each number is the sum of two
// TF32 numbers, its upper bits and the remainder, and a product is the sum of three. The omitted term is below
// float32's own rounding. Tensor cores truncate their sums, so that long ones drift towards zero. Here they sum eight
// terms, and these sums are added up in ordinary float32, as by Ootomo and Yokota (2022).
#include "implicit_gemm_tiles.cuh"
#include "tensor_cores.cuh"

// The nearest TF32 numbers, and the remainders. (The conversion instruction takes four others, to preserve infinities;
// here infinities become NaN.)
template <int N> struct Halves {
    unsigned upper[N], lower[N];

    __device__ void set(int k, float x) {
        upper[k] = __float_as_uint(x) + 0x1000u;
        lower[k] = __float_as_uint(x - __uint_as_float(upper[k] & ~0x1fffu));
    }
};

struct Split {
    static constexpr int kColumns = 32, kStages = 2, kTogether = 4;
    static constexpr bool kTurned = true;
    // The products of 16 x 8 that make up a warp's tile.
    static constexpr int kTall = kWarpRows / 16, kWide = kColumns / 8;

    static __device__ int down(int lane) { return lane / 4; }
    static __device__ int across(int lane) { return lane % 4; }

    // total += a b, for eight terms and columns. A lane's two columns are `first`, and the one kApart behind it.
    template <int kApart>
    static __device__ void add(const Halves<4> (&a)[kTall], const Halves<2> &b, int first, float (&total)[8][8]) {
        const float zeros[4] = {};
        float sum[kTall][4];
#pragma unroll
        for (int i = 0; i < kTall; ++i) multiply_tf32(sum[i], a[i].lower, b.upper, zeros);
#pragma unroll
        for (int i = 0; i < kTall; ++i) multiply_tf32(sum[i], a[i].upper, b.lower, sum[i]);
#pragma unroll
        for (int i = 0; i < kTall; ++i) multiply_tf32(sum[i], a[i].upper, b.upper, sum[i]);
#pragma unroll
        for (int i = 0; i < kTall; ++i)
#pragma unroll
            for (int k = 0; k < 4; ++k) total[i * 2 + k / 2][first + k % 2 * kApart] += sum[i][k];
    }

    // A lane takes the unit at its own place from each row. The order of terms differs from the sum's, but is the same
    // in both operands.
    template <class Place>
    static __device__ void of_lines(
        const Unit *left, const Unit *right, const Place &here, float (&total)[8][8]) {
        const int pair = here.down >> 1;
        left += turned_left(here.down, here.across), right += turned_right(pair * 4 + (here.down & 1), here.across);
        Unit a[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) a[i] = left[i * 8 * kUnits];
#pragma unroll
        for (int step = 0; step < 4; step += 2) {
            Halves<4> of_a[kTall];
#pragma unroll
            for (int i = 0; i < 16; ++i) of_a[i / 4].set(i % 4, a[i / 4 * 2 + i % 2].values[step + i % 4 / 2]);
#pragma unroll
            for (int j = 0; j < kWide; ++j) {
                const Unit b = right[(j / 2 * 16 + j % 2 * 2) * kUnits];
                Halves<2> of_b;
                of_b.set(0, b.values[step]), of_b.set(1, b.values[step + 1]);
                add<1>(of_a, of_b, j * 2, total);
            }
        }
    }

    // A lane takes neighbours of every fourth term: four of the left operand and two of the right one.
    template <int kLeft, int kRight, class Place>
    static __device__ void of_terms(
        const Unit *left, const Unit *right, const Place &here, float (&total)[8][8]) {
        typedef Pack<float, 2> Two;
        const int turned = here.across << 1;
        left += here.across * kLeft + (here.down ^ turned);
        // The first four of eight units and the others, because the permutation reaches beyond four.
        const int place = here.across * kRight + (here.down / 2 ^ turned);
        const Unit *halves[2] = {right + place, right + (place ^ 4)};
#pragma unroll
        for (int deep = 0; deep < kDepth; deep += 8) {
            Halves<4> of_a[kTall];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const Unit a = left[(deep + i / 2 * 4) * kLeft + i % 2 * 8];
#pragma unroll
                for (int e = 0; e < 4; ++e) of_a[i % 2 * 2 + e / 2].set(i / 2 * 2 + e % 2, a.values[e]);
            }
#pragma unroll
            for (int j = 0; j < kWide; j += 2) {
                Halves<2> of_b[2];
#pragma unroll
                for (int k = 0; k < 2; ++k) {
                    const Unit *unit = halves[j / 2 % 2] + (deep + k * 4) * kRight + j / 4 * 8;
                    const Two b = reinterpret_cast<const Two *>(unit)[here.down % 2];
                    of_b[0].set(k, b.values[0]), of_b[1].set(k, b.values[1]);
                }
                add<2>(of_a, of_b[0], j * 2, total);
                add<2>(of_a, of_b[1], j * 2 + 1, total);
            }
        }
    }

    static __device__ int row_of_terms(int i, int down) { return down * 4 + i / 4 * 32 + i % 4; }
    static __device__ int column_of_terms(int j, int across) { return across * 4 + j * 16; }
};

TILES(Split, split_, 2, 2, 2)
TILES(Split, split_, 2, 1, 5)
TILES(Split, split_, 1, 4, 3)
TILES(Split, split_, 1, 2, 4)
