// machine.h: QEMU's RISC-V machine `virt`. Its second UART, and the memory that holds the flash, are PCI devices.
#ifndef MPS2_MACHINE_H
#define MPS2_MACHINE_H

#define CLOCK_HZ 10000000u // of mtime, which is all that counts here
#define UART_BASE 0x10000000u
#define UART_COUNT 2 // 0 is the terminal
#define UART0_IRQn 10
#define VIRTIO_BASE 0x10001000u
#define VIRTIO_STRIDE 0x1000u
#define VIRTIO_COUNT 8
#define VIRTIO0_IRQn 1
#define PCI_CONFIG_BASE 0x30000000u
#define PCI_PORTS_BASE 0x03000000u
#define PCI0_IRQn 32          // and three more: a device has that of its slot
#define PSRAM_BASE 0x40000000 // where PCI devices have memory; in a file of the host's, which outlives QEMU
#define INTERRUPTS 64

#endif
