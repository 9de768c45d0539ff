/* SPDX-License-Identifier: MIT */
/* mqqb_line.h: frames on a serial line: content and its CRC-32, COBS-encoded, then a zero byte. The protocol, in
 * firmware/mqqb/line.py, also works without this file, some ten times slower.
 *
 * No allocation, no globals except a constant table, no clock. Copy mqqb_line.h and mqqb_line.c, without mqqb.c. */
#ifndef MQQB_LINE_H
#define MQQB_LINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MQQB_FRAME_MAX 255u    /* bytes of a frame with its final zero; so no COBS code is 0xFF */
#define MQQB_FRAME_OVERHEAD 6u /* of them outside the content */

/* Make a frame in place, size + MQQB_FRAME_OVERHEAD bytes. frame[1] to frame[size] are the content, at most
 * MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD bytes (asserted). */
void mqqb_seal(uint8_t *frame, size_t size);

/* Decode `size` bytes from the wire, without the final zero, in place. 1: frame[1] to frame[size - 5] are the
 * content. 0: not a frame; the bytes are spoiled. */
int mqqb_unseal(uint8_t *frame, size_t size);

#define MQQB_FRAME_HEAD                                                                                                \
    7u /* bytes of content in front of the payload: kind, two numbers, u16 number of the frame, u16 */

/* Make frames of `count` bytes of data, each with the head and at most `most` bytes of payload, at least one frame.
 * The head's number advances. most: 1 to MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD - MQQB_FRAME_HEAD (asserted). Returns
 * the bytes written: count, and MQQB_FRAME_OVERHEAD + MQQB_FRAME_HEAD for each frame. */
size_t mqqb_frames(uint8_t *out, uint8_t *head, const uint8_t *data, size_t count, size_t most);

/* The CRC-32 of Ethernet and zlib of `size` bytes, continued from `value`, at first 0. */
uint32_t mqqb_crc32(uint32_t value, const uint8_t *in, size_t size);

#ifdef __cplusplus
}
#endif

#endif
