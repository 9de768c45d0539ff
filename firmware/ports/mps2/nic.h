// nic.h: the board's network controller: frames in and out, no more. lan9118.c or virtio_net.c.
#ifndef MPS2_NIC_H
#define MPS2_NIC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NIC_FRAME_MAX 1514 // bytes, without the checksum

// mac becomes the address that QEMU's mac= gives; false: the machine was started without a network.
bool nic_start(uint8_t mac[6]);
void nic_stop(void);
void nic_send(const void *frame, size_t size);
// The size of the next frame that came whole, copied to frame, which has room for a checksum behind it; 0: there is none.
size_t nic_receive(void *frame);
// The interrupt for the next frame, which wakes the processor once.
void nic_wake_again(void);

#endif
