/* SPDX-License-Identifier: MIT */
/* mqqb.h: fixed-size headers, session counters, acknowledgement bits and transactional order of the MSMQ binary
 * protocol ([MS-MQQB], [MS-MQMQ]). Freestanding C99; copy mqqb.h and mqqb.c.
 *
 * THE READ/WRITE RULE. Wire input is always checked, and answered with a status. Arguments of the caller are
 * asserted (compiled out by NDEBUG). There are three kinds of status:
 *   MQQB_OK and other positive answers: continue as the function's comment says;
 *   MQQB_NEED_MORE: the bytes so far are right, but incomplete; nothing was written; call again with more;
 *   negative: the peer is wrong; discard the packet, close the session (B-168, B-169), report the status. Nothing
 *   was written and no state was changed.
 *
 * STRUCTURES. Every structure consists of 32-bit words. Integers of any wire width are uint32_t (mqqb_word_u8 and
 * mqqb_word_u16 give the wire width). Byte strings are uint8_t arrays, a multiple of 4 long. A structure has no
 * padding, and the Python bindings pass it as an array of words. Pack and unpack move single bytes, so that the
 * machine's byte order and alignment do not matter.
 *
 * COST. No allocation, no globals, no clock, no recursion, at most 64 bytes of stack a call. An interrupt handler
 * may call any function if no other call uses the same structure. No pointer is kept. */
#ifndef MQQB_H
#define MQQB_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MQQB_CORE_VERSION "0.1.0" /* of mqqb.h and mqqb.c; formats and names may change before 1.0 */

/* ---- sizes and constants (wire.md sections 1, 2, 5, 11) ------------------------------------ */

#define MQQB_VERSION_NUMBER 0x10u
#define MQQB_SIGNATURE 0x524F494Cu  /* bytes 4C 49 4F 52, "LIOR" */
#define MQQB_PING_SIGNATURE 0x5548u /* bytes 48 55 */
#define MQQB_PACKET_SIZE_MAX 0x00400000u
#define MQQB_PACKET_SIZE_MIN_INTERNAL 20u
#define MQQB_PACKET_SIZE_MIN_MESSAGE 120u
#define MQQB_PACKET_SIZE_ESTABLISH_CONNECTION 572u
#define MQQB_PACKET_SIZE_CONNECTION_PARAMETERS 32u
#define MQQB_PACKET_SIZE_SESSION_ACK 36u
#define MQQB_ACK_BITS 32u /* width of RecoverableMsgAckFlags */

/* BaseHeader.Flags */
#define MQQB_BASE_PR 0x0007u
#define MQQB_BASE_IN 0x0008u
#define MQQB_BASE_SH 0x0010u
#define MQQB_BASE_DH 0x0020u
#define MQQB_BASE_TR 0x0100u
/* InternalHeader.Flags */
#define MQQB_INTERNAL_PT 0x000Fu
#define MQQB_INTERNAL_CS 0x0010u
#define MQQB_PT_SESSION_ACK 1u
#define MQQB_PT_ESTABLISH_CONNECTION 2u
#define MQQB_PT_CONNECTION_PARAMETERS 3u
/* UserHeader.Flags */
#define MQQB_USER_RC 0x0000001Fu
#define MQQB_USER_DM 0x00000060u
#define MQQB_USER_JN 0x00000100u
#define MQQB_USER_JP 0x00000200u
#define MQQB_USER_DQ 0x00001C00u
#define MQQB_USER_AQ 0x0000E000u
#define MQQB_USER_RQ 0x00070000u
#define MQQB_USER_SH 0x00080000u
#define MQQB_USER_TH 0x00100000u
#define MQQB_USER_MP 0x00200000u
#define MQQB_USER_CQ 0x00400000u
#define MQQB_USER_MQ 0x00800000u
#define MQQB_USER_AH 0x02000000u
#define MQQB_USER_HH 0x10000000u
#define MQQB_HOP_COUNT_MAX 0x1Du
/* TransactionHeader.Flags */
#define MQQB_TX_CG 0x00000001u
#define MQQB_TX_FA 0x00000002u
#define MQQB_TX_FM 0x00000004u
#define MQQB_TX_LM 0x00000008u

