// lan9118.c: the LAN9118 by its FIFOs. The interrupt only wakes the processor: frames are fetched when MicroPython waits.
#include "nic.h"

#include "board.h"

#define REGISTER(offset) (*(volatile uint32_t *)(ETHERNET_BASE + (offset)))
#define RX_DATA REGISTER(0x00)
#define TX_DATA REGISTER(0x20)
#define RX_STATUS REGISTER(0x40)
#define TX_STATUS REGISTER(0x48)
#define INTERRUPT_CONFIG REGISTER(0x54)
#define INTERRUPT_STATUS REGISTER(0x58)
#define INTERRUPT_ENABLE REGISTER(0x5C)
#define FIFO_INTERRUPT REGISTER(0x68)
#define TX_CONFIG REGISTER(0x70)
#define HARDWARE_CONFIG REGISTER(0x74)
#define RX_FIFO_INFO REGISTER(0x7C)
#define TX_FIFO_INFO REGISTER(0x80)
#define MAC_COMMAND REGISTER(0xA4)
#define MAC_DATA REGISTER(0xA8)

enum {
    // behind MAC_COMMAND
    MAC_CONTROL = 1,
    MAC_ADDRESS_HIGH = 2,
    MAC_ADDRESS_LOW = 3,
};

#define MAC_BUSY (1u << 31)
#define MAC_READ (1u << 30)
#define MAC_FULL_DUPLEX (1u << 20)
#define MAC_TX_ENABLE (1u << 3)
#define MAC_RX_ENABLE (1u << 2)
#define HARDWARE_RESET (1u << 0)
#define HARDWARE_MUST_BE_ONE (1u << 20)
#define HARDWARE_TX_FIFO_5_KIB (5u << 16)
#define INTERRUPT_PUSH_PULL_HIGH ((1u << 8) | (1u << 4) | (1u << 0))
#define INTERRUPT_RX_STATUS_LEVEL (1u << 3)
#define TX_ON (1u << 1)
#define TX_FIRST_SEGMENT (1u << 13)
#define TX_LAST_SEGMENT (1u << 12)
#define RX_ERROR (1u << 15)
#define CHECKSUM_BYTES 4

static void mac_command(uint32_t command)
{
    MAC_COMMAND = MAC_BUSY | command;
    while (MAC_COMMAND & MAC_BUSY) {
    }
}

static uint32_t mac_read(uint32_t number)
{
    mac_command(MAC_READ | number);
    return MAC_DATA;
}

static void mac_write(uint32_t number, uint32_t value)
{
    MAC_DATA = value;
    mac_command(number);
}

bool nic_start(uint8_t mac[6])
{
    HARDWARE_CONFIG = HARDWARE_RESET;
    while (HARDWARE_CONFIG & HARDWARE_RESET) {
    }
    HARDWARE_CONFIG = HARDWARE_MUST_BE_ONE | HARDWARE_TX_FIFO_5_KIB;
    FIFO_INTERRUPT = 0; // a first frame is enough
    uint32_t low = mac_read(MAC_ADDRESS_LOW);
    uint32_t high = mac_read(MAC_ADDRESS_HIGH);
    for (int i = 0; i < 4; i++) {
        mac[i] = low >> 8 * i;
    }
    mac[4] = high;
    mac[5] = high >> 8;
    TX_CONFIG = TX_ON;
    mac_write(MAC_CONTROL, MAC_FULL_DUPLEX | MAC_TX_ENABLE | MAC_RX_ENABLE);
    INTERRUPT_CONFIG = INTERRUPT_PUSH_PULL_HIGH;
    nic_wake_again();
    cpu_interrupt(ETHERNET_IRQn, true);
    return true;
}

void nic_stop(void)
{
    cpu_interrupt(ETHERNET_IRQn, false);
    INTERRUPT_ENABLE = 0;
    mac_write(MAC_CONTROL, 0);
    TX_CONFIG = 0;
}

void nic_send(const void *frame, size_t size)
{
    const uint32_t *words = frame;

    TX_DATA = TX_FIRST_SEGMENT | TX_LAST_SEGMENT | size;
    TX_DATA = size << 16 | size;
    for (size_t i = 0; i < (size + 3) / 4; i++) {
        TX_DATA = words[i];
    }
    while (TX_FIFO_INFO >> 16 & 0xFF) {
        (void)TX_STATUS; // one for each frame sent; nobody asks
    }
}

size_t nic_receive(void *frame)
{
    while (RX_FIFO_INFO >> 16 & 0xFF) {
        uint32_t status = RX_STATUS;
        size_t size = status >> 16 & 0x3FFF;
        bool whole = !(status & RX_ERROR) && size > CHECKSUM_BYTES && size <= NIC_FRAME_MAX + CHECKSUM_BYTES;
        uint32_t *words = frame;

        for (size_t i = 0; i < (size + 3) / 4; i++) {
            uint32_t word = RX_DATA;
            if (whole) {
                words[i] = word;
            }
        }
        if (whole) {
            return size - CHECKSUM_BYTES;
        }
    }
    return 0;
}

void nic_wake_again(void)
{
    INTERRUPT_STATUS = INTERRUPT_RX_STATUS_LEVEL;
    INTERRUPT_ENABLE = INTERRUPT_RX_STATUS_LEVEL;
}

void ETHERNET_Handler(void)
{
    INTERRUPT_ENABLE = 0;
    board_wake();
}
