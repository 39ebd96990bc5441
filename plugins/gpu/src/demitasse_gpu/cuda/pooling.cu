// 2-D pooling. Images are planes (NCHW) or have channels innermost (NHWC); then a thread takes as many channels as fill
// 16 bytes. Gradients are gathered: each element of dx looks at the windows that it lies in, so the order of additions
// never changes.
#include "numbers.cuh"

#ifndef PLACE
#define PLACE int
#endif
typedef PLACE place;  // the index of an element in a plane of x, which may be stored as unsigned short

struct Windows {
    int samples, channels, height, width, rows, columns;  // of x; rows and columns of windows
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w;
    Divisor fastest, second, third;  // divide indices of output elements, one after the other
    Divisor by_stride_h, by_stride_w;
};

// The index of element (n, c, h, w) in images of `height` x `width`; hosts launch at most 2^31 elements.
template <bool kInnermost>
__device__ inline unsigned at(const Windows &s, int n, int c, int h, int w, int height, int width) {
    if (kInnermost) return ((n * height + h) * width + w) * s.channels + c;
    return ((n * s.channels + c) * height + h) * width + w;
}

// The distance of neighbours in a row.
template <bool kInnermost> __device__ inline int step_of(const Windows &s) { return kInnermost ? s.channels : 1; }

// Calls f(n, c, h, w) for each group of N channels at each point of images of height x width.
template <bool kInnermost, int N, class F>
__device__ inline void points(const Windows &s, int height, int width, F f) {
    const unsigned count = (unsigned)s.samples * height * width * (s.channels / N);
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        unsigned rest = (unsigned)i;
        const unsigned first = divided(rest, s.fastest), second = divided(rest, s.second);
        const unsigned third = divided(rest, s.third);
        if (kInnermost)
            f(rest, first * N, third, second);
        else
            f(rest, third * N, second, first);
    }
}

// The windows from `first` up to `end` along an axis.
struct Reach {
    int first, end;
};

// The windows in which row (or column) h of x lies.
__device__ inline Reach windows_of(int h, int pad, int kernel, const Divisor &stride, int count) {
    const int reach = h + pad - kernel;
    return {reach < 0 ? 0 : (int)quotient(reach, stride) + 1, least_of((int)quotient(h + pad, stride) + 1, count)};
}

// Calls f(from, row, column) for windows; `from` is the index of the window's element for sample n and channel c.
template <bool kInnermost, class F>
__device__ inline void each_window(const Windows &s, int n, int c, const Reach &down, const Reach &across, F f) {
    unsigned line = at<kInnermost>(s, n, c, down.first, across.first, s.rows, s.columns);
    for (int row = down.first; row < down.end; ++row, line += s.columns * step_of<kInnermost>(s)) {
        unsigned from = line;
        for (int column = across.first; column < across.end; ++column, from += step_of<kInnermost>(s))
            f(from, row, column);
    }
}

template <bool kInnermost, int N>
__device__ inline void maxima(const Windows &s, const stored *x, stored *y, place *argmax) {
    points<kInnermost, N>(s, s.rows, s.columns, [&](int n, int c, int row, int column) {
        const int top = largest_of(row * s.stride_h - s.pad_h, 0);
        const int left = largest_of(column * s.stride_w - s.pad_w, 0);
        const int bottom = least_of(row * s.stride_h - s.pad_h + s.kernel_h, s.height);
        const int right = least_of(column * s.stride_w - s.pad_w + s.kernel_w, s.width);
        real best[N], seen[N];
        int chosen[N];
        unsigned line = at<kInnermost>(s, n, c, top, left, s.height, s.width);
        int start = top * s.width + left;
        load<N>(x + line, best);
#pragma unroll
        for (int k = 0; k < N; ++k) chosen[k] = start;
        for (int h = top; h < bottom; ++h, line += s.width * step_of<kInnermost>(s), start += s.width) {
            unsigned from = line;
            for (int w = 0; w < right - left; ++w, from += step_of<kInnermost>(s)) {
                load<N>(x + from, seen);
#pragma unroll
                for (int k = 0; k < N; ++k)
                    // The first of equals; NaN counts as the largest.
                    if (!(seen[k] <= best[k]) && best[k] == best[k]) {
                        best[k] = seen[k];
                        chosen[k] = start + w;
                    }
            }
        }
        const unsigned to = at<kInnermost>(s, n, c, row, column, s.rows, s.columns);
        store<N>(y + to, best);
        if (!argmax) return;
        Pack<place, N> places;
#pragma unroll
        for (int k = 0; k < N; ++k) places.values[k] = (place)chosen[k];
        *reinterpret_cast<Pack<place, N> *>(argmax + to) = places;
    });
}

