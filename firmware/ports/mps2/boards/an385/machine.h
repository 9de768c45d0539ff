// machine.h: the MPS2 AN385 as QEMU has them.
#ifndef MPS2_MACHINE_H
#define MPS2_MACHINE_H

#define CLOCK_HZ 25000000u    // of the processor and of SysTick
#define UART_BASE 0x40004000u // UART0; the others follow at UART_STRIDE
#define UART_STRIDE 0x1000u
#define UART_COUNT 2 // 0 is the terminal
#define ETHERNET_BASE 0x40200000u
#define PSRAM_BASE 0x21000000 // in a file of the host's, if QEMU is told so: then it outlives QEMU
#define INTERRUPTS 32

typedef enum {
    SysTick_IRQn = -1,
    UART0_RX_IRQn = 0,
    UART0_TX_IRQn = 1,
    UART1_RX_IRQn = 2,
    UART1_TX_IRQn = 3,
    ETHERNET_IRQn = 13,
} IRQn_Type;

#define __NVIC_PRIO_BITS 3
#define __Vendor_SysTickConfig 0
#include "core_cm3.h"

#endif
