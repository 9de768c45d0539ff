/* test_mqqb.c: the core linked as it is: every call of cases.h gives what it must, and mistakes of the caller are asserted. */
#include "mqqb.h"
#include "check.h"

#include "cases.h"

/* The bytes of a structure stand in words as a little-endian machine has them. */
static void swap_bytes(uint32_t part, uint32_t *words)
{
    for (uint32_t i = byte_words[part][0]; i < (uint32_t)byte_words[part][0] + byte_words[part][1]; i++) {
        const uint32_t word = words[i];
        for (int k = 0; k < 4; k++) {
            ((uint8_t *)&words[i])[k] = (uint8_t)(word >> 8 * k);
        }
    }
}

/* w: the arguments, one behind the other, and what they are afterwards. data: the bytes to read, or room for those to write. */
static uint32_t call(uint32_t function, uint32_t *w, uint8_t *data, size_t size)
{
    uint32_t out[32];
    const mqqb_part part = (mqqb_part)w[0];

    switch (function) {
    case UNPACK:
        for (int i = 0; i < 32; i++) {
            out[i] = 7;
        }
        const mqqb_status status = mqqb_unpack(part, out, data, size);
        if (status == MQQB_OK) {
            swap_bytes(part, out);
        }
        memcpy(w, out, sizeof out);
        return (uint32_t)status;
    case PACK:
        memcpy(out, w + 1, sizeof out);
        swap_bytes(part, out);
        mqqb_pack(part, out, data, mqqb_part_size(part));
        return 0;
    case FRAME:
        return (uint32_t)mqqb_frame(data, size, w);
    case PART_SIZE:
        return (uint32_t)mqqb_part_size(part);
    case PART_WORDS:
        return (uint32_t)mqqb_part_words(part);
    case PACKET_TOTAL:
        return mqqb_packet_total(w[0], w[1]);
    case SERIAL_AFTER:
        return (uint32_t)mqqb_serial_after(w[0], w[1]);
    case IS_ACKED:
        return (uint32_t)mqqb_is_acked(w[0], w[1], w[2]);
    case SESSION_INIT:
        mqqb_session_init((mqqb_session *)w, w[12]);
        return 0;
    case SESSION_CAN_SEND:
        return (uint32_t)mqqb_session_can_send((mqqb_session *)w);
    case SESSION_SENT:
        mqqb_session_sent((mqqb_session *)w, (int)w[12]);
        return 0;
    case SESSION_RECEIVED:
        mqqb_session_received((mqqb_session *)w, (int)w[12]);
        return 0;
    case SESSION_STORED:
        return (uint32_t)mqqb_session_stored((mqqb_session *)w, (int)w[12]);
    case SESSION_UNACKED_RECEIVED:
        return mqqb_session_unacked_received((mqqb_session *)w);
    case SESSION_UNACKED_SENT:
        return mqqb_session_unacked_sent((mqqb_session *)w);
    case SESSION_FILL:
        mqqb_session_fill((mqqb_session *)w, (mqqb_session_header *)(w + 12));
        return 0;
    case SESSION_CHECK:
        return (uint32_t)mqqb_session_check((mqqb_session *)w, (mqqb_session_header *)(w + 12), (int)w[19]);
    case TX_COMPARE:
        return (uint32_t)mqqb_tx_compare(w[0], w[1], w[2], w[3]);
    case ACCEPT:
        return (uint32_t)mqqb_accept((mqqb_incoming *)w, (mqqb_transaction_header *)(w + 4));
    case STAMP:
        return (uint32_t)mqqb_stamp((mqqb_outgoing *)w, w[4], (mqqb_transaction_header *)(w + 5));
    case ORDER_ACK_RECEIVED:
        return (uint32_t)mqqb_order_ack_received((mqqb_outgoing *)w, (mqqb_order_ack *)(w + 4));
    default:
        mqqb_roll((mqqb_outgoing *)w);
        return 0;
    }
}

static void test_every_case(void)
{
    const uint32_t *at = cases;

    for (volatile int number = 0; number < CASES; number++) {
        const uint32_t function = at[0], refused = at[1], words = at[2], bytes = at[3], after = at[4], written = at[5];
        const uint32_t result = at[6];
        uint32_t w[64] = {0};
        uint8_t *data = malloc(bytes + written + 1); /* of just that size: a sanitizer sees what goes beyond */

        at += 7;
        memcpy(w, at, 4 * words);
        at += words;
        for (uint32_t i = 0; i < bytes; i++) {
            data[i] = (uint8_t)at[i];
        }
        at += bytes;
        if (refused) {
#ifndef NDEBUG
            uint8_t room[64];
            CHECK_ASSERTS(call(function, w, room, sizeof room));
#endif
        } else {
            CHECK_EQ(call(function, w, data, bytes), result);
            for (uint32_t i = 0; i < after; i++) {
                CHECK_EQ(w[i], at[i]);
            }
            for (uint32_t i = 0; i < written; i++) {
                CHECK_EQ(data[i], at[after + i]);
            }
        }
        at += after + written;
        free(data);
    }
}

static void test_every_status_has_a_name(void)
{
    for (int status = MQQB_BAD_MESSAGE_COUNT; status <= MQQB_STREAM_FULL; status++) {
        CHECK(strcmp(mqqb_status_name((mqqb_status)status), "?") != 0);
    }
    CHECK(strcmp(mqqb_status_name((mqqb_status)99), "?") == 0);
}

#ifndef NDEBUG
static void test_mistakes_of_the_caller_are_asserted(void)
{
    mqqb_session s;
    mqqb_session_header h = {.window_size = 64};
    uint8_t out[64];

    mqqb_session_init(&s, 64);
    CHECK_ASSERTS((void)mqqb_part_size(MQQB_PARTS));
    CHECK_ASSERTS((void)mqqb_part_words(MQQB_PARTS));
    CHECK_ASSERTS(mqqb_pack(MQQB_SESSION_HEADER, &h, out, MQQB_SESSION_HEADER_SIZE - 1));
    CHECK_ASSERTS(mqqb_session_sent(&s, 2));
    CHECK_ASSERTS(mqqb_session_received(&s, -1));
    CHECK_ASSERTS((void)mqqb_session_stored(&s, 2));
    CHECK_ASSERTS((void)mqqb_session_check(&s, &h, 2));
}
#endif

int main(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    RUN("wire.md, behaviour.md", test_every_case);
    RUN("", test_every_status_has_a_name);
#ifndef NDEBUG
    RUN("mqqb.h: read/write rule", test_mistakes_of_the_caller_are_asserted);
#endif
    return summary("test_mqqb");
}
