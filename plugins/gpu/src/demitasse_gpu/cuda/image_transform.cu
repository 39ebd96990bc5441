// Converts images to blobs: subtracts a mean, scales, crops and mirrors as the generator says.
#include "numbers.cuh"
#include "philox.cuh"

#ifndef FROM
#define FROM real
#endif
typedef FROM from_type;

struct Images {
    int samples, channels, height, width, rows, columns;  // of x, and rows and columns of y
    int mean_channel, mean_row, mean_column;              // distances in the mean
    int random, mirror, innermost;                        // innermost: y's channels
    unsigned key, key2;
};

extern "C" __global__ void image_transform(
    Images s, const from_type *x, const real *mean, const unsigned long long *iteration,
    const unsigned long long *sample, stored *y, real factor) {
    const Offset count = (Offset)s.samples * s.channels * s.rows * s.columns;
    const int above = s.height - s.rows, before = s.width - s.columns;
    for (Offset i = thread_of_grid(); i < count; i += threads_of_grid()) {
        unsigned rest = (unsigned)i;
        const int c = s.innermost ? (int)(rest % s.channels) : 0;
        if (s.innermost) rest /= s.channels;
        const int column = (int)(rest % s.columns), row = (int)(rest / s.columns % s.rows);
        rest = rest / s.columns / s.rows;
        const int channel = s.innermost ? c : (int)(rest % s.channels);
        const int n = (int)(s.innermost ? rest : rest / s.channels);
        int top = above / 2, left = before / 2, flipped = 0;
        if (s.random) {
            const Words words = drawn(1, s.key, s.key2, *iteration, 0, *sample + n);
            top = (int)((unsigned long long)words.values[0] * (above + 1) >> 32);
            left = (int)((unsigned long long)words.values[1] * (before + 1) >> 32);
            flipped = s.mirror && words.values[2] >> 31;
        }
        const int h = top + row, w = left + (flipped ? s.columns - 1 - column : column);
        const real value = (real)x[(((Offset)n * s.channels + channel) * s.height + h) * s.width + w];
        const real middle = mean ? mean[channel * s.mean_channel + h * s.mean_row + w * s.mean_column] : 0;
        y[i] = Narrow<stored>::of((value - middle) * factor);
    }
}
