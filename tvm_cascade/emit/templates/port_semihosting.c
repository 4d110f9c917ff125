/* Semihosting of Arm and RISC-V: the emulator opens inputs.bin and results.bin in its working directory. */
#include "port.h"

enum { SYS_OPEN = 0x01, SYS_WRITE0 = 0x04, SYS_WRITE = 0x05, SYS_READ = 0x06, SYS_EXIT_EXTENDED = 0x20 };
enum { OPEN_READ_BINARY = 1, OPEN_WRITE_BINARY = 5 };
#define STOPPED_APPLICATION_EXIT 0x20026u

/* Handles that the emulator returns are small and in order of opening: kept in no variable, so they cost no RAM. */
enum { INPUT_HANDLE = 1, OUTPUT_HANDLE = 2 };

static uint32_t semihost(uint32_t operation, const void *argument)
{
#ifdef __riscv
    register uint32_t a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = argument;
    /* The three instructions are a mark: uncompressed, and within one page. */
    __asm__ volatile(".balign 16\n\t.option push\n\t.option norvc\n\t"
                     "slli x0, x0, 0x1f\n\tebreak\n\tsrai x0, x0, 7\n\t.option pop"
                     : "+r"(a0)
                     : "r"(a1)
                     : "memory");
    return a0;
#else
    register uint32_t r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
#endif
}

static void open_as(const char *name, uint32_t length, uint32_t mode, uint32_t expected)
{
    const uint32_t arguments[3] = {(uint32_t)(uintptr_t)name, mode, length};
    if (semihost(SYS_OPEN, arguments) != expected) {
        port_print("port: cannot open ");
        port_print(name);
        port_print("\n");
        port_exit(3);
    }
}

void port_open(void)
{
    open_as("inputs.bin", 10, OPEN_READ_BINARY, INPUT_HANDLE);
    open_as("results.bin", 11, OPEN_WRITE_BINARY, OUTPUT_HANDLE);
}

uint32_t port_read(void *data, uint32_t size)
{
    const uint32_t arguments[3] = {INPUT_HANDLE, (uint32_t)(uintptr_t)data, size};
    const uint32_t missing = semihost(SYS_READ, arguments);
    return missing <= size ? size - missing : 0;
}

void port_write(const void *data, uint32_t size)
{
    const uint32_t arguments[3] = {OUTPUT_HANDLE, (uint32_t)(uintptr_t)data, size};
    if (semihost(SYS_WRITE, arguments) != 0) {
        port_print("port: cannot write results.bin\n");
        port_exit(3);
    }
}

void port_print(const char *text)
{
    (void)semihost(SYS_WRITE0, text);
}

void port_exit(int status)
{
    const uint32_t arguments[2] = {STOPPED_APPLICATION_EXIT, (uint32_t)status};
    for (;;) {
        (void)semihost(SYS_EXIT_EXTENDED, arguments);
    }
}
