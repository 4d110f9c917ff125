#if defined(__GNUC__) && !defined(__clang__) && defined(__arm__)
/* the kernels are written in the order that fits 14 registers: scheduling before register allocation, merging the
   kernels into one function, or keeping inputs for the next pass of a loop, would spill */
#pragma GCC optimize("no-schedule-insns", "no-inline-functions-called-once", "no-predictive-commoning")
#endif
#if defined(__GNUC__)
#define TC_INLINE static inline __attribute__((always_inline, unused))
#else
#define TC_INLINE static inline
#endif
TC_INLINE int32_t tc_ld32(const void *p) { int32_t r; memcpy(&r, p, 4); return r; }
/* sixteen bytes between addresses of words: two instructions that move four registers each */
#if defined(__GNUC__)
TC_INLINE int32_t tc_copy16(void *to, const void *from) {
    memcpy(__builtin_assume_aligned(to, 4), __builtin_assume_aligned(from, 4), 16); return 0; }
#else
TC_INLINE int32_t tc_copy16(void *to, const void *from) { memcpy(to, from, 16); return 0; }
#endif
TC_INLINE int32_t tc_copy4(void *to, const void *from) {
    memcpy(to, from, 4); return 0; }
#if defined(__GNUC__) && defined(__ARM_FEATURE_UNALIGNED)
/* as tc_ld32, but never carried from one pass of a loop to the next: registers are scarce there */
typedef int32_t __attribute__((may_alias, aligned(1))) tc_word;
TC_INLINE int32_t tc_ldr(const void *p) {
    int32_t r; __asm("ldr %0, %1" : "=r"(r) : "m"(*(const tc_word *)p)); return r; }
#else
TC_INLINE int32_t tc_ldr(const void *p) { return tc_ld32(p); }
#endif
#if defined(__GNUC__) && defined(__thumb2__)
/* written out, so that loads stay beside their use: moved together they would not fit the registers */
TC_INLINE int32_t tc_mla(int32_t a, int32_t b, int32_t c) {
    int32_t r; __asm("mla %0, %1, %2, %3" : "=r"(r) : "r"(a), "r"(b), "r"(c)); return r; }
#else
TC_INLINE int32_t tc_mla(int32_t a, int32_t b, int32_t c) { return a * b + c; }
#endif
/* shifts by the lowest byte of a word, which is below 32; an instruction takes no other bits of a register either */
#if defined(__GNUC__) && defined(__thumb2__)
TC_INLINE int32_t tc_asr(int32_t a, int32_t b) { int32_t r; __asm("asr %0, %1, %2" : "=r"(r) : "r"(a), "r"(b)); return r; }
TC_INLINE int32_t tc_lsl(int32_t a, int32_t b) { int32_t r; __asm("lsl %0, %1, %2" : "=r"(r) : "r"(a), "r"(b)); return r; }
#else
TC_INLINE int32_t tc_asr(int32_t a, int32_t b) { return a >> (b & 31); }
TC_INLINE int32_t tc_lsl(int32_t a, int32_t b) { return (int32_t)((uint32_t)a << (b & 31)); }
#endif
/* the bits in reverse order */
#if defined(__GNUC__) && defined(__thumb2__)
TC_INLINE int32_t tc_rbit(int32_t a) { int32_t r; __asm("rbit %0, %1" : "=r"(r) : "r"(a)); return r; }
#else
TC_INLINE int32_t tc_rbit(int32_t a) {
    uint32_t r = 0;
    for (int i = 0; i < 32; ++i) { r = (r << 1) | ((uint32_t)a >> i & 1u); }
    return (int32_t)r; }