/* ---- status ---------------------------------------------------------------------------------- */

typedef enum {
    MQQB_OK = 0,
    MQQB_NEED_MORE = 1, /* the part needs more bytes: read more, call again */
    MQQB_ACK_FIRST = 2, /* mqqb_session_stored: the bit field is full: send a SessionAck, call again (B-123) */
    /* mqqb_order_ack_received: another sequence, or no progress: count it, change nothing (B-230) */
    MQQB_IGNORED = 3,
    /* mqqb_stamp: the next number is 0xFFFFFFFF: wait until the stream has drained, then mqqb_roll */
    MQQB_STREAM_FULL = 4,

    MQQB_BAD_VERSION_NUMBER = -1,      /* BaseHeader.VersionNumber is not 0x10 (B-168) */
    MQQB_BAD_SIGNATURE = -2,           /* BaseHeader.Signature is not LIOR (B-168) */
    MQQB_BAD_PACKET_SIZE = -3,         /* BaseHeader.PacketSize too small for its kind or above 4 MiB (B-429, B-433) */
    MQQB_BAD_PACKET_TYPE = -4,         /* InternalHeader.Flags.PT is not 1, 2 or 3 (B-170) */
    MQQB_BAD_REFUSED_FLAG = -5,        /* InternalHeader.Flags.CS in a SessionAck (wire.md 5.4) */
    MQQB_BAD_HOP_COUNT = -6,           /* UserHeader.Flags.RC above 0x1D (wire.md 2.2) */
    MQQB_BAD_DELIVERY_MODE = -7,       /* UserHeader.Flags.DM is 2 or 3 (wire.md 2.2) */
    MQQB_BAD_DESTINATION_TYPE = -8,    /* UserHeader.Flags.DQ is not 0, 3, 5 or 7 (B-171) */
    MQQB_BAD_ADMIN_TYPE = -9,          /* UserHeader.Flags.AQ is 1 or 4 (B-171) */
    MQQB_BAD_TRANSACTION_MODE = -10,   /* UserHeader.Flags.TH with express delivery (B-173) */
    MQQB_BAD_PROPERTIES_FLAG = -11,    /* UserHeader.Flags.MP is 0 (wire.md 2.5) */
    MQQB_BAD_HTTP_FLAG = -12,          /* UserHeader.Flags.AH is set (behaviour.md section 26) */
    MQQB_BAD_TX_SEQUENCE_NUMBER = -13, /* TransactionHeader.TxSequenceNumber is 0 (wire.md 2.3) */
    MQQB_BAD_PREVIOUS_NUMBER = -14,    /* TransactionHeader.PreviousTxSequenceNumber is 0xFFFFFFFF (wire.md 2.3) */
    MQQB_BAD_SENDER_ID_TYPE = -15,     /* SecurityHeader.Flags.ST is not 0, 1 or 2 (wire.md 2.4) */
    MQQB_BAD_SECURITY_SIZE = -16, /* SecurityHeader.SenderCertSize above 0xFFFF, or all five sizes 0 (wire.md 2.4) */
    MQQB_BAD_LABEL_LENGTH = -17,  /* MessagePropertiesHeader.LabelLength above 0xFA (B-431) */
    MQQB_BAD_BODY_SIZE = -18,     /* MessagePropertiesHeader.MessageSize above AllocationBodySize (B-432) */
    MQQB_BAD_RECOVERABLE_ACK_TIMEOUT = -19, /* ConnectionParameters.RecoverableAckTimeout outside 500..120000 (B-213) */
    MQQB_BAD_ACK_TIMEOUT = -20,             /* ConnectionParameters.AckTimeout outside 20000..120000 (B-213) */
    MQQB_BAD_OPERATING_SYSTEM = -21,        /* EstablishConnection.OperatingSystem.RE is not 0x10 (wire.md 5.2) */
    MQQB_BAD_WINDOW_SIZE = -22,             /* SessionHeader.WindowSize is 0 (B-106) */
    MQQB_BAD_ACK_NUMBER = -23,              /* OrderAck or FinalAck TxSequenceNumber is 0 (wire.md 6) */
    MQQB_BAD_PING_SIGNATURE = -24, /* Ping.Signature is not 0x5548: ignore the datagram, close nothing (B-200, B-202) */
    MQQB_BAD_QUEUE_TYPE = -25,     /* DebugHeader.Flags.QT is 2 or 3 (wire.md 2.6) */
    MQQB_BAD_ACK_COUNT = -26,      /* SessionHeader acknowledges unsent messages (B-229) */
    MQQB_BAD_MESSAGE_COUNT = -27   /* SessionHeader counts differ from ours: deliver, then close (B-227) */
} mqqb_status;

