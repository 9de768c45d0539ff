/* SPDX-License-Identifier: MIT */
/* mqqb_line.h: frames on a serial line: content with its CRC-32, COBS-encoded, and a zero byte behind it. firmware/mqqb/line.py
 * says what the content is and how a line is used; it does without this file too, some ten times slower.
 *
 * No allocation, no globals but a constant table, no clock, as mqqb.h. Copy mqqb_line.h and mqqb_line.c; mqqb.c is not needed. */
#ifndef MQQB_LINE_H
#define MQQB_LINE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MQQB_FRAME_MAX 255u    /* bytes of a frame with the zero behind it; so no COBS code is 0xFF */
#define MQQB_FRAME_OVERHEAD 6u /* of them that are not content */

/* frame[1] to frame[size] are the content, at most MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD bytes (asserted). Makes a frame of it, in
 * place: size + MQQB_FRAME_OVERHEAD bytes. */
void mqqb_seal(uint8_t *frame, size_t size);

/* The reverse, for `size` bytes without the zero behind them: from the wire, so anything may be in them. 1: frame[1] to
 * frame[size - 5] are the content. 0: it is no frame, and spoiled. */
int mqqb_unseal(uint8_t *frame, size_t size);

#define MQQB_FRAME_HEAD                                                                                                \
    7u /* bytes of content in front of the payload: kind, two numbers, u16 number of the frame, u16 */

/* Make frames of `count` bytes of data, each with the head and at most `most` of them (1 to MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD -
 * MQQB_FRAME_HEAD, asserted); one without payload if count is 0. The number in the head goes on. Returns the bytes written to out:
 * count, and MQQB_FRAME_OVERHEAD + MQQB_FRAME_HEAD for each frame. */
size_t mqqb_frames(uint8_t *out, uint8_t *head, const uint8_t *data, size_t count, size_t most);

/* The CRC-32 of Ethernet and zlib of `size` bytes, carried on from the value of those before them; 0: there are none. */
uint32_t mqqb_crc32(uint32_t value, const uint8_t *in, size_t size);

#ifdef __cplusplus
}
#endif

#endif
