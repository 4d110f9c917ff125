/* Random numbers: `Xorshift` of tvm_cascade/native/xorshift.py, with the same draws. */
#ifndef TVM_CASCADE_RANDOM_H
#define TVM_CASCADE_RANDOM_H
#include <stdint.h>

/* A random number below `count`; `*state` is not 0. */
static inline uint64_t draw(uint64_t *state, uint64_t count) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (*state * 2685821657736338717ULL >> 32) % count;
}
#endif