/* A status's name without MQQB_, for logs; "?" for other numbers. Only its callers pay for the names. */
static inline const char *mqqb_status_name(mqqb_status status)
{
    /* clang-format off */
#define MQQB_NAME(name) case MQQB_##name: return #name;
    switch (status) {
        MQQB_NAME(OK) MQQB_NAME(NEED_MORE) MQQB_NAME(ACK_FIRST) MQQB_NAME(IGNORED) MQQB_NAME(STREAM_FULL)
        MQQB_NAME(BAD_VERSION_NUMBER) MQQB_NAME(BAD_SIGNATURE) MQQB_NAME(BAD_PACKET_SIZE) MQQB_NAME(BAD_PACKET_TYPE)
        MQQB_NAME(BAD_REFUSED_FLAG) MQQB_NAME(BAD_HOP_COUNT) MQQB_NAME(BAD_DELIVERY_MODE)
        MQQB_NAME(BAD_DESTINATION_TYPE) MQQB_NAME(BAD_ADMIN_TYPE) MQQB_NAME(BAD_TRANSACTION_MODE)
        MQQB_NAME(BAD_PROPERTIES_FLAG) MQQB_NAME(BAD_HTTP_FLAG) MQQB_NAME(BAD_TX_SEQUENCE_NUMBER)
        MQQB_NAME(BAD_PREVIOUS_NUMBER) MQQB_NAME(BAD_SENDER_ID_TYPE) MQQB_NAME(BAD_SECURITY_SIZE)
        MQQB_NAME(BAD_LABEL_LENGTH) MQQB_NAME(BAD_BODY_SIZE) MQQB_NAME(BAD_RECOVERABLE_ACK_TIMEOUT)
        MQQB_NAME(BAD_ACK_TIMEOUT) MQQB_NAME(BAD_OPERATING_SYSTEM) MQQB_NAME(BAD_WINDOW_SIZE) MQQB_NAME(BAD_ACK_NUMBER)
        MQQB_NAME(BAD_PING_SIGNATURE) MQQB_NAME(BAD_QUEUE_TYPE) MQQB_NAME(BAD_ACK_COUNT) MQQB_NAME(BAD_MESSAGE_COUNT)
    }
/* clang-format on */
#undef MQQB_NAME
    return "?";
}

/* ---- the fixed-size parts -------------------------------------------------------------------- */

typedef enum {
    MQQB_BASE_HEADER,
    MQQB_INTERNAL_HEADER,
    MQQB_SESSION_HEADER,
    MQQB_TRANSACTION_HEADER,
    MQQB_CONNECTION_PARAMETERS,
    MQQB_USER_HEADER,
    MQQB_MESSAGE_PROPERTIES_HEADER,
    MQQB_SECURITY_HEADER,
    MQQB_DEBUG_HEADER,
    MQQB_ESTABLISH_CONNECTION,
    MQQB_ORDER_ACK,
    MQQB_FINAL_ACK,
    MQQB_PING,
    MQQB_PARTS
} mqqb_part;

typedef uint32_t mqqb_word_u8, mqqb_word_u16; /* 32-bit words that are a u8 or a u16 on the wire */

