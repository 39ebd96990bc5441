// Random numbers from counters, as in demitasse_random: Philox4x32-10 (Salmon et al. 2011), with the same words on
// every machine.
#pragma once

struct Words {
    unsigned values[4];
};

__device__ inline Words philox(unsigned a, unsigned b, unsigned c, unsigned d, unsigned k, unsigned m) {
#pragma unroll
    for (int round = 0; round < 10; ++round) {
        unsigned high = __umulhi(a, 0xD2511F53u), low = a * 0xD2511F53u;
        unsigned other = __umulhi(c, 0xCD9E8D57u), rest = c * 0xCD9E8D57u;
        a = other ^ b ^ k;
        b = rest;
        c = high ^ d ^ m;
        d = low;
        k += 0x9E3779B9u;
        m += 0xBB67AE85u;
    }
    return {{a, b, c, d}};
}

// The words of domain `domain` for a step number, the counters i and j, and a key of two words.
__device__ inline Words drawn(
    unsigned domain, unsigned key, unsigned key2, unsigned long long number, unsigned i, unsigned long long j) {
    return philox(i, (unsigned)j, (unsigned)number, (unsigned)(number >> 32) + (domain << 28), key, key2);
}