#endif
/* a number that is seldom another one than zero */
#if defined(__GNUC__)
TC_INLINE int32_t tc_rare(int32_t a) { return (int32_t)__builtin_expect(a, 0); }
#else
TC_INLINE int32_t tc_rare(int32_t a) { return a; }
#endif
/* the upper four bits of every byte, and the lower four in their place */
TC_INLINE int32_t tc_upper_nibbles(int32_t a) { return (int32_t)((uint32_t)a & 0xf0f0f0f0u); }
/* the lowest four bits, with their sign */
TC_INLINE int32_t tc_low_nibble(int32_t a) { return (int32_t)((uint32_t)a << 28) >> 28; }
TC_INLINE int32_t tc_lower_nibbles(int32_t a) { return (int32_t)(((uint32_t)a << 4) & 0xf0f0f0f0u); }
/* rounded twice, as C99 has it and other machines compute it; written out for the same reason */
#if defined(__GNUC__) && defined(__thumb2__) && defined(__ARM_FP) && (__ARM_FP & 4)
TC_INLINE float tc_mlaf(float a, float b, float c) {
    __asm("vmla.f32 %0, %1, %2" : "+t"(c) : "t"(a), "t"(b)); return c; }
#else
TC_INLINE float tc_mlaf(float a, float b, float c) { return a * b + c; }
#endif
/* a product that is rounded before it is added; C joins none */
TC_INLINE float tc_alone(float a) { return a; }
/* a float of its bits; and of the bits of a float16, alone or in one half of a word: exact, subnormal numbers included */
TC_INLINE float tc_real(int32_t a) { float r; memcpy(&r, &a, 4); return r; }
/* units of Cortex-M all convert, although gcc does not say so by bit 1 of __ARM_FP */
#if defined(__GNUC__) && defined(__thumb2__) && defined(__ARM_FP) && (__ARM_FP & 4) && __ARM_ARCH_PROFILE == 'M'
TC_INLINE float tc_half_low(float a) { float r; __asm("vcvtb.f32.f16 %0, %1" : "=t"(r) : "t"(a)); return r; }
TC_INLINE float tc_half_high(float a) { float r; __asm("vcvtt.f32.f16 %0, %1" : "=t"(r) : "t"(a)); return r; }
TC_INLINE float tc_half(int32_t a) { return tc_half_low(tc_real(a)); }
#else
TC_INLINE float tc_half(int32_t a) {
    uint32_t size = (uint32_t)a & 0x7fffu, bits = 0, down = 0;
    if (size >= 0x400u) {
        bits = (size << 13) + (size >= 0x7c00u ? 224u << 23 : 112u << 23);
    } else if (size != 0) {
        while (size < 0x400u) { size <<= 1; ++down; }
        bits = (size << 13) + ((112u - down) << 23);
    }
    return tc_real((int32_t)(bits | ((uint32_t)a & 0x8000u) << 16)); }
TC_INLINE float tc_half_low(float a) { int32_t r; memcpy(&r, &a, 4); return tc_half(r & 0xffff); }
TC_INLINE float tc_half_high(float a) { int32_t r; memcpy(&r, &a, 4); return tc_half((r >> 16) & 0xffff); }
#endif
/* the high word of a product added to two words: written out, or a factor that a loop keeps is widened to two words */
#if defined(__GNUC__) && defined(__thumb2__)
TC_INLINE int32_t tc_smlalh(int32_t a, int32_t b, int32_t low, int32_t high) {
    __asm("smlal %0, %1, %2, %3" : "+r"(low), "+r"(high) : "r"(a), "r"(b)); return high; }
#else
TC_INLINE int32_t tc_smlalh(int32_t a, int32_t b, int32_t low, int32_t high) {
    return (int32_t)(((int64_t)a * b + (int64_t)(((uint64_t)(uint32_t)high << 32) | (uint32_t)low)) >> 32); }
#endif
#if defined(__ARM_FEATURE_DSP) && defined(__ARM_ARCH) && __ARM_ARCH >= 7
#define TC_ASM2(name, text) TC_INLINE int32_t name(int32_t a) { int32_t r; __asm(text : "=r"(r) : "r"(a)); return r; }
#define TC_ASM4(name, text) \
    TC_INLINE int32_t name(int32_t a, int32_t b, int32_t c) { \
        int32_t r; __asm(text : "=r"(r) : "r"(a), "r"(b), "r"(c)); return r; }