typedef struct {
    mqqb_word_u8 version_number, reserved;
    mqqb_word_u16 flags;
    uint32_t signature, packet_size, time_to_reach_queue;
} mqqb_base_header; /* 16 bytes, wire.md 2.1 */
typedef struct {
    mqqb_word_u16 reserved, flags;
} mqqb_internal_header; /* 4, 5.1 */
typedef struct {
    mqqb_word_u16 ack_sequence_number, recoverable_msg_ack_seq_number;
    uint32_t recoverable_msg_ack_flags;
    mqqb_word_u16 user_msg_sequence_number, recoverable_msg_sequence_number, window_size, reserved;
} mqqb_session_header; /* 16, 2.9 */
typedef struct {
    uint32_t flags, tx_sequence_ordinal, tx_sequence_time_stamp, tx_sequence_number, previous_tx_sequence_number;
} mqqb_transaction_header; /* 20, 2.3; ConnectorQMGuid follows if CG */
typedef struct {
    uint32_t recoverable_ack_timeout, ack_timeout;
    mqqb_word_u16 reserved, window_size;
} mqqb_connection_parameters; /* 12, 5.3; ms, ms, -, packets */
typedef struct {
    uint8_t source_queue_manager[16], queue_manager_address[16];
    uint32_t time_to_be_received, sent_time, message_id, flags;
} mqqb_user_header; /* 48, 2.2; s, s since 1970 */
typedef struct {
    mqqb_word_u8 flags, label_length;
    mqqb_word_u16 message_class;
    uint8_t correlation_id[20];
    uint32_t body_type, application_tag, message_size, allocation_body_size, privacy_level, hash_algorithm,
        encryption_algorithm, extension_size;
} mqqb_message_properties_header; /* 56, 2.5 */
typedef struct {
    mqqb_word_u16 flags, sender_id_size, encryption_key_size, signature_size;
    uint32_t sender_cert_size, provider_info_size;
} mqqb_security_header; /* 16, 2.4 */
typedef struct {
    mqqb_word_u16 flags, reserved;
} mqqb_debug_header; /* 4, 2.6; QueueIdentifier follows if QT is 1 */
typedef struct {
    uint8_t client_guid[16], server_guid[16];
    uint32_t time_stamp;
    mqqb_word_u16 operating_system, reserved;
} mqqb_establish_connection; /* 40 of 552, 5.2; 512 bytes of padding follow */
typedef struct {
    uint32_t tx_sequence_ordinal, tx_sequence_time_stamp, tx_sequence_number, tx_previous_sequence_number;
    uint8_t reserved[20];
} mqqb_order_ack; /* 36, section 6 */
typedef struct {
    uint32_t tx_sequence_ordinal, tx_sequence_time_stamp, tx_sequence_number, previous_tx_sequence_number;
    uint8_t source_guid[16];
    uint32_t message_id;
} mqqb_final_ack; /* 36, section 6 */
typedef struct {
    mqqb_word_u16 flags, signature;
    uint32_t cookie;
    uint8_t qm_guid[16];
} mqqb_ping; /* 24, section 7 */

/* Wire sizes and offsets in bytes: _AT and _END from the packet's beginning, _IN_PART from the part's.
 * Made by c_core/layout.py: */
