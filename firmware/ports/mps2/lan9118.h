// lan9118.h: the SMSC LAN9118 Ethernet controller: frames in and out, no more.
#ifndef MPS2_LAN9118_H
#define MPS2_LAN9118_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define LAN9118_FRAME_MAX 1514 // bytes, without the checksum

// mac becomes the address that the chip has from its EEPROM: QEMU's -nic mac=
void lan9118_start(uint8_t mac[6]);
void lan9118_stop(void);
void lan9118_send(const void *frame, size_t size);
// The size of the next frame that came whole, copied to frame; 0: there is none.
size_t lan9118_receive(void *frame);
// The interrupt for the next frame, which wakes the processor once.
void lan9118_wake_again(void);

#endif
