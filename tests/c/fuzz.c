/* fuzz.c: one input through every unpack, the framing and a session; whatever is not one of the three outcomes ends the run. */
#include "fuzz.h"
#include "mqqb.h"

/* Accepted bytes come back the same from pack; refused ones leave the structure alone. */
static void one_part(mqqb_part part, const uint8_t *data, size_t size)
{
    uint32_t words[32], before[32];
    uint8_t back[64];
    mqqb_status status;

    memset(words, 0xEE, sizeof words);
    memcpy(before, words, sizeof words);
    status = mqqb_unpack(part, words, data, size);
    REQUIRE((status == MQQB_NEED_MORE) == (size < mqqb_part_size(part)));
    REQUIRE(status <= MQQB_NEED_MORE && status >= MQQB_BAD_MESSAGE_COUNT);
    if (status == MQQB_OK) {
        mqqb_pack(part, words, back, sizeof back);
        REQUIRE(memcmp(back, data, mqqb_part_size(part)) == 0);
        REQUIRE(memcmp(words + mqqb_part_words(part), before + mqqb_part_words(part),
                       sizeof words - 4 * mqqb_part_words(part)) == 0);
    } else {
        REQUIRE(memcmp(words, before, sizeof words) == 0);
    }
}

/* Headers of any content into a session of any age: the counts stay counts, and nothing unsent gets acknowledged. */
static void one_session(const uint8_t *data, size_t size)
{
    mqqb_session s;
    mqqb_session_header h;

    mqqb_session_init(&s, size > 0 && data[0] != 0 ? data[0] : 1);
    while (size >= 16) {
        const mqqb_session before = s;
        if (mqqb_unpack(MQQB_SESSION_HEADER, &h, data, size) == MQQB_OK) {
            const mqqb_status status = mqqb_session_check(&s, &h, data[14] & 1);
            REQUIRE(status == MQQB_OK || status == MQQB_BAD_ACK_COUNT || status == MQQB_BAD_MESSAGE_COUNT);
            REQUIRE(status != MQQB_BAD_ACK_COUNT || memcmp(&s, &before, sizeof s) == 0);
            REQUIRE(mqqb_session_unacked_sent(&s) <= mqqb_session_unacked_sent(&before));
            if (status != MQQB_BAD_ACK_COUNT &&
                mqqb_serial_after((s.recoverable_message_sent_count + 1) & 0xFFFF, h.recoverable_msg_ack_seq_number)) {
                REQUIRE(!mqqb_is_acked(h.recoverable_msg_ack_seq_number, h.recoverable_msg_ack_flags,
                                       (s.recoverable_message_sent_count + 1) & 0xFFFF));
            }
        }
        if (mqqb_session_can_send(&s)) {
            mqqb_session_sent(&s, data[15] & 1);
        }
        mqqb_session_received(&s, data[15] >> 1 & 1);
        if (mqqb_session_stored(&s, data[15] >> 1 & 1) == MQQB_ACK_FIRST || (data[15] & 4) != 0) {
            mqqb_session_fill(&s, &h);
            if (s.message_stored_count != s.message_received_count) {
                REQUIRE(mqqb_session_stored(&s, data[15] >> 1 & 1) == MQQB_OK);
            }
        }
        data += 16;
        size -= 16;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t rest;
    uint8_t *exact = exact_input(data, size, &rest, 0);
    uint32_t total = 0;

    for (int part = 0; part < MQQB_PARTS; part++) {
        one_part((mqqb_part)part, exact, rest);
    }
    one_session(exact, rest);
    free(exact);
    exact = exact_input(data, size, &rest, 1);
    if (mqqb_frame(exact, rest, &total) == MQQB_OK) {
        REQUIRE(total <= rest && total >= 20);
    }
    free(exact);
    return 0;
}
