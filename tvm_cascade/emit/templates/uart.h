/* Polled access to the serial ports that board files can name. board.h gives uart_setup(), one of the UART_<kind> macros
 * and UART_BASE, or for UART_POLLED the registers themselves. */
#ifndef TVM_CASCADE_UART_H
#define TVM_CASCADE_UART_H

#include "board.h"

#include <stdint.h>

#define UART_WORD(offset) (*(volatile uint32_t *)(uintptr_t)(UART_BASE + (offset)))
#define UART_BYTE(offset) (*(volatile uint8_t *)(uintptr_t)(UART_BASE + (offset)))

static inline void uart_open(void)
{
    uart_setup();
#if defined(UART_CMSDK)
    UART_WORD(0x10) = UART_WORD(0x10) < 16u ? 217u : UART_WORD(0x10);
    UART_WORD(0x08) = 3u;
#elif defined(UART_NRF51)
    UART_WORD(0x500) = 4u;
    UART_WORD(0x000) = 1u;
    UART_WORD(0x008) = 1u;
#elif defined(UART_STM32)
    UART_WORD(0x0C) = 0x200Cu;
#elif defined(UART_PL011)
    UART_WORD(0x2C) = 0x70u;
    UART_WORD(0x30) = 0x301u;
#elif defined(UART_NS16550)
    UART_BYTE(3) = 3u;
    UART_BYTE(2) = 7u;
#endif
}

static inline int uart_ready(void)
{
#if defined(UART_CMSDK)
    return (int)(UART_WORD(0x04) & 2u);
#elif defined(UART_NRF51)
    return (int)UART_WORD(0x108);
#elif defined(UART_STM32)
    return (int)(UART_WORD(0x00) & 0x20u);
#elif defined(UART_PL011)
    return !(UART_WORD(0x18) & 0x10u);
#elif defined(UART_NS16550)
    return UART_BYTE(5) & 1;
#elif defined(UART_POLLED)
    return UART_RECEIVE_READY;
#endif
}

static inline uint8_t uart_get(void)
{
    while (!uart_ready()) {
    }
#if defined(UART_CMSDK) || defined(UART_PL011)
    return (uint8_t)UART_WORD(0x00);
#elif defined(UART_NRF51)
    UART_WORD(0x108) = 0;
    return (uint8_t)UART_WORD(0x518);
#elif defined(UART_STM32)
    return (uint8_t)UART_WORD(0x04);
#elif defined(UART_NS16550)
    return UART_BYTE(0);
#elif defined(UART_POLLED)
    return (uint8_t)UART_RECEIVE_DATA;
#endif
}

static inline void uart_put(uint8_t byte)
{
#if defined(UART_CMSDK)
    while (UART_WORD(0x04) & 1u) {
    }
    UART_WORD(0x00) = byte;
#elif defined(UART_NRF51)
    UART_WORD(0x11C) = 0;
    UART_WORD(0x51C) = byte;
    while (!UART_WORD(0x11C)) {
    }
#elif defined(UART_STM32)
    while (!(UART_WORD(0x00) & 0x80u)) {
    }
    UART_WORD(0x04) = byte;
#elif defined(UART_PL011)
    while (UART_WORD(0x18) & 0x20u) {
    }
    UART_WORD(0x00) = byte;
#elif defined(UART_NS16550)
    while (!(UART_BYTE(5) & 0x20)) {
    }
    UART_BYTE(0) = byte;
#elif defined(UART_POLLED)
    while (!UART_TRANSMIT_READY) {
    }
    UART_TRANSMIT_DATA = byte;
#endif
}

#endif