TC_ASM4(tc_smlad, "smlad %0, %1, %2, %3")
TC_ASM4(tc_smmlar, "smmlar %0, %1, %2, %3")
TC_ASM4(tc_smmla, "smmla %0, %1, %2, %3")
TC_INLINE int32_t tc_smax8(int32_t a, int32_t b) {
    int32_t r; __asm("ssub8 %0, %1, %2\n\tsel %0, %1, %2" : "=&r"(r) : "r"(a), "r"(b) : "cc"); return r; }
TC_INLINE int32_t tc_umax8(int32_t a, int32_t b) {
    int32_t r; __asm("usub8 %0, %1, %2\n\tsel %0, %1, %2" : "=&r"(r) : "r"(a), "r"(b) : "cc"); return r; }
TC_INLINE int32_t tc_sxtab16(int32_t a, int32_t b) {
    int32_t r; __asm("sxtab16 %0, %1, %2" : "=r"(r) : "r"(a), "r"(b)); return r; }
TC_INLINE int32_t tc_sxtab16_ror8(int32_t a, int32_t b) {
    int32_t r; __asm("sxtab16 %0, %1, %2, ror #8" : "=r"(r) : "r"(a), "r"(b)); return r; }
TC_INLINE int32_t tc_uxtab16(int32_t a, int32_t b) {
    int32_t r; __asm("uxtab16 %0, %1, %2" : "=r"(r) : "r"(a), "r"(b)); return r; }
TC_INLINE int32_t tc_uxtab16_ror8(int32_t a, int32_t b) {
    int32_t r; __asm("uxtab16 %0, %1, %2, ror #8" : "=r"(r) : "r"(a), "r"(b)); return r; }
TC_ASM2(tc_sxtb16, "sxtb16 %0, %1")
TC_ASM2(tc_sxtb16_ror8, "sxtb16 %0, %1, ror #8")
TC_ASM2(tc_uxtb16, "uxtb16 %0, %1")
TC_ASM2(tc_uxtb16_ror8, "uxtb16 %0, %1, ror #8")
#else
TC_INLINE int32_t tc_pair(int32_t top, int32_t low) {
    return (int32_t)(((uint32_t)top << 16) | ((uint32_t)low & 0xffffu));
}
TC_INLINE int32_t tc_low(int32_t a) { return (int16_t)(a & 0xffff); }
TC_INLINE int32_t tc_top(int32_t a) { return a >> 16; }
TC_INLINE int32_t tc_smlad(int32_t a, int32_t b, int32_t c) {
    return (int32_t)((uint32_t)c + (uint32_t)(tc_low(a) * tc_low(b)) + (uint32_t)(tc_top(a) * tc_top(b)));
}
TC_INLINE int32_t tc_smmlar(int32_t a, int32_t b, int32_t c) {
    return (int32_t)(((int64_t)a * b + ((int64_t)((uint64_t)(int64_t)c << 32) + 0x80000000LL)) >> 32);
}
TC_INLINE int32_t tc_smmla(int32_t a, int32_t b, int32_t c) {
    return (int32_t)((uint32_t)(((int64_t)a * b) >> 32) + (uint32_t)c);
}
TC_INLINE int32_t tc_smax8(int32_t a, int32_t b) {
    int32_t r; int8_t x[4], y[4]; memcpy(x, &a, 4); memcpy(y, &b, 4);
    for (int i = 0; i < 4; ++i) { x[i] = x[i] > y[i] ? x[i] : y[i]; }
    memcpy(&r, x, 4); return r; }
TC_INLINE int32_t tc_umax8(int32_t a, int32_t b) {
    int32_t r; uint8_t x[4], y[4]; memcpy(x, &a, 4); memcpy(y, &b, 4);
    for (int i = 0; i < 4; ++i) { x[i] = x[i] > y[i] ? x[i] : y[i]; }
    memcpy(&r, x, 4); return r; }
