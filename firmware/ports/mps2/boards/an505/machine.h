// machine.h: the MPS2 AN505 as QEMU has it. All of it is secure, as after a reset.
#ifndef MPS2_MACHINE_H
#define MPS2_MACHINE_H

#define CLOCK_HZ 20000000u    // of the processor and of SysTick
#define UART_BASE 0x50200000u // UART0; the others follow at UART_STRIDE
#define UART_STRIDE 0x1000u
#define UART_COUNT 2 // 0 is the terminal
#define ETHERNET_BASE 0x52000000u
#define PSRAM_BASE 0x80000000 // in a file of the host's, if QEMU is told so: then it outlives QEMU
#define INTERRUPTS 64

typedef enum {
    SysTick_IRQn = -1,
    UART0_RX_IRQn = 32,
    UART0_TX_IRQn = 33,
    UART1_RX_IRQn = 34,
    UART1_TX_IRQn = 35,
    ETHERNET_IRQn = 48,
} IRQn_Type;

#define __CM33_REV 1
#define __NVIC_PRIO_BITS 3
#define __Vendor_SysTickConfig 0
#define __FPU_PRESENT 1
#define __DSP_PRESENT 1
#define __SAUREGION_PRESENT 1
#include "core_cm33.h"

#endif
