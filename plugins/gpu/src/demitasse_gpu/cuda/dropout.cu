// Dropout. The generator decides which elements stay, so they are the same on every machine and for any number of
// workers (demitasse_random, keep_mask).
#include "numbers.cuh"
#include "philox.cuh"

// x is samples x channels x plane in logical order; in memory too, or with channels innermost. A thread draws four
// words, for four elements that are consecutive in logical order.
extern "C" __global__ void dropout(
    const stored *x, const unsigned long long *iteration, const unsigned long long *sample, stored *y,
    unsigned char *mask, unsigned key, unsigned key2, unsigned long long threshold, real scale,
    unsigned samples, unsigned channels, unsigned plane, int innermost) {
    const unsigned elements = channels * plane, quads = (elements + 3) / 4;
    const Offset count = (Offset)samples * quads;
    const bool in_packs =
        !innermost && elements % 4 == 0 && is_aligned<4>(x) && is_aligned<4>(y) && (!mask || is_aligned<4>(mask));
    for (Offset at = thread_of_grid(); at < count; at += threads_of_grid()) {
        const unsigned n = (unsigned)at / quads, quad = (unsigned)at % quads;
        const Words words = drawn(0, key, key2, *iteration, quad, *sample + n);
        if (in_packs) {
            const Offset place = (Offset)n * elements + 4 * quad;
            Pack<unsigned char, 4> kept;
            real a[4];
            load<4>(x + place, a);
            for (int k = 0; k < 4; ++k) {
                kept.values[k] = words.values[k] >= threshold;
                a[k] = kept.values[k] ? a[k] * scale : a[k] * 0;
            }
            store<4>(y + place, a);
            if (mask) *reinterpret_cast<Pack<unsigned char, 4> *>(mask + place) = kept;
            continue;
        }
        for (unsigned k = 0; k < 4 && 4 * quad + k < elements; ++k) {
            const unsigned e = 4 * quad + k;
            const unsigned within = innermost ? e % plane * channels + e / plane : e;
            const Offset place = (Offset)n * elements + within;
            const bool stays = words.values[k] >= threshold;
            const real a = (real)widened(x[place]);
            y[place] = Narrow<stored>::of(stays ? a * scale : a * 0);
            if (mask) mask[place] = stays;
        }
    }
}