TC_INLINE int32_t tc_sxtab16(int32_t a, int32_t b) {
    return tc_pair((int16_t)(tc_top(a) + (int8_t)((b >> 16) & 0xff)), (int16_t)(tc_low(a) + (int8_t)(b & 0xff)));
}
TC_INLINE int32_t tc_sxtab16_ror8(int32_t a, int32_t b) {
    return tc_pair((int16_t)(tc_top(a) + (int8_t)((b >> 24) & 0xff)), (int16_t)(tc_low(a) + (int8_t)((b >> 8) & 0xff)));
}
TC_INLINE int32_t tc_uxtab16(int32_t a, int32_t b) {
    return tc_pair(tc_top(a) + ((b >> 16) & 0xff), tc_low(a) + (b & 0xff));
}
TC_INLINE int32_t tc_uxtab16_ror8(int32_t a, int32_t b) {
    return tc_pair(tc_top(a) + ((b >> 24) & 0xff), tc_low(a) + ((b >> 8) & 0xff));
}
TC_INLINE int32_t tc_uxtb16(int32_t a) { return a & 0x00ff00ff; }
TC_INLINE int32_t tc_uxtb16_ror8(int32_t a) { return (int32_t)(((uint32_t)a >> 8) & 0x00ff00ffu); }
TC_INLINE int32_t tc_sxtb16(int32_t a) { return tc_pair((int8_t)((a >> 16) & 0xff), (int8_t)(a & 0xff)); }
TC_INLINE int32_t tc_sxtb16_ror8(int32_t a) { return tc_pair((int8_t)((a >> 24) & 0xff), (int8_t)((a >> 8) & 0xff)); }
#endif
/* leading zeros of a positive number */
#if defined(__GNUC__)
TC_INLINE int32_t tc_clz(int32_t a) { return __builtin_clz((uint32_t)a); }
#else
TC_INLINE int32_t tc_clz(int32_t a) { int32_t n = 0; while (a > 0) { a = (int32_t)((uint32_t)a << 1); ++n; } return n; }
#endif
#if defined(__ARM_FEATURE_SAT)
TC_INLINE int32_t tc_ssat8(int32_t a) { int32_t r; __asm("ssat %0, #8, %1" : "=r"(r) : "r"(a)); return r; }
TC_INLINE int32_t tc_ssat8_half(int32_t a) { int32_t r; __asm("ssat %0, #8, %1, asr #1" : "=r"(r) : "r"(a)); return r; }
TC_INLINE int32_t tc_usat8(int32_t a) { int32_t r; __asm("usat %0, #8, %1" : "=r"(r) : "r"(a)); return r; }
#else
TC_INLINE int32_t tc_usat8(int32_t a) { return a < 0 ? 0 : a > 255 ? 255 : a; }
TC_INLINE int32_t tc_ssat8(int32_t a) { return a < -128 ? -128 : a > 127 ? 127 : a; }
TC_INLINE int32_t tc_ssat8_half(int32_t a) { return tc_ssat8(a >> 1); }
#endif
/* floats below 2^22 as integers, rounded half away from zero, or half to even */
#if defined(__GNUC__) && defined(__thumb2__) && defined(__ARM_FP) && (__ARM_FP & 4)
TC_INLINE int32_t tc_round_away(float a) { return (int32_t)(a + __builtin_copysignf(0x1.fffffep-2f, a)); }
TC_INLINE int32_t tc_round_even(float a) {
    float f; int32_t r; __asm("vcvtr.s32.f32 %0, %1" : "=t"(f) : "t"(a)); memcpy(&r, &f, 4); return r; }
#else
TC_INLINE int32_t tc_rounded(float a, uint32_t even) {
    int32_t bits; memcpy(&bits, &a, 4);
    uint32_t down = 150u - ((uint32_t)bits >> 23 & 255u), size = ((uint32_t)bits & 0x7fffffu) | 0x800000u;
    if (down - 1u < 24u) {
        size = (size + (1u << (down - 1u)) - (even & ~(size >> down) & 1u)) >> down;
    } else if (down - 1u < 150u) {
        size = 0;
    }
    return bits < 0 ? -(int32_t)size : (int32_t)size; }
TC_INLINE int32_t tc_round_away(float a) { return tc_rounded(a, 0u); }
TC_INLINE int32_t tc_round_even(float a) { return tc_rounded(a, 1u); }
#endif
