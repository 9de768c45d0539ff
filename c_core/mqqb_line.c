/* SPDX-License-Identifier: MIT */
/* mqqb_line.c: see mqqb_line.h for the contract. */
#include "mqqb_line.h"

#ifndef MQQB_ASSERT
#include <assert.h>
#define MQQB_ASSERT(condition) assert(condition)
#endif

#define CRC_BYTES 4u
#define CRC_OF_ALL 0x2144DF1Cu /* CRC of any bytes followed by their own CRC */

/* For half a byte: a table for whole bytes takes a kilobyte. */
static const uint32_t table[16] = {
    0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu, 0x76DC4190u, 0x6B6B51F4u, 0x4DB26158u, 0x5005713Cu,
    0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu, 0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu,
};

/* Add half a byte to the inverted CRC. */
static uint32_t half(uint32_t crc)
{
    return crc >> 4 ^ table[crc & 15];
}

uint32_t mqqb_crc32(uint32_t value, const uint8_t *in, size_t size)
{
    uint32_t crc = ~value;

    for (; size != 0; size--) {
        crc = half(half(crc ^ *in++));
    }
    return ~crc;
}

/* A frame in the making: the pending code, the next byte, and the CRC of the bytes before it. */
typedef struct {
    uint8_t *code, *at;
    uint32_t crc;
} frame_t;

/* Append `size` bytes of content, in one pass. in: may be their destination, too. */
static void add(frame_t *frame, const uint8_t *in, size_t size)
{
    uint8_t *code = frame->code, *at = frame->at;
    uint32_t crc = frame->crc;

    for (; size != 0; size--) {
        const uint8_t byte = *in++;
        crc = half(half(crc ^ byte));
        *at = byte;
        if (byte == 0) {
            *code = (uint8_t)(at - code);
            code = at;
        }
        at++;
    }
    frame->code = code;
    frame->at = at;
    frame->crc = crc;
}

/* Returns the end of the frame, behind its zero. */
static uint8_t *finish(frame_t *frame)
{
    const uint32_t crc = ~frame->crc;
    uint8_t bytes[CRC_BYTES];

    for (unsigned i = 0; i < CRC_BYTES; i++) {
        bytes[i] = (uint8_t)(crc >> 8 * i);
    }
    add(frame, bytes, CRC_BYTES);
    *frame->code = (uint8_t)(frame->at - frame->code);
    *frame->at = 0;
    return frame->at + 1;
}

void mqqb_seal(uint8_t *frame, size_t size)
{
    frame_t made = {frame, frame + 1, ~(uint32_t)0};

    MQQB_ASSERT(size <= MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD);
    add(&made, frame + 1, size);
    finish(&made);
}

int mqqb_unseal(uint8_t *frame, size_t size)
{
    size_t at = 0;

    if (size < 1 + CRC_BYTES || size >= MQQB_FRAME_MAX) {
        return 0;
    }
    while (at < size) {
        const size_t step = frame[at];
        if (step == 0) {
            return 0;
        }
        frame[at] = 0;
        at += step;
    }
    return at == size && mqqb_crc32(0, frame + 1, size - 1) == CRC_OF_ALL;
}

size_t mqqb_frames(uint8_t *out, uint8_t *head, const uint8_t *data, size_t count, size_t most)
{
    uint8_t *at = out;

    MQQB_ASSERT(most != 0 && most <= MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD - MQQB_FRAME_HEAD);
    do {
        const size_t size = count < most ? count : most;
        frame_t made = {at, at + 1, ~(uint32_t)0};
        add(&made, head, MQQB_FRAME_HEAD);
        add(&made, data, size);
        at = finish(&made);
        if (++head[3] == 0) {
            head[4]++;
        }
        data += size;
        count -= size;
    } while (count != 0);
    return (size_t)(at - out);
}