// Two by two points of dx at a time, which share most of the windows that they lie in. If `rectified` is given, the
// output of a ReLU before the pooling, the result is the ReLU's gradient.
template <bool kInnermost, int N>
__device__ inline void maxima_backward(
    const Windows &s, const stored *dy, const place *argmax, stored *dx, const stored *rectified, real negative) {
    points<kInnermost, N>(s, (s.height + 1) / 2, (s.width + 1) / 2, [&](int n, int c, int i, int j) {
        real total[2][2][N] = {};
        const int h = i * 2, w = j * 2;
        const Reach down = {windows_of(h, s.pad_h, s.kernel_h, s.by_stride_h, s.rows).first,
                            windows_of(h + 1, s.pad_h, s.kernel_h, s.by_stride_h, s.rows).end};
        const Reach across = {windows_of(w, s.pad_w, s.kernel_w, s.by_stride_w, s.columns).first,
                              windows_of(w + 1, s.pad_w, s.kernel_w, s.by_stride_w, s.columns).end};
        each_window<kInnermost>(s, n, c, down, across, [&](unsigned from, int, int) {
            real slope[N];
            const Pack<place, N> chosen = read<N>(argmax + from);
            load<N>(dy + from, slope);
#pragma unroll
            for (int a = 0; a < 4; ++a) {
                const place here = (place)((h + a / 2) * s.width + w + a % 2);
#pragma unroll
                for (int k = 0; k < N; ++k)
                    if (chosen.values[k] == here) total[a / 2][a % 2][k] += slope[k];
            }
        });
#pragma unroll
        for (int a = 0; a < 4; ++a) {
            if (h + a / 2 >= s.height || w + a % 2 >= s.width) continue;
            const unsigned to = at<kInnermost>(s, n, c, h + a / 2, w + a % 2, s.height, s.width);
            real (&made)[N] = total[a / 2][a % 2];
            if (rectified) {
                real y[N];
                load<N>(rectified + to, y);
#pragma unroll
                for (int k = 0; k < N; ++k)
                    if (!(y[k] > 0)) made[k] = negative * (real)widened(Narrow<stored>::of(made[k]));
            }
            store<N>(dx + to, made);
        }
    });
}

// The extent of a window that starts at `start`, with the padding that it covers: at most one pad beyond x.
__device__ inline int extent_of(int start, int kernel, int size, int pad) {
    return least_of(start + kernel, size + pad) - start;
}

template <bool kInnermost, int N>
__device__ inline void averages(const Windows &s, const stored *x, stored *y) {
    points<kInnermost, N>(s, s.rows, s.columns, [&](int n, int c, int row, int column) {
        const int above = row * s.stride_h - s.pad_h, before = column * s.stride_w - s.pad_w;
        const int size =
            extent_of(above, s.kernel_h, s.height, s.pad_h) * extent_of(before, s.kernel_w, s.width, s.pad_w);
        const int top = largest_of(above, 0), left = largest_of(before, 0);
        const int bottom = least_of(above + s.kernel_h, s.height);
        const int right = least_of(before + s.kernel_w, s.width);
        real total[N], seen[N];
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] = 0;
        unsigned line = at<kInnermost>(s, n, c, top, left, s.height, s.width);
        for (int h = top; h < bottom; ++h, line += s.width * step_of<kInnermost>(s)) {
            unsigned from = line;
            for (int w = left; w < right; ++w, from += step_of<kInnermost>(s)) {
                load<N>(x + from, seen);
#pragma unroll
                for (int k = 0; k < N; ++k) total[k] += seen[k];
            }
        }
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] /= (real)size;
        store<N>(y + at<kInnermost>(s, n, c, row, column, s.rows, s.columns), total);
    });
}

template <bool kInnermost, int N>
__device__ inline void averages_backward(const Windows &s, const stored *dy, stored *dx) {
    points<kInnermost, N>(s, s.height, s.width, [&](int n, int c, int h, int w) {
        real total[N];
#pragma unroll
        for (int k = 0; k < N; ++k) total[k] = 0;
        const Reach down = windows_of(h, s.pad_h, s.kernel_h, s.by_stride_h, s.rows);
        const Reach across = windows_of(w, s.pad_w, s.kernel_w, s.by_stride_w, s.columns);
        each_window<kInnermost>(s, n, c, down, across, [&](unsigned from, int row, int column) {
            real slope[N];
            const int tall = extent_of(row * s.stride_h - s.pad_h, s.kernel_h, s.height, s.pad_h);
            const int wide = extent_of(column * s.stride_w - s.pad_w, s.kernel_w, s.width, s.pad_w);
            load<N>(dy + from, slope);
#pragma unroll
            for (int k = 0; k < N; ++k) total[k] += slope[k] / (real)(tall * wide);
        });
        store<N>(dx + at<kInnermost>(s, n, c, h, w, s.height, s.width), total);
    });
}

// The layout of channels, and how many a thread takes, are known when a kernel is launched.
#define BY_LAYOUT(function, ...)                              \
    if (!innermost)                                           \
        function<false, 1>(__VA_ARGS__);                      \
    else if (windows.channels % kWidth)                       \
        function<true, 1>(__VA_ARGS__);                       \
    else                                                      \
        function<true, kWidth>(__VA_ARGS__);

extern "C" __global__ void pooling_max(
    Windows windows, int innermost, const stored *x, stored *y, place *argmax) {
    BY_LAYOUT(maxima, windows, x, y, argmax)
}

extern "C" __global__ void pooling_max_backward(
    Windows windows, int innermost, const stored *dy, const place *argmax, stored *dx, const stored *rectified,
    real negative) {
    BY_LAYOUT(maxima_backward, windows, dy, argmax, dx, rectified, negative)
}

extern "C" __global__ void pooling_average(Windows windows, int innermost, const stored *x, stored *y) {
    BY_LAYOUT(averages, windows, x, y)
}

extern "C" __global__ void pooling_average_backward(
    Windows windows, int innermost, const stored *dy, stored *dx) {
    BY_LAYOUT(averages_backward, windows, dy, dx)
}
