// riscv.h: what only the RISC-V board has: handlers that are set at run time, and PCI devices.
#ifndef MPS2_RISCV_H
#define MPS2_RISCV_H

#include <stdint.h>

// Called in interrupt context.
void cpu_on_interrupt(int number, void (*handler)(void));

// ---- pci.c

// Gives the devices that this board knows their addresses; without the one that holds the flash the board ends here.
void pci_start(void);
// Of the serial port; 0: the machine was started without one.
extern uint32_t pci_uart_base;
extern int pci_uart_irq;

#endif
