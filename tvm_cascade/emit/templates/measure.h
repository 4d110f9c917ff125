/* What the emulator's run measures: the arena's and the stack's high-water marks, found by painting, and the counters of
 * board.h. Painting and scanning are inlined into main, so they add no stack of their own under the network's. */
#ifndef TVM_CASCADE_MEASURE_H
#define TVM_CASCADE_MEASURE_H

#include "board.h"

#include <stdint.h>

static inline void measure_paint_arena(volatile uint8_t *arena, uint32_t size, uint8_t pattern)
{
    for (uint32_t i = 0; i < size; ++i) {
        arena[i] = pattern;
    }
}

/* Offset behind the last byte that differs from the pattern. */
static inline uint32_t measure_arena(const volatile uint8_t *arena, uint32_t size, uint8_t pattern)
{
    while (size > 0 && arena[size - 1] == pattern) {
        --size;
    }
    return size;
}

#if defined(TVM_CASCADE_EMULATOR) || defined(TVM_CASCADE_SERIAL)

extern uint32_t __stack_limit[];
extern uint32_t __stack_top[];
#define MEASURE_STACK_PATTERN 0xC5A3915Bu
#define MEASURE_STACK_BLOCK 32u /* bytes, eight words at a time: emulators have megabytes of stack to go through */

static inline void measure_paint_stack(void)
{
    volatile uint32_t *end;
#ifdef __riscv
    __asm__ volatile("mv %0, sp" : "=r"(end));
#else
    __asm__ volatile("mov %0, sp" : "=r"(end));
#endif
    volatile uint32_t *word = __stack_limit;
    for (; (uintptr_t)end - (uintptr_t)word >= MEASURE_STACK_BLOCK; word += 8) {
        word[0] = MEASURE_STACK_PATTERN;
        word[1] = MEASURE_STACK_PATTERN;
        word[2] = MEASURE_STACK_PATTERN;
        word[3] = MEASURE_STACK_PATTERN;
        word[4] = MEASURE_STACK_PATTERN;
        word[5] = MEASURE_STACK_PATTERN;
        word[6] = MEASURE_STACK_PATTERN;
        word[7] = MEASURE_STACK_PATTERN;
    }
    for (; word < end; ++word) {
        *word = MEASURE_STACK_PATTERN;
    }
}

/* Bytes from the top of the stack down to the lowest word written. */
static inline uint32_t measure_stack(void)
{
    const volatile uint32_t *word = __stack_limit;
    for (; (uintptr_t)__stack_top - (uintptr_t)word >= MEASURE_STACK_BLOCK; word += 8) {
        uint32_t written = word[0] ^ MEASURE_STACK_PATTERN;
        written |= word[1] ^ MEASURE_STACK_PATTERN;
        written |= word[2] ^ MEASURE_STACK_PATTERN;
        written |= word[3] ^ MEASURE_STACK_PATTERN;
        written |= word[4] ^ MEASURE_STACK_PATTERN;
        written |= word[5] ^ MEASURE_STACK_PATTERN;
        written |= word[6] ^ MEASURE_STACK_PATTERN;
        written |= word[7] ^ MEASURE_STACK_PATTERN;
        if (written != 0) {
            break;
        }
    }
    while (word < __stack_top && *word == MEASURE_STACK_PATTERN) {
        ++word;
    }
    return (uint32_t)((uintptr_t)__stack_top - (uintptr_t)word);
}

static inline int measure_stack_overflowed(void)
{
    return *(const volatile uint32_t *)__stack_limit != MEASURE_STACK_PATTERN;
}

#else

static inline void measure_paint_stack(void)
{
}

static inline uint32_t measure_stack(void)
{
    return 0;
}

static inline int measure_stack_overflowed(void)
{
    return 0;
}

#endif
#endif
