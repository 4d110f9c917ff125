/* Reset, vector table and faults of a Cortex-M, independent of the vendor's headers. */
@declarations@
extern uint32_t __ram_start[];
extern uint32_t __stack_limit[];
extern uint32_t __stack_top[];

int main(void);
void Reset_Handler(void);
void HardFault_Handler(void);
void Default_Handler(void);
void report_fault(const uint32_t *frame);

#define REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))
#define SCB_CCR REGISTER(0xE000ED14u)
#define SCB_CFSR REGISTER(0xE000ED28u)
#define SCB_HFSR REGISTER(0xE000ED2Cu)
#define SCB_BFAR REGISTER(0xE000ED38u)
#define SCB_CPACR REGISTER(0xE000ED88u)

@stop@

/* Objects that call functions of other files name the unwinder's entry points. Nothing unwinds here: without these the
 * linker would pull in the unwinder. */
__attribute__((weak)) void __aeabi_unwind_cpp_pr0(void);
__attribute__((weak)) void __aeabi_unwind_cpp_pr1(void);
void __aeabi_unwind_cpp_pr0(void) {}
void __aeabi_unwind_cpp_pr1(void) {}

void Reset_Handler(void)
{
#if defined(__ARM_ARCH) && __ARM_ARCH >= 8
    __asm__ volatile("msr msplim, %0" : : "r"(__stack_limit));
#endif
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
    SCB_CPACR |= 0xFu << 20; /* full access to the floating point and vector unit */
    __asm__ volatile("dsb\n\tisb" : : : "memory");
#endif
#if defined(__ARM_FEATURE_MVE)
    SCB_CCR |= 1u << 19; /* low-overhead branches */
    __asm__ volatile("dsb\n\tisb" : : : "memory");
#endif
@memory@
}

void Default_Handler(void)
{
    stop(4);
}

void NMI_Handler(void) __attribute__((weak, alias("Default_Handler")));
void MemManage_Handler(void) __attribute__((weak, alias("HardFault_Handler")));
void BusFault_Handler(void) __attribute__((weak, alias("HardFault_Handler")));
void UsageFault_Handler(void) __attribute__((weak, alias("HardFault_Handler")));
void SecureFault_Handler(void) __attribute__((weak, alias("HardFault_Handler")));
void SVC_Handler(void) __attribute__((weak, alias("Default_Handler")));
void DebugMon_Handler(void) __attribute__((weak, alias("Default_Handler")));
void PendSV_Handler(void) __attribute__((weak, alias("Default_Handler")));
void SysTick_Handler(void) __attribute__((weak, alias("Default_Handler")));

typedef void (*handler)(void);
struct vectors {
    uint32_t *stack;
    handler handlers[15];
};

/* Handlers of the device's own interrupts follow, in the order of the data sheet, if you define an array of them:
 * __attribute__((section(".vectors.device"), used)) static void (*const device_vectors[])(void) = {...}; */
__attribute__((section(".vectors"), used)) const struct vectors vector_table = {
    __stack_top,
    {Reset_Handler, NMI_Handler, HardFault_Handler, MemManage_Handler, BusFault_Handler, UsageFault_Handler,
     SecureFault_Handler, 0, 0, 0, SVC_Handler, DebugMon_Handler, 0, PendSV_Handler, SysTick_Handler},
};

#ifdef TVM_CASCADE_MEASURE

@print_hex@

void report_fault(const uint32_t *frame)
{
    port_print("fault:");
    /* After a stack overflow the frame itself may lie outside of RAM. */
    if (frame >= __ram_start && frame + 8 <= __stack_top) {
        print_hex(" pc=", frame[6]);
        print_hex(" lr=", frame[5]);
    }
    print_hex(" sp=", (uint32_t)(uintptr_t)frame);
    print_hex(" limit=", (uint32_t)(uintptr_t)__stack_limit);
#if defined(__ARM_ARCH_ISA_THUMB) && __ARM_ARCH_ISA_THUMB >= 2
    print_hex(" cfsr=", SCB_CFSR);
    print_hex(" hfsr=", SCB_HFSR);
    print_hex(" bfar=", SCB_BFAR);
#endif
    port_print("\n");
    port_exit(5);
}

#else

void report_fault(const uint32_t *frame)
{
    (void)frame;
    stop(5);
}

#endif

/* The stack may be what has failed: report from the top of it. */
__attribute__((naked)) void HardFault_Handler(void)
{
    __asm__ volatile("mrs r0, msp\n\t"
#if defined(__ARM_ARCH) && __ARM_ARCH >= 8
                     "movs r1, #0\n\t"
                     "msr msplim, r1\n\t"
#endif
                     "ldr r1, =__stack_top\n\t"
                     "mov sp, r1\n\t"
                     "ldr r2, =report_fault\n\t"
                     "bx r2\n\t"
                     ".ltorg");
}
