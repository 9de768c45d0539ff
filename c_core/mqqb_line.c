/* mqqb_line.c: see mqqb_line.h for the contract. */
#include <string.h>

#include "mqqb_line.h"

#ifndef MQQB_ASSERT
#include <assert.h>
#define MQQB_ASSERT(condition) assert(condition)
#endif

#define CRC_BYTES 4u
#define CRC_OF_ALL 0x2144DF1Cu /* of anything with its own CRC behind it */

uint32_t mqqb_crc32(uint32_t value, const uint8_t *in, size_t size)
{
    /* For each half of a byte: a table for whole ones is a kilobyte. */
    static const uint32_t table[16] = {
        0x00000000u, 0x1DB71064u, 0x3B6E20C8u, 0x26D930ACu, 0x76DC4190u, 0x6B6B51F4u, 0x4DB26158u, 0x5005713Cu,
        0xEDB88320u, 0xF00F9344u, 0xD6D6A3E8u, 0xCB61B38Cu, 0x9B64C2B0u, 0x86D3D2D4u, 0xA00AE278u, 0xBDBDF21Cu,
    };
    uint32_t crc = ~value;

    for (; size != 0; size--) {
        crc ^= *in++;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

void mqqb_seal(uint8_t *frame, size_t size)
{
    uint8_t *code = frame;
    uint8_t *end = frame + 1 + size;
    uint32_t crc;

    MQQB_ASSERT(size <= MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD);
    crc = mqqb_crc32(0, frame + 1, size);
    for (size = CRC_BYTES; size != 0; size--) {
        *end++ = (uint8_t)crc;
        crc >>= 8;
    }
    *end = 0;
    for (uint8_t *at = frame + 1; at <= end; at++) {
        if (*at == 0) {
            *code = (uint8_t)(at - code);
            code = at;
        }
    }
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
        memcpy(at + 1, head, MQQB_FRAME_HEAD);
        if (size != 0) {
            memcpy(at + 1 + MQQB_FRAME_HEAD, data, size);
        }
        mqqb_seal(at, MQQB_FRAME_HEAD + size);
        at += MQQB_FRAME_OVERHEAD + MQQB_FRAME_HEAD + size;
        if (++head[3] == 0) {
            head[4]++;
        }
        data += size;
        count -= size;
    } while (count != 0);
    return (size_t)(at - out);
}