#define MQQB_BASE_HEADER_SIZE 16u
#define MQQB_BASE_VERSION_NUMBER_AT 0u
#define MQQB_BASE_RESERVED_AT 1u
#define MQQB_BASE_FLAGS_AT 2u
#define MQQB_BASE_SIGNATURE_AT 4u
#define MQQB_BASE_PACKET_SIZE_AT 8u
#define MQQB_BASE_TIME_TO_REACH_QUEUE_AT 12u
#define MQQB_BASE_END 16u
#define MQQB_INTERNAL_HEADER_SIZE 4u
#define MQQB_INTERNAL_RESERVED_AT 16u
#define MQQB_INTERNAL_FLAGS_AT 18u
#define MQQB_INTERNAL_END 20u
#define MQQB_SESSION_HEADER_SIZE 16u
#define MQQB_ACKS_SEQUENCE_NUMBER_IN_PART 0u
#define MQQB_ACKS_BASE_IN_PART 2u
#define MQQB_ACKS_FLAGS_IN_PART 4u
#define MQQB_ACKS_SENT_IN_PART 8u
#define MQQB_ACKS_RECOVERABLE_SENT_IN_PART 10u
#define MQQB_ACKS_WINDOW_SIZE_IN_PART 12u
#define MQQB_ACKS_RESERVED_IN_PART 14u
#define MQQB_TRANSACTION_HEADER_SIZE 20u
#define MQQB_TX_FLAGS_IN_PART 0u
#define MQQB_TX_ORDINAL_IN_PART 4u
#define MQQB_TX_TIME_STAMP_IN_PART 8u
#define MQQB_TX_NUMBER_IN_PART 12u
#define MQQB_TX_PREVIOUS_IN_PART 16u
#define MQQB_CONNECTION_PARAMETERS_SIZE 12u
#define MQQB_PARAMETERS_RECOVERABLE_ACK_TIMEOUT_AT 20u
#define MQQB_PARAMETERS_ACK_TIMEOUT_AT 24u
#define MQQB_PARAMETERS_RESERVED_AT 28u
#define MQQB_PARAMETERS_WINDOW_SIZE_AT 30u
#define MQQB_PARAMETERS_END 32u
#define MQQB_USER_HEADER_SIZE 48u
#define MQQB_USER_SOURCE_QUEUE_MANAGER_AT 16u
#define MQQB_USER_QUEUE_MANAGER_ADDRESS_AT 32u
#define MQQB_USER_TIME_TO_BE_RECEIVED_AT 48u
#define MQQB_USER_SENT_TIME_AT 52u
#define MQQB_USER_MESSAGE_ID_AT 56u
#define MQQB_USER_FLAGS_AT 60u
#define MQQB_USER_END 64u
#define MQQB_MESSAGE_PROPERTIES_HEADER_SIZE 56u
#define MQQB_PROPERTIES_FLAGS_IN_PART 0u
#define MQQB_PROPERTIES_LABEL_LENGTH_IN_PART 1u
#define MQQB_PROPERTIES_MESSAGE_CLASS_IN_PART 2u
#define MQQB_PROPERTIES_CORRELATION_ID_IN_PART 4u
#define MQQB_PROPERTIES_BODY_TYPE_IN_PART 24u
#define MQQB_PROPERTIES_APPLICATION_TAG_IN_PART 28u
#define MQQB_PROPERTIES_MESSAGE_SIZE_IN_PART 32u
#define MQQB_PROPERTIES_ALLOCATION_BODY_SIZE_IN_PART 36u
#define MQQB_PROPERTIES_PRIVACY_LEVEL_IN_PART 40u
#define MQQB_PROPERTIES_HASH_ALGORITHM_IN_PART 44u
#define MQQB_PROPERTIES_ENCRYPTION_ALGORITHM_IN_PART 48u
#define MQQB_PROPERTIES_EXTENSION_SIZE_IN_PART 52u
#define MQQB_SECURITY_HEADER_SIZE 16u
#define MQQB_SECURITY_FLAGS_IN_PART 0u
#define MQQB_SECURITY_SENDER_ID_SIZE_IN_PART 2u
#define MQQB_SECURITY_ENCRYPTION_KEY_SIZE_IN_PART 4u
#define MQQB_SECURITY_SIGNATURE_SIZE_IN_PART 6u
#define MQQB_SECURITY_SENDER_CERT_SIZE_IN_PART 8u
#define MQQB_SECURITY_PROVIDER_INFO_SIZE_IN_PART 12u
#define MQQB_DEBUG_HEADER_SIZE 4u
#define MQQB_DEBUG_FLAGS_IN_PART 0u
#define MQQB_DEBUG_RESERVED_IN_PART 2u
#define MQQB_ESTABLISH_CONNECTION_SIZE 40u
#define MQQB_ESTABLISH_CLIENT_GUID_AT 20u
#define MQQB_ESTABLISH_SERVER_GUID_AT 36u
#define MQQB_ESTABLISH_TIME_STAMP_AT 52u
#define MQQB_ESTABLISH_OPERATING_SYSTEM_AT 56u
#define MQQB_ESTABLISH_RESERVED_AT 58u
#define MQQB_ESTABLISH_END 60u
#define MQQB_ORDER_ACK_SIZE 36u
#define MQQB_FINAL_ACK_SIZE 36u
#define MQQB_ACK_ORDINAL_IN_PART 0u
#define MQQB_ACK_TIME_STAMP_IN_PART 4u
#define MQQB_ACK_NUMBER_IN_PART 8u
#define MQQB_ACK_PREVIOUS_IN_PART 12u
#define MQQB_ACK_SOURCE_GUID_IN_PART 16u
#define MQQB_ACK_MESSAGE_ID_IN_PART 32u
#define MQQB_PING_SIZE 24u
#define MQQB_PING_FLAGS_IN_PART 0u
#define MQQB_PING_SIGNATURE_WORD_IN_PART 2u
#define MQQB_PING_COOKIE_IN_PART 4u
#define MQQB_PING_QM_GUID_IN_PART 8u
/* end of what was made */

