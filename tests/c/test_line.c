/* test_line.c: frames of a serial line, judged by an encoder of their own. */
#include "check.h"
#include "mqqb_line.h"

#define CONTENT_MAX (MQQB_FRAME_MAX - MQQB_FRAME_OVERHEAD)

/* zlib's CRC-32, a bit at a time. */
static uint32_t crc_of(const uint8_t *in, size_t size)
{
    uint32_t crc = 0xFFFFFFFFu;

    while (size-- != 0) {
        crc ^= *in++;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc >> 1 ^ (0xEDB88320u & (0u - (crc & 1)));
        }
    }
    return ~crc;
}

static size_t encode(uint8_t *out, const uint8_t *content, size_t size)
{
    uint8_t all[CONTENT_MAX + 5];
    const uint32_t crc = crc_of(content, size);
    size_t code = 0, at = 1;

    memcpy(all, content, size);
    for (unsigned i = 0; i < 4; i++) {
        all[size + i] = (uint8_t)(crc >> 8 * i);
    }
    for (size_t i = 0; i < size + 4; i++) {
        if (all[i] == 0) {
            out[code] = (uint8_t)(at - code);
            code = at++;
        } else {
            out[at++] = all[i];
        }
    }
    out[code] = (uint8_t)(at - code);
    out[at++] = 0;
    return at;
}

static void fill(uint8_t *content, size_t size, unsigned zeros)
{
    for (size_t i = 0; i < size; i++) {
        content[i] = below(zeros) == 0 ? (uint8_t)(1 + below(255)) : 0;
    }
}

static void test_frames_of_every_size(void)
{
    uint8_t content[CONTENT_MAX], frame[MQQB_FRAME_MAX + 1], expected[MQQB_FRAME_MAX + 1];

    for (size_t size = 0; size <= CONTENT_MAX; size++) {
        for (unsigned zeros = 1; zeros < 5; zeros++) {
            fill(content, size, zeros);
            memcpy(frame + 1, content, size);
            frame[size + MQQB_FRAME_OVERHEAD] = 0x5A;
            mqqb_seal(frame, size);
            CHECK_EQ(encode(expected, content, size), size + MQQB_FRAME_OVERHEAD);
            CHECK_BYTES(frame, expected, size + MQQB_FRAME_OVERHEAD);
            CHECK_EQ(frame[size + MQQB_FRAME_OVERHEAD], 0x5A);
            CHECK_EQ(mqqb_unseal(frame, size + MQQB_FRAME_OVERHEAD - 1), 1);
            CHECK_BYTES(frame + 1, content, size);
        }
    }
}

static void test_damage(void)
{
    uint8_t content[60], whole[80], frame[80];

    for (unsigned round = 0; round < 200; round++) {
        fill(content, sizeof content, 1 + round % 4);
        content[0] = 1; /* five zeros are a frame of no content */
        const size_t size = encode(whole, content, sizeof content) - 1;
        for (size_t at = 0; at < size; at++) {
            memcpy(frame, whole, size);
            frame[at] ^= (uint8_t)(1 + below(255));
            CHECK_EQ(mqqb_unseal(frame, size), 0);
            memcpy(frame, whole, size);
            CHECK_EQ(mqqb_unseal(frame, at), 0);
            memcpy(frame, whole, at);
            memcpy(frame + at, whole + at + 1, size - at - 1);
            if (memcmp(frame, whole, size - 1) != 0) {
                CHECK_EQ(mqqb_unseal(frame, size - 1), 0);
            }
        }
    }
}

static void test_anything(void)
{
    uint8_t frame[300];

    for (unsigned round = 0; round < 100000; round++) {
        const size_t size = below(sizeof frame);
        for (size_t i = 0; i < size; i++) {
            frame[i] = (uint8_t)below(round & 1 ? 256 : 6);
        }
        CHECK_EQ(mqqb_unseal(frame, size), 0);
    }
}

static void test_a_frame_that_is_too_long(void)
{
    uint8_t content[CONTENT_MAX + 1], frame[MQQB_FRAME_MAX + 2];

    fill(content, sizeof content, 2);
    CHECK_EQ(encode(frame, content, sizeof content), MQQB_FRAME_MAX + 1);
    CHECK_EQ(mqqb_unseal(frame, MQQB_FRAME_MAX), 0);
}

static void test_frames_of_a_stream(void)
{
    uint8_t data[1000], out[3000], expected[3000], content[CONTENT_MAX];
    uint8_t head[MQQB_FRAME_HEAD] = {2, 7, 9, 0xFE, 0xFF, 0, 3};
    unsigned next = 0xFFFE;

    fill(data, sizeof data, 2);
    for (unsigned round = 0; round < 2000; round++) {
        const size_t count = below(2) != 0 ? below(sizeof data) : below(4),
                     most = below(2) != 0 ? 242 : 10 + below(233);
        size_t at = 0, from = 0;
        do {
            const size_t size = count - from < most ? count - from : most;
            memcpy(content, head, sizeof head);
            content[3] = (uint8_t)next;
            content[4] = (uint8_t)(next >> 8);
            next = (next + 1) & 0xFFFF;
            memcpy(content + sizeof head, data + from, size);
            at += encode(expected + at, content, sizeof head + size);
            from += size;
        } while (from < count);
        CHECK_EQ(mqqb_frames(out, head, data, count, most), at);
        CHECK_BYTES(out, expected, at);
        CHECK_EQ(head[3] | head[4] << 8, next);
    }
}

#ifdef ASSERT_HOOK_H
static void test_a_caller_s_mistake_is_asserted(void)
{
    uint8_t frame[300] = {0};

    CHECK_ASSERTS(mqqb_seal(frame, CONTENT_MAX + 1));
    CHECK_ASSERTS(mqqb_frames(frame, frame, frame, 1, 0));
    CHECK_ASSERTS(mqqb_frames(frame, frame, frame, 1, CONTENT_MAX - MQQB_FRAME_HEAD + 1));
    CHECK_EQ(frame[0], 0);
}
#endif

int main(int argc, char **argv)
{
    seed_random(argc, argv, 255);
    RUN("mqqb_line.h", test_frames_of_every_size);
    RUN("mqqb_line.h", test_damage);
    RUN("mqqb_line.h", test_anything);
    RUN("mqqb_line.h", test_a_frame_that_is_too_long);
    RUN("mqqb_line.h", test_frames_of_a_stream);
#ifdef ASSERT_HOOK_H
    RUN("mqqb_line.h", test_a_caller_s_mistake_is_asserted);
#endif
    return summary("test_line");
}
