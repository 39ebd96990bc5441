// 2-D convolution and its gradients as products of matrices that are never written to memory (implicit GEMM), for use
// without cuDNN. x, y and w may have any order of dimensions; w has the type of sums.
#include "products.cuh"

// The distances in memory along the four dimensions of images, or of w (outputs, inputs, rows, columns).
struct Steps {
    long long outer, channel, row, column;
    __device__ Offset at(int n, int c, int h, int w) const {
        return n * outer + c * channel + h * row + w * column;
    }
};

struct Geometry {
    int samples, groups, inputs, outputs;  // channels per group
    int height, width, rows, columns;      // of x and of y
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    Steps x, y, w;
};

struct Point {
    int n, row, column;
};

__device__ inline Point point_of(Offset i, int rows, int columns) {
    const unsigned rest = (unsigned)i / (unsigned)columns;
    return {(int)(rest / rows), (int)(rest % rows), (int)((unsigned)i % (unsigned)columns)};
}

// A channel (which varies fastest) of a tap of the window.
struct Tap {
    int channel, row, column;
};

__device__ inline Tap tap_of(Offset k, int channels, int kernel_w) {
    const unsigned tap = (unsigned)k / (unsigned)channels;
    return {(int)((unsigned)k % (unsigned)channels), (int)(tap / kernel_w), (int)(tap % kernel_w)};
}

// The element of x that a tap of the window at point p sees; 0 beyond the edge.
__device__ inline real seen(const Geometry &g, const stored *x, const Point &p, const Tap &tap, int group) {
    const int h = p.row * g.stride_h - g.pad_h + tap.row * g.dilation_h;
    const int w = p.column * g.stride_w - g.pad_w + tap.column * g.dilation_w;
    if (h < 0 || h >= g.height || w < 0 || w >= g.width) return 0;
    return (real)widened(x[g.x.at(p.n, group * g.inputs + tap.channel, h, w)]);
}

// One block in z per group; rows are points of y, columns are its channels.
extern "C" __global__ void convolution(
    Geometry g, const stored *x, const real *w, const real *b, stored *y, int rectified) {
    const int group = blockIdx.z;
    product(
        (Offset)g.samples * g.rows * g.columns, g.outputs, 0, (Offset)g.inputs * g.kernel_h * g.kernel_w,
        g.x.channel == 1, g.w.channel == 1,
        [&](Offset m, Offset k) {
            return seen(g, x, point_of(m, g.rows, g.columns), tap_of(k, g.inputs, g.kernel_w), group);
        },
        [&](Offset k, Offset n) {
            const Tap tap = tap_of(k, g.inputs, g.kernel_w);
            return w[g.w.at(group * g.outputs + (int)n, tap.channel, tap.row, tap.column)];
        },
        [&](Offset m, Offset n, real total) {
            const Point p = point_of(m, g.rows, g.columns);
            const int channel = group * g.outputs + (int)n;
            if (b) total += b[channel];
            if (rectified) total = total < 0 ? 0 : total;
            y[g.y.at(p.n, channel, p.row, p.column)] = Narrow<stored>::of(total);
        });
}

// Rows are points of x, columns are its channels.
extern "C" __global__ void convolution_backward_data(Geometry g, const stored *dy, const real *w, stored *dx) {
    const int group = blockIdx.z;
    product(
        (Offset)g.samples * g.height * g.width, g.inputs, 0, (Offset)g.outputs * g.kernel_h * g.kernel_w,
        g.y.channel == 1, false,
        [&](Offset m, Offset k) {
            const Point p = point_of(m, g.height, g.width);
            const Tap tap = tap_of(k, g.outputs, g.kernel_w);
            const int h = p.row + g.pad_h - tap.row * g.dilation_h;
            const int v = p.column + g.pad_w - tap.column * g.dilation_w;
            if (h < 0 || v < 0 || h % g.stride_h || v % g.stride_w) return (real)0;
            if (h / g.stride_h >= g.rows || v / g.stride_w >= g.columns) return (real)0;
            return (real)widened(
                dy[g.y.at(p.n, group * g.outputs + tap.channel, h / g.stride_h, v / g.stride_w)]);
        },
        [&](Offset k, Offset n) {
            const Tap tap = tap_of(k, g.outputs, g.kernel_w);
            return w[g.w.at(group * g.outputs + tap.channel, (int)n, tap.row, tap.column)];
        },
        [&](Offset m, Offset n, real total) {
            const Point p = point_of(m, g.height, g.width);
            dx[g.x.at(p.n, group * g.inputs + (int)n, p.row, p.column)] = Narrow<stored>::of(total);
        });
}

// Rows are a group's output channels, columns are its taps. The sum over points of y is split into `slabs` parts so
// that there are enough blocks: partial[slab][group][output][tap].
extern "C" __global__ void convolution_backward_weights(
    Geometry g, const stored *dy, const stored *x, real *partial, int slabs) {
    const int group = blockIdx.z % g.groups, slab = blockIdx.z / g.groups;
    const Offset points = (Offset)g.samples * g.rows * g.columns, taps = (Offset)g.inputs * g.kernel_h * g.kernel_w;
    const Offset each = ((points + slabs - 1) / slabs + kDepth - 1) / kDepth * kDepth;
    product(
        g.outputs, taps, slab * each, least_of((slab + 1) * each, points), g.y.channel != 1, g.x.channel != 1,
        [&](Offset m, Offset k) {
            const Point p = point_of(k, g.rows, g.columns);
            return (real)widened(dy[g.y.at(p.n, group * g.outputs + (int)m, p.row, p.column)]);
        },
        [&](Offset k, Offset n) {
            return seen(g, x, point_of(k, g.rows, g.columns), tap_of(n, g.inputs, g.kernel_w), group);
        },
        [&](Offset m, Offset n, real total) {
            partial[(((Offset)slab * g.groups + group) * g.outputs + m) * taps + n] = total;
        });
}

// dw in its layout, from the sums of all slabs.
extern "C" __global__ void join_slabs(Geometry g, const real *partial, real *dw, int slabs) {
    const Offset taps = (Offset)g.inputs * g.kernel_h * g.kernel_w, count = taps * g.outputs * g.groups;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        real total = 0;
        for (int slab = 0; slab < slabs; ++slab) total += partial[slab * count + i];
        const Tap tap = tap_of(i % taps, g.inputs, g.kernel_w);
        dw[g.w.at((int)(i / taps), tap.channel, tap.row, tap.column)] = total;
    }
}