/* Bytes of a part on the wire. part: any mqqb_part except MQQB_PARTS. */
size_t mqqb_part_size(mqqb_part part);

/* Words of a part's structure (its sizeof / 4). */
size_t mqqb_part_words(mqqb_part part);

/* Read one part from in[0..in_size) into its structure, and check all ranges within the part.
 * MQQB_OK: *out is filled. MQQB_NEED_MORE, or negative: *out is untouched. in and out may not overlap. */
mqqb_status mqqb_unpack(mqqb_part part, void *out, const uint8_t *in, size_t in_size);

/* Write one part. Asserted: every field fits its wire type and passes the checks of mqqb_unpack, and out_size is at
 * least mqqb_part_size(part). */
void mqqb_pack(mqqb_part part, const void *in, uint8_t *out, size_t out_size);

/* Bytes of a packet on the stream, for its BaseHeader: PacketSize does not count a SessionHeader (OP-1, A-51). */
uint32_t mqqb_packet_total(uint32_t flags, uint32_t packet_size);

/* The framing rule (wire.md 4.2): *total becomes the size of the packet at in.
 * MQQB_OK: the packet is complete. MQQB_NEED_MORE: read until *total bytes are there: 16 for the BaseHeader, or
 * all. If *total exceeds your buffer, close the session, or skip the packet and count it (README.md).
 * Negative: close the session. Costs one mqqb_unpack of the BaseHeader. */
mqqb_status mqqb_frame(const uint8_t *in, size_t in_size, uint32_t *total);

/* ---- one connection: both message sequences, acknowledgements, window (B-086 to B-130) -------- */

/* All counts are modulo 65536 and start at 0 with the connection (B-086, B-090). Received and stored messages have
 * separate counts, because only durable ones may be acknowledged (B-098, A-31, A-32). */
typedef struct {
    uint32_t message_sent_count;                    /* B-031 */
    uint32_t recoverable_message_sent_count;        /* B-032 */
    uint32_t message_received_count;                /* B-033 */
    uint32_t recoverable_message_received_count;    /* B-034 */
    uint32_t message_stored_count;                  /* received messages that are durable, or settled in another way */
    uint32_t recoverable_message_stored_count;      /* stored messages with DM = 1 */
    uint32_t acked_message_count;                   /* AckSequenceNumber of the last SessionHeader sent */
    uint32_t last_acked_recoverable_msg_seq_number; /* B-035 */
    uint32_t recoverable_msg_ack_flags;             /* B-036 */
    uint32_t peer_acked_message_count;              /* highest AckSequenceNumber received */
    uint32_t window_size;                           /* B-039, 1..0xFFFF packets */
    uint32_t received_window_size;                  /* B-040 */
} mqqb_session;

/* Is a after b, that is, is (a - b) modulo 65536 positive as a signed number (B-090)? Both 0..0xFFFF. */
int mqqb_serial_after(uint32_t a, uint32_t b);

/* Does a SessionHeader's (base, flags) acknowledge recoverable message seq (B-103, B-107, B-222, B-223)? Flags 0
 * acknowledge nothing, others all up to base, and base + k if bit k is set. All 0..0xFFFF. */
int mqqb_is_acked(uint32_t base, uint32_t flags, uint32_t seq);

/* Begin a connection: counts 0, and our window for both ends at first. window_size: 1..0xFFFF (asserted). */
void mqqb_session_init(mqqb_session *s, uint32_t window_size);

