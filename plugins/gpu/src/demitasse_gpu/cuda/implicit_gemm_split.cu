// Convolutions in float32, and their gradients, by tensor cores (mma.sync), which multiply TF32: each number is the sum of
// two of these, of its upper bits and of what they leave, and a product the sum of three. What is left out is below
// float32's own rounding. Tensor cores cut their sums, so that long ones drift towards zero; they make them of eight terms
// here, which are added up elsewhere, as Ootomo and Yokota (2022) do.
#include "implicit_gemm_tiles.cuh"
#include "tensor_cores.cuh"

// Numbers as two in TF32: the nearest, and what it leaves. (The instruction for it takes four others, to keep infinite
// numbers as they are; here they become none.)
template <int N> struct Halves {
    unsigned upper[N], lower[N];

    __device__ void set(int k, float x) {
        upper[k] = __float_as_uint(x) + 0x1000u;
        lower[k] = __float_as_uint(x - __uint_as_float(upper[k] & ~0x1fffu));
    }
};

struct Split {
    // Units behind each term's numbers, by which a warp's reads go to 32 banks.
    static constexpr int kStages = 2, kSpare = 2;
    // Products of 16 x 8 that a warp's tile is of.
    static constexpr int kTall = kWarpRows / 16, kWide = kWarpColumns / 8;

    static __device__ int down(int lane) { return lane / 4; }
    static __device__ int across(int lane) { return lane % 4; }

    // total += a b, of eight terms and columns: a lane's two are the one at `first` and the one so far behind.
    template <int kApart>
    static __device__ void add(
        const Halves<4> (&a)[kTall], const Halves<2> &b, int first, float (&total)[8][8]) {
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

    // A lane takes the unit of its own place from each row: terms stand in another order than in the sum, those of both
    // operands in the same.
    template <class Place>
    static __device__ void of_lines(const Unit *left, const Unit *right, const Place &here, float (&total)[8][8]) {
        const int pair = here.down >> 1;
        left += here.down * kUnits + (here.across ^ (pair & 3));
        right += (pair * 4 + (here.down & 1)) * kUnits + (here.across ^ pair);
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

    // A lane takes neighbours of each fourth term, four of the left operand and two of the right one.
    template <int kLeft, int kRight, class Place>
    static __device__ void of_terms(const Unit *left, const Unit *right, const Place &here, float (&total)[8][8]) {
        typedef Pack<float, 2> Two;
        left += here.across * kLeft + here.down;
        const Two *columns = reinterpret_cast<const Two *>(right + here.across * kRight) + here.down;
#pragma unroll
        for (int deep = 0; deep < kDepth; deep += 8) {
            Halves<4> of_a[kTall];
            Halves<2> of_b[kWide];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                const int term = deep + k * 4;
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    const Unit a = left[term * kLeft + u * 8];
                    const Two b = columns[term * kRight * 2 + u * 8];
#pragma unroll
                    for (int e = 0; e < 4; ++e) of_a[u * 2 + e / 2].set(k * 2 + e % 2, a.values[e]);
#pragma unroll
                    for (int e = 0; e < 2; ++e) of_b[u * 2 + e].set(k, b.values[e]);
                }
            }
#pragma unroll
            for (int j = 0; j < kWide; ++j) add<2>(of_a, of_b[j], j / 2 * 4 + j % 2, total);
        }
    }
};

TILES(Split, split_, 2, 2, 2)
TILES(Split, split_, 2, 1, 5)
TILES(Split, split_, 1, 4, 2)
TILES(Split, split_, 1, 2, 5)
