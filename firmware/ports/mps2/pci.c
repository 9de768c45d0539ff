// pci.c: the PCI devices of QEMU's `virt`: shared memory, which is the flash, and a serial port.
#include "board.h"
#include "riscv.h"

#define SLOTS 32
#define SLOT_STRIDE 0x8000u
#define IVSHMEM 0x11101AF4u
#define SERIAL 0x00021B36u
#define SERIAL_PORT 0x1000u // of those behind PCI_PORTS_BASE

enum {
    // words of a device's configuration
    IDENTITY = 0,
    COMMAND = 1,
    BAR0 = 4,
    BAR2 = 6,
    BAR3 = 7,
    COMMAND_PORTS = 1 << 0,
    COMMAND_MEMORY = 1 << 1,
};

uint32_t pci_uart_base;
int pci_uart_irq;

void pci_start(void)
{
    bool has_flash = false;

    for (int slot = 0; slot < SLOTS; slot++) {
        volatile uint32_t *device = (volatile uint32_t *)(PCI_CONFIG_BASE + slot * SLOT_STRIDE);
        if (device[IDENTITY] == IVSHMEM) {
            device[BAR2] = PSRAM_BASE;
            device[BAR3] = 0;
            device[COMMAND] |= COMMAND_MEMORY;
            has_flash = true;
        } else if (device[IDENTITY] == SERIAL) {
            device[BAR0] = SERIAL_PORT;
            device[COMMAND] |= COMMAND_PORTS;
            pci_uart_base = PCI_PORTS_BASE + SERIAL_PORT;
            pci_uart_irq = PCI0_IRQn + slot % 4;
        }
    }
    if (!has_flash) {
        board_panic("no flash: QEMU needs -device ivshmem-plain,memdev=");
    }
}