/* May a message be sent: are fewer unacknowledged than both windows and 0x7FFF (B-118, A-25, A-23)? */
int mqqb_session_can_send(const mqqb_session *s);

/* Count a sent message (B-320); the counts are then its numbers. recoverable: 1 if DM = 1, else 0. */
void mqqb_session_sent(mqqb_session *s, int recoverable);

/* Count a received message (B-252, B-278). */
void mqqb_session_received(mqqb_session *s, int recoverable);

/* The oldest unstored message is now durable, or a rule discarded it (B-250, B-262, B-280). Asserted: there is one,
 * and a recoverable one if recoverable is 1. MQQB_ACK_FIRST: nothing changed, the bit field is full; send a
 * SessionAck (mqqb_session_fill), then call again (B-123, B-277). */
mqqb_status mqqb_session_stored(mqqb_session *s, int recoverable);

/* Received messages that no sent SessionHeader covers (B-037); sent messages without acknowledgement (B-038). */
uint32_t mqqb_session_unacked_received(const mqqb_session *s);
uint32_t mqqb_session_unacked_sent(const mqqb_session *s);

/* Fill the next SessionHeader and count it as sent (B-101 to B-108). */
void mqqb_session_fill(mqqb_session *s, mqqb_session_header *h);

/* Check a received SessionHeader against our counts, then apply its acknowledgement and window (B-219, B-130).
 * carried: 1 at the end of a message that is already counted, 0 in a SessionAck. A carried header may leave its own
 * message out of its counts (OP-14): its user count may be one lower than ours, and only then its recoverable count
 * too. An older AckSequenceNumber is no error and lowers nothing. With flags 0 the base is ignored.
 * MQQB_OK. MQQB_BAD_ACK_COUNT: nothing applied, close. MQQB_BAD_MESSAGE_COUNT: applied; deliver the message, then
 * close (B-227). */
mqqb_status mqqb_session_check(mqqb_session *s, const mqqb_session_header *h, int carried);

/* ---- transactional order (B-091 to B-099, B-268 to B-275, B-317, B-318) ----------------------- */

/* Incoming stream, persistent, by source queue manager and destination queue (B-058 to B-060, B-099). */
typedef struct {
    uint32_t tx_sequence_ordinal, tx_sequence_time_stamp, tx_sequence_number, reject_count;
} mqqb_incoming;

/* Outgoing stream, persistent, by outgoing queue (B-056, B-057, B-067, B-099). tx_sequence_number: the next. */
typedef struct {
    uint32_t tx_sequence_ordinal, tx_sequence_time_stamp, tx_sequence_number, last_ack;
} mqqb_outgoing;

/* Compare two TxSequenceIDs as unsigned 64-bit numbers, TimeStamp high (B-078): -1, 0, 1. */
int mqqb_tx_compare(uint32_t ordinal_a, uint32_t time_stamp_a, uint32_t ordinal_b, uint32_t time_stamp_b);

/* May this message be inserted (B-270)? 1: yes, and the stream has advanced (B-271): commit both in one step. 0:
 * no, and only reject_count has changed (B-272, A-01). */
int mqqb_accept(mqqb_incoming *in, const mqqb_transaction_header *h);

/* Number a message for the first and only time (B-317, A-08): fill the header's id, number and previous number,
 * keep its flags. previous: number of the preceding transactional message with the same id in the outgoing table, 0
 * if none (B-318, B-319); less than the next number, which is at least 1 (asserted).
 * MQQB_OK, MQQB_STREAM_FULL. The caller commits out and the number before the packet leaves (B-098). */
mqqb_status mqqb_stamp(mqqb_outgoing *out, uint32_t previous, mqqb_transaction_header *h);

/* Apply an OrderAck (B-230, B-233). MQQB_OK: last_ack has risen; settle the covered messages. MQQB_IGNORED: another
 * sequence, an unassigned number, or no progress; nothing changed. */
mqqb_status mqqb_order_ack_received(mqqb_outgoing *out, const mqqb_order_ack *ack);

/* Begin the next sequence, unless this one is empty; call it when no message is left (B-096, A-05). */
void mqqb_roll(mqqb_outgoing *out);

#ifdef __cplusplus
}
#endif

#endif
