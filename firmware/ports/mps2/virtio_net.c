// virtio_net.c: QEMU's virtio-net-device by its two rings. The interrupt only wakes the processor: frames are fetched when
// MicroPython waits.
#include <string.h>

#include "board.h"
#include "nic.h"
#include "riscv.h"

#define RING 16 // descriptors of each ring
#define PAGE 4096
#define HEADER_BYTES 10
#define NETWORK_CARD 1
#define FEATURE_MAC (1u << 5)

// Words of the device's registers, in the form before version 1 of the standard.
enum {
    DEVICE_ID = 0x008 / 4,
    GUEST_FEATURES = 0x020 / 4,
    GUEST_PAGE_SIZE = 0x028 / 4,
    QUEUE_SELECT = 0x030 / 4,
    QUEUE_SIZE = 0x038 / 4,
    QUEUE_ALIGN = 0x03C / 4,
    QUEUE_PAGE = 0x040 / 4,
    QUEUE_NOTIFY = 0x050 / 4,
    INTERRUPT_STATUS = 0x060 / 4,
    INTERRUPT_ACKNOWLEDGE = 0x064 / 4,
    STATUS = 0x070 / 4,
    CONFIG = 0x100 / 4,
};

enum {
    STATUS_ACKNOWLEDGED = 1,
    STATUS_DRIVER = 2,
    STATUS_READY = 4,
    DESCRIPTOR_FOR_DEVICE = 2, // the device writes there
    NO_INTERRUPT = 1,
    RECEIVING = 0,
    SENDING = 1,
};

typedef struct {
    struct {
        uint64_t address;
        uint32_t size;
        uint16_t flags, next;
    } descriptors[RING];
    volatile uint16_t flags, offered; // ours
    uint16_t ring[RING];
    volatile struct {
        uint16_t flags, done;
        struct {
            uint32_t descriptor, size;
        } ring[RING];
    } used __attribute__((aligned(PAGE))); // the device's
} queue_t;

typedef struct {
    uint8_t header[HEADER_BYTES];
    uint8_t frame[NIC_FRAME_MAX];
} __attribute__((aligned(4))) buffer_t;

static queue_t queues[2] __attribute__((aligned(PAGE)));
static buffer_t buffers[2][RING];
static uint16_t seen; // frames that were fetched
static volatile uint32_t *card;
static int card_irq;

static void barrier(void)
{
    __asm volatile("fence" : : : "memory");
}

static void offer(int number, int descriptor)
{
    queue_t *queue = &queues[number];

    queue->ring[queue->offered % RING] = descriptor;
    barrier();
    queue->offered++;
    barrier();
    card[QUEUE_NOTIFY] = number;
}

static void start_queue(int number)
{
    memset(&queues[number], 0, sizeof(queues[number]));
    card[QUEUE_SELECT] = number;
    card[QUEUE_SIZE] = RING;
    card[QUEUE_ALIGN] = PAGE;
    card[QUEUE_PAGE] = (uint32_t)&queues[number] / PAGE;
    for (int i = 0; i < RING; i++) {
        queues[number].descriptors[i].address = (uint32_t)&buffers[number][i];
        queues[number].descriptors[i].size = sizeof(buffers[number][i].header) + sizeof(buffers[number][i].frame);
        queues[number].descriptors[i].flags = number == RECEIVING ? DESCRIPTOR_FOR_DEVICE : 0;
    }
}

static void on_interrupt(void)
{
    queues[RECEIVING].flags = NO_INTERRUPT;
    card[INTERRUPT_ACKNOWLEDGE] = card[INTERRUPT_STATUS];
    board_wake();
}

bool nic_start(uint8_t mac[6])
{
    for (int i = 0; i < VIRTIO_COUNT && card == NULL; i++) {
        volatile uint32_t *device = (volatile uint32_t *)(VIRTIO_BASE + i * VIRTIO_STRIDE);
        if (device[DEVICE_ID] == NETWORK_CARD) {
            card = device;
            card_irq = VIRTIO0_IRQn + i;
        }
    }
    if (card == NULL) {
        return false;
    }
    card[STATUS] = 0;
    card[STATUS] = STATUS_ACKNOWLEDGED | STATUS_DRIVER;
    card[GUEST_FEATURES] = FEATURE_MAC;
    card[GUEST_PAGE_SIZE] = PAGE;
    start_queue(RECEIVING);
    start_queue(SENDING);
    queues[SENDING].flags = NO_INTERRUPT;
    seen = 0;
    const volatile uint8_t *config = (const volatile uint8_t *)&card[CONFIG];
    for (int i = 0; i < 6; i++) {
        mac[i] = config[i];
    }
    card[STATUS] = STATUS_ACKNOWLEDGED | STATUS_DRIVER | STATUS_READY;
    for (int i = 0; i < RING; i++) {
        offer(RECEIVING, i);
    }
    cpu_on_interrupt(card_irq, on_interrupt);
    cpu_interrupt(card_irq, true);
    return true;
}

void nic_stop(void)
{
    cpu_interrupt(card_irq, false);
    card[STATUS] = 0;
}

void nic_send(const void *frame, size_t size)
{
    queue_t *queue = &queues[SENDING];
    int descriptor = queue->offered % RING;

    while ((uint16_t)(queue->offered - queue->used.done) == RING) {
    }
    memcpy(buffers[SENDING][descriptor].frame, frame, size);
    queue->descriptors[descriptor].size = HEADER_BYTES + size;
    offer(SENDING, descriptor);
}

size_t nic_receive(void *frame)
{
    queue_t *queue = &queues[RECEIVING];

    if (queue->used.done == seen) {
        return 0;
    }
    barrier();
    uint32_t descriptor = queue->used.ring[seen % RING].descriptor;
    size_t size = queue->used.ring[seen % RING].size - HEADER_BYTES;
    seen++;
    memcpy(frame, buffers[RECEIVING][descriptor].frame, size);
    offer(RECEIVING, descriptor);
    return size;
}

void nic_wake_again(void)
{
    queues[RECEIVING].flags = 0;
}
