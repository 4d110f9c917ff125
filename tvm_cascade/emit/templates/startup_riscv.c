/* Reset and traps of a RISC-V core in machine mode. */
@declarations@
extern uint32_t __stack_limit[];

int main(void);
void Reset_Handler(void);
void start_c(void);
void trap(uint32_t cause, uint32_t address, uint32_t value, uint32_t stack);

@stop@

void start_c(void)
{
@memory@
}

/* Execution starts at the first byte of flash. Interrupts are off; an application that wants them sets mtvec to a handler
 * of its own. A trap keeps nothing and starts a new stack: it only reports. */
__attribute__((naked, used, section(".vectors"))) void Reset_Handler(void)
{
    __asm__ volatile("la sp, __stack_top\n\t"
                     "la t0, 1f\n\t"
                     "csrw mtvec, t0\n\t"
                     "tail start_c\n\t"
                     ".balign 4\n"
                     "1:\n\t"
                     "csrr a0, mcause\n\t"
                     "csrr a1, mepc\n\t"
                     "csrr a2, mtval\n\t"
                     "mv a3, sp\n\t"
                     "la sp, __stack_top\n\t"
                     "tail trap");
}

#ifdef TVM_CASCADE_MEASURE

@print_hex@

void trap(uint32_t cause, uint32_t address, uint32_t value, uint32_t stack)
{
    port_print("fault:");
    print_hex(" pc=", address);
    print_hex(" sp=", stack);
    print_hex(" limit=", (uint32_t)(uintptr_t)__stack_limit);
    print_hex(" mcause=", cause);
    print_hex(" mtval=", value);
    port_print("\n");
    port_exit(5);
}

#else

void trap(uint32_t cause, uint32_t address, uint32_t value, uint32_t stack)
{
    (void)cause;
    (void)address;
    (void)value;
    (void)stack;
    stop(5);
}

#endif
