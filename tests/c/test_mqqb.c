/* test_mqqb.c: the core linked as it is and judged by wire.md and behaviour.md. Every RUN names its rules. */
#include "check.h"
#include "mqqb.h"
#include "packets.h"

#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* ---- layouts, written down a second time from wire.md ------------------------------------------ */

typedef struct {
    mqqb_part part;
    const char *name;
    unsigned offset, width; /* on the wire; more than 4: bytes */
    size_t member;          /* in the structure */
} field;

#define FIELD(part, type, name, offset, width) {part, #type "." #name, offset, width, offsetof(type, name)}

static const field fields[] = {
    FIELD(MQQB_BASE_HEADER, mqqb_base_header, version_number, 0, 1),
    FIELD(MQQB_BASE_HEADER, mqqb_base_header, reserved, 1, 1),
    FIELD(MQQB_BASE_HEADER, mqqb_base_header, flags, 2, 2),
    FIELD(MQQB_BASE_HEADER, mqqb_base_header, signature, 4, 4),
    FIELD(MQQB_BASE_HEADER, mqqb_base_header, packet_size, 8, 4),
    FIELD(MQQB_BASE_HEADER, mqqb_base_header, time_to_reach_queue, 12, 4),
    FIELD(MQQB_INTERNAL_HEADER, mqqb_internal_header, reserved, 0, 2),
    FIELD(MQQB_INTERNAL_HEADER, mqqb_internal_header, flags, 2, 2),
    FIELD(MQQB_SESSION_HEADER, mqqb_session_header, ack_sequence_number, 0, 2),
    FIELD(MQQB_SESSION_HEADER, mqqb_session_header, recoverable_msg_ack_seq_number, 2, 2),
    FIELD(MQQB_SESSION_HEADER, mqqb_session_header, recoverable_msg_ack_flags, 4, 4),
    FIELD(MQQB_SESSION_HEADER, mqqb_session_header, user_msg_sequence_number, 8, 2),
    FIELD(MQQB_SESSION_HEADER, mqqb_session_header, recoverable_msg_sequence_number, 10, 2),
    FIELD(MQQB_SESSION_HEADER, mqqb_session_header, window_size, 12, 2),
    FIELD(MQQB_SESSION_HEADER, mqqb_session_header, reserved, 14, 2),
    FIELD(MQQB_TRANSACTION_HEADER, mqqb_transaction_header, flags, 0, 4),
    FIELD(MQQB_TRANSACTION_HEADER, mqqb_transaction_header, tx_sequence_ordinal, 4, 4),
    FIELD(MQQB_TRANSACTION_HEADER, mqqb_transaction_header, tx_sequence_time_stamp, 8, 4),
    FIELD(MQQB_TRANSACTION_HEADER, mqqb_transaction_header, tx_sequence_number, 12, 4),
    FIELD(MQQB_TRANSACTION_HEADER, mqqb_transaction_header, previous_tx_sequence_number, 16, 4),
    FIELD(MQQB_CONNECTION_PARAMETERS, mqqb_connection_parameters, recoverable_ack_timeout, 0, 4),
    FIELD(MQQB_CONNECTION_PARAMETERS, mqqb_connection_parameters, ack_timeout, 4, 4),
    FIELD(MQQB_CONNECTION_PARAMETERS, mqqb_connection_parameters, reserved, 8, 2),
    FIELD(MQQB_CONNECTION_PARAMETERS, mqqb_connection_parameters, window_size, 10, 2),
    FIELD(MQQB_ORDER_ACK, mqqb_order_ack, tx_sequence_ordinal, 0, 4),
    FIELD(MQQB_ORDER_ACK, mqqb_order_ack, tx_sequence_time_stamp, 4, 4),
    FIELD(MQQB_ORDER_ACK, mqqb_order_ack, tx_sequence_number, 8, 4),
    FIELD(MQQB_ORDER_ACK, mqqb_order_ack, tx_previous_sequence_number, 12, 4),
    FIELD(MQQB_ORDER_ACK, mqqb_order_ack, reserved, 16, 20),
#ifndef MQQB_MINIMAL
    FIELD(MQQB_USER_HEADER, mqqb_user_header, source_queue_manager, 0, 16),
    FIELD(MQQB_USER_HEADER, mqqb_user_header, queue_manager_address, 16, 16),
    FIELD(MQQB_USER_HEADER, mqqb_user_header, time_to_be_received, 32, 4),
    FIELD(MQQB_USER_HEADER, mqqb_user_header, sent_time, 36, 4),
    FIELD(MQQB_USER_HEADER, mqqb_user_header, message_id, 40, 4),
    FIELD(MQQB_USER_HEADER, mqqb_user_header, flags, 44, 4),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, flags, 0, 1),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, label_length, 1, 1),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, message_class, 2, 2),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, correlation_id, 4, 20),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, body_type, 24, 4),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, application_tag, 28, 4),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, message_size, 32, 4),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, allocation_body_size, 36, 4),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, privacy_level, 40, 4),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, hash_algorithm, 44, 4),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, encryption_algorithm, 48, 4),
    FIELD(MQQB_MESSAGE_PROPERTIES_HEADER, mqqb_message_properties_header, extension_size, 52, 4),
    FIELD(MQQB_SECURITY_HEADER, mqqb_security_header, flags, 0, 2),
    FIELD(MQQB_SECURITY_HEADER, mqqb_security_header, sender_id_size, 2, 2),
    FIELD(MQQB_SECURITY_HEADER, mqqb_security_header, encryption_key_size, 4, 2),
    FIELD(MQQB_SECURITY_HEADER, mqqb_security_header, signature_size, 6, 2),
    FIELD(MQQB_SECURITY_HEADER, mqqb_security_header, sender_cert_size, 8, 4),
    FIELD(MQQB_SECURITY_HEADER, mqqb_security_header, provider_info_size, 12, 4),
    FIELD(MQQB_DEBUG_HEADER, mqqb_debug_header, flags, 0, 2),
    FIELD(MQQB_DEBUG_HEADER, mqqb_debug_header, reserved, 2, 2),
    FIELD(MQQB_ESTABLISH_CONNECTION, mqqb_establish_connection, client_guid, 0, 16),
    FIELD(MQQB_ESTABLISH_CONNECTION, mqqb_establish_connection, server_guid, 16, 16),
    FIELD(MQQB_ESTABLISH_CONNECTION, mqqb_establish_connection, time_stamp, 32, 4),
    FIELD(MQQB_ESTABLISH_CONNECTION, mqqb_establish_connection, operating_system, 36, 2),
    FIELD(MQQB_ESTABLISH_CONNECTION, mqqb_establish_connection, reserved, 38, 2),
    FIELD(MQQB_FINAL_ACK, mqqb_final_ack, tx_sequence_ordinal, 0, 4),
    FIELD(MQQB_FINAL_ACK, mqqb_final_ack, tx_sequence_time_stamp, 4, 4),
    FIELD(MQQB_FINAL_ACK, mqqb_final_ack, tx_sequence_number, 8, 4),
    FIELD(MQQB_FINAL_ACK, mqqb_final_ack, previous_tx_sequence_number, 12, 4),
    FIELD(MQQB_FINAL_ACK, mqqb_final_ack, source_guid, 16, 16),
    FIELD(MQQB_FINAL_ACK, mqqb_final_ack, message_id, 32, 4),
    FIELD(MQQB_PING, mqqb_ping, flags, 0, 2),
    FIELD(MQQB_PING, mqqb_ping, signature, 2, 2),
    FIELD(MQQB_PING, mqqb_ping, cookie, 4, 4),
    FIELD(MQQB_PING, mqqb_ping, qm_guid, 8, 16),
#endif
};

static const struct {
    mqqb_part part;
    size_t wire, memory;
} sizes[] = {
    {MQQB_BASE_HEADER, 16, sizeof(mqqb_base_header)},
    {MQQB_INTERNAL_HEADER, 4, sizeof(mqqb_internal_header)},
    {MQQB_SESSION_HEADER, 16, sizeof(mqqb_session_header)},
    {MQQB_TRANSACTION_HEADER, 20, sizeof(mqqb_transaction_header)},
    {MQQB_CONNECTION_PARAMETERS, 12, sizeof(mqqb_connection_parameters)},
#ifndef MQQB_MINIMAL
    {MQQB_USER_HEADER, 48, sizeof(mqqb_user_header)},
    {MQQB_MESSAGE_PROPERTIES_HEADER, 56, sizeof(mqqb_message_properties_header)},
    {MQQB_SECURITY_HEADER, 16, sizeof(mqqb_security_header)},
    {MQQB_DEBUG_HEADER, 4, sizeof(mqqb_debug_header)},
    {MQQB_ESTABLISH_CONNECTION, 40, sizeof(mqqb_establish_connection)},
#endif
    {MQQB_ORDER_ACK, 36, sizeof(mqqb_order_ack)},
#ifndef MQQB_MINIMAL
    {MQQB_FINAL_ACK, 36, sizeof(mqqb_final_ack)},
    {MQQB_PING, 24, sizeof(mqqb_ping)},
#endif
};

typedef union {
    uint32_t words[24];
    uint8_t bytes[96];
} any_part;

/* A valid part: its checked fields are right, every other byte is different from its neighbours. */
static void valid(mqqb_part part, uint8_t *out)
{
    size_t i;

    for (i = 0; i < sizes[part].wire; i++) {
        out[i] = (uint8_t)(0x11 + 7 * i);
    }
    switch (part) {
    case MQQB_BASE_HEADER:
        out[0] = 0x10;
        memcpy(out + 4, "LIOR", 4);
        le(out + 8, 0x1234, 4);
        break;
    case MQQB_INTERNAL_HEADER:
        le(out + 2, 0xFFE2, 2);
        break;
    case MQQB_CONNECTION_PARAMETERS:
        le(out, 1496, 4);
        le(out + 4, 20001, 4);
        break;
#ifndef MQQB_MINIMAL
    case MQQB_USER_HEADER:
        le(out + 44, 0x00281C20, 4);
        break;
    case MQQB_MESSAGE_PROPERTIES_HEADER:
        out[1] = 15;
        le(out + 32, 2000, 4);
        le(out + 36, 2003, 4);
        break;
    case MQQB_SECURITY_HEADER:
        out[0] = 1;
        le(out + 8, 0x1122, 4);
        break;
    case MQQB_DEBUG_HEADER:
        out[0] = 0xFD;
        break;
    case MQQB_ESTABLISH_CONNECTION:
        out[36] = 0x10;
        break;
    case MQQB_PING:
        le(out + 2, 0x5548, 2);
        break;
#endif
    default:
        break;
    }
}

/* Unpack must answer status; and leave the structure alone unless that is MQQB_OK. */
static void expect(mqqb_part part, const uint8_t *in, size_t size, mqqb_status status, const char *what)
{
    any_part out, before;
    mqqb_status found;

    memset(&out, 0xEE, sizeof out);
    before = out;
    found = mqqb_unpack(part, &out, in, size);
    if (found != status) {
        printf("part %d, %s: status %d, not %d\n", (int)part, what, (int)found, (int)status);
    }
    CHECK(found == status);
    if (status == MQQB_OK) {
        CHECK_BYTES((uint8_t *)&out + sizes[part].memory, (uint8_t *)&before + sizes[part].memory,
                    sizeof out - sizes[part].memory);
    } else {
        CHECK_BYTES(&out, &before, sizeof out);
    }
}

static void test_every_status_has_a_name(void)
{
    int status;

    for (status = MQQB_BAD_MESSAGE_COUNT; status <= MQQB_STREAM_FULL; status++) {
        CHECK(strcmp(mqqb_status_name((mqqb_status)status), "?") != 0);
    }
    CHECK(strcmp(mqqb_status_name(MQQB_BAD_SIGNATURE), "BAD_SIGNATURE") == 0);
    CHECK(strcmp(mqqb_status_name((mqqb_status)(MQQB_BAD_MESSAGE_COUNT - 1)), "?") == 0);
    CHECK(strcmp(mqqb_status_name((mqqb_status)(MQQB_STREAM_FULL + 1)), "?") == 0);
}

static void test_sizes(void)
{
    size_t i, j, wire, memory;

    CHECK_EQ(LENGTH(sizes), MQQB_PARTS);
    for (i = 0; i < LENGTH(sizes); i++) {
        CHECK_EQ(sizes[i].part, i);
        CHECK_EQ(mqqb_part_size(sizes[i].part), sizes[i].wire);
        CHECK_EQ(mqqb_part_words(sizes[i].part) * 4, sizes[i].memory);
        for (j = wire = memory = 0; j < LENGTH(fields); j++) {
            if (fields[j].part == sizes[i].part) {
                CHECK_EQ(fields[j].offset, wire);
                CHECK_EQ(fields[j].member, memory);
                wire += fields[j].width;
                memory += fields[j].width > 4 ? fields[j].width : 4;
            }
        }
        CHECK_EQ(wire, sizes[i].wire);
        CHECK_EQ(memory, sizes[i].memory);
    }
}

static void test_every_field_is_where_it_belongs(void)
{
    size_t i, j;

    for (i = 0; i < LENGTH(sizes); i++) {
        uint8_t in[64], back[64];
        any_part out;

        valid(sizes[i].part, in);
        CHECK_EQ(mqqb_unpack(sizes[i].part, &out, in, sizes[i].wire), MQQB_OK);
        for (j = 0; j < LENGTH(fields); j++) {
            if (fields[j].part != sizes[i].part) {
                continue;
            }
            if (fields[j].width > 4) {
                CHECK_BYTES(out.bytes + fields[j].member, in + fields[j].offset, fields[j].width);
            } else {
                CHECK_EQ(out.words[fields[j].member / 4], get(in + fields[j].offset, fields[j].width));
            }
        }
        memset(back, 0xEE, sizeof back);
        mqqb_pack(sizes[i].part, &out, back, sizeof back);
        CHECK_BYTES(back, in, sizes[i].wire);
        for (j = sizes[i].wire; j < sizeof back; j++) {
            CHECK_EQ(back[j], 0xEE);
        }
    }
}

/* The verdict of wire.md on one value of one field, the others being those of valid(). */
static mqqb_status verdict(const field *f, uint32_t value)
{
#define IS(part, field) (strcmp(f->name, "mqqb_" part "." field) == 0)
    if (IS("base_header", "version_number")) {
        return value == 0x10 ? MQQB_OK : MQQB_BAD_VERSION_NUMBER;
    }
    if (IS("base_header", "signature")) {
        return value == 0x524F494C ? MQQB_OK : MQQB_BAD_SIGNATURE;
    }
    if (IS("base_header", "packet_size")) { /* valid() has IN set */
        return value >= 20 && value <= 0x400000 ? MQQB_OK : MQQB_BAD_PACKET_SIZE;
    }
    if (IS("internal_header", "flags")) {
        return (value & 15) < 1 || (value & 15) > 3     ? MQQB_BAD_PACKET_TYPE
               : (value & 15) == 1 && (value & 16) != 0 ? MQQB_BAD_REFUSED_FLAG
                                                        : MQQB_OK;
    }
    if (IS("session_header", "window_size")) {
        return value != 0 ? MQQB_OK : MQQB_BAD_WINDOW_SIZE;
    }
    if (IS("transaction_header", "tx_sequence_number")) {
        return value != 0 ? MQQB_OK : MQQB_BAD_TX_SEQUENCE_NUMBER;
    }
    if (IS("transaction_header", "previous_tx_sequence_number")) {
        return value != 0xFFFFFFFF ? MQQB_OK : MQQB_BAD_PREVIOUS_NUMBER;
    }
    if (IS("connection_parameters", "recoverable_ack_timeout")) {
        return value >= 0x1F4 && value <= 0x1D4C0 ? MQQB_OK : MQQB_BAD_RECOVERABLE_ACK_TIMEOUT;
    }
    if (IS("connection_parameters", "ack_timeout")) {
        return value >= 0x4E20 && value <= 0x1D4C0 ? MQQB_OK : MQQB_BAD_ACK_TIMEOUT;
    }
    if (IS("message_properties_header", "label_length")) {
        return value <= 0xFA ? MQQB_OK : MQQB_BAD_LABEL_LENGTH;
    }
    if (IS("message_properties_header", "message_size")) {
        return value <= 2003 ? MQQB_OK : MQQB_BAD_BODY_SIZE;
    }
    if (IS("message_properties_header", "allocation_body_size")) {
        return value >= 2000 ? MQQB_OK : MQQB_BAD_BODY_SIZE;
    }
    if (IS("security_header", "flags")) {
        return (value & 15) <= 2 ? MQQB_OK : MQQB_BAD_SENDER_ID_TYPE;
    }
    if (IS("security_header", "sender_cert_size")) {
        return value <= 0xFFFF ? MQQB_OK : MQQB_BAD_SECURITY_SIZE;
    }
    if (IS("debug_header", "flags")) {
        return (value & 3) <= 1 ? MQQB_OK : MQQB_BAD_QUEUE_TYPE;
    }
    if (IS("establish_connection", "operating_system")) {
        return (value & 0xFF) == 0x10 ? MQQB_OK : MQQB_BAD_OPERATING_SYSTEM;
    }
    if (IS("order_ack", "tx_sequence_number") || IS("final_ack", "tx_sequence_number")) {
        return value != 0 ? MQQB_OK : MQQB_BAD_ACK_NUMBER;
    }
    if (IS("ping", "signature")) {
        return value == 0x5548 ? MQQB_OK : MQQB_BAD_PING_SIGNATURE;
    }
#undef IS
    return MQQB_OK;
}

/* One field, one value: the status, the word, no other word, and the same bytes back. */
static void one_value(const field *f, uint32_t value)
{
    uint8_t in[64], back[64];
    any_part out, reference;
    mqqb_status status;
    size_t i;

    valid(f->part, in);
    CHECK_EQ(mqqb_unpack(f->part, &reference, in, sizeof in), MQQB_OK);
    le(in + f->offset, value, f->width);
    status = verdict(f, value);
    expect(f->part, in, sizes[f->part].wire, status, f->name);
    if (status != MQQB_OK) {
        return;
    }
    CHECK_EQ(mqqb_unpack(f->part, &out, in, sizes[f->part].wire), MQQB_OK);
    for (i = 0; i < sizes[f->part].memory / 4; i++) {
        CHECK_EQ(out.words[i], i == f->member / 4 ? value : reference.words[i]);
    }
    mqqb_pack(f->part, &out, back, sizes[f->part].wire);
    CHECK_BYTES(back, in, sizes[f->part].wire);
}

static int is_special(const field *f)
{
    return f->width > 4 || strcmp(f->name, "mqqb_user_header.flags") == 0 ||
           (f->part == MQQB_BASE_HEADER && f->offset == 2);
}

static void test_every_field_at_its_edges(void)
{
    size_t i, j;

    for (i = 0; i < LENGTH(fields); i++) {
        const uint32_t max = fields[i].width >= 4 ? 0xFFFFFFFF : (1u << 8 * fields[i].width) - 1;
        const uint32_t values[] = {0, 1, 2, max / 2, max / 2 + 1, max - 1, max};

        if (is_special(&fields[i])) {
            continue;
        }
        for (j = 0; j < LENGTH(values); j++) {
            one_value(&fields[i], values[j]);
        }
        for (j = 0; j < 8 * fields[i].width; j++) {
            one_value(&fields[i], (uint32_t)1 << j);
            one_value(&fields[i], max ^ (uint32_t)1 << j);
        }
    }
}

/* One and two byte fields: every value there is. */
static void test_every_value_of_small_fields(void)
{
    size_t i;
    uint32_t value;

    for (i = 0; i < LENGTH(fields); i++) {
        if (fields[i].width <= 2 && !is_special(&fields[i])) {
            for (value = 0; value < 1u << 8 * fields[i].width; value += fields[i].width == 2 ? 7 : 1) {
                one_value(&fields[i], value);
            }
        }
    }
}

static void test_every_limit_from_both_sides(void)
{
    static const struct {
        const char *name;
        uint32_t value;
    } cases[] = {
        {"mqqb_base_header.version_number", 0x0F},
        {"mqqb_base_header.version_number", 0x10},
        {"mqqb_base_header.version_number", 0x11},
        {"mqqb_base_header.signature", 0x524F494B},
        {"mqqb_base_header.signature", 0x524F494C},
        {"mqqb_base_header.signature", 0x4C494F52},
        {"mqqb_base_header.packet_size", 19},
        {"mqqb_base_header.packet_size", 20},
        {"mqqb_base_header.packet_size", 0x00400000},
        {"mqqb_base_header.packet_size", 0x00400001},
        {"mqqb_base_header.packet_size", 0x80000000},
        {"mqqb_connection_parameters.recoverable_ack_timeout", 499},
        {"mqqb_connection_parameters.recoverable_ack_timeout", 500},
        {"mqqb_connection_parameters.recoverable_ack_timeout", 120000},
        {"mqqb_connection_parameters.recoverable_ack_timeout", 120001},
        {"mqqb_connection_parameters.ack_timeout", 19999},
        {"mqqb_connection_parameters.ack_timeout", 20000},
        {"mqqb_connection_parameters.ack_timeout", 120000},
        {"mqqb_connection_parameters.ack_timeout", 120001},
#ifndef MQQB_MINIMAL
        {"mqqb_message_properties_header.label_length", 0xF9},
        {"mqqb_message_properties_header.label_length", 0xFA},
        {"mqqb_message_properties_header.label_length", 0xFB},
        {"mqqb_message_properties_header.message_size", 2003},
        {"mqqb_message_properties_header.message_size", 2004},
        {"mqqb_message_properties_header.allocation_body_size", 1999},
        {"mqqb_message_properties_header.allocation_body_size", 2000},
        {"mqqb_security_header.sender_cert_size", 0xFFFF},
        {"mqqb_security_header.sender_cert_size", 0x10000},
        {"mqqb_ping.signature", 0x5547},
        {"mqqb_ping.signature", 0x5548},
        {"mqqb_ping.signature", 0x4855},
#endif
    };
    size_t i, j, found = 0;

    for (i = 0; i < LENGTH(cases); i++) {
        for (j = 0; j < LENGTH(fields); j++) {
            if (strcmp(fields[j].name, cases[i].name) == 0) {
                one_value(&fields[j], cases[i].value);
                found++;
            }
        }
    }
    CHECK_EQ(found, LENGTH(cases));
}

static void test_truncation(void)
{
    size_t i, n;

    for (i = 0; i < LENGTH(sizes); i++) {
        uint8_t in[64];
        valid(sizes[i].part, in);
        for (n = 0; n < sizes[i].wire; n++) {
            uint8_t *exact = malloc(n + 1); /* so that a sanitizer sees a read past the end */
            memcpy(exact, in, n);
            expect(sizes[i].part, exact, n, MQQB_NEED_MORE, "truncated");
            free(exact);
        }
        expect(sizes[i].part, in, n, MQQB_OK, "complete");
        expect(sizes[i].part, NULL, 0, MQQB_NEED_MORE, "nothing");
    }
}

/* PacketSize has another lower limit for each setting of IN; and every flag bit is carried. */
static void test_base_flags(void)
{
    static const struct {
        uint32_t flags, size;
        mqqb_status status;
    } cases[] = {
        {0x0000, 119, MQQB_BAD_PACKET_SIZE},
        {0x0000, 120, MQQB_OK},
        {0x0003, 20, MQQB_BAD_PACKET_SIZE},
        {0x0013, 119, MQQB_BAD_PACKET_SIZE},
        {0x0010, 120, MQQB_OK},
        {0xFFF7, 119, MQQB_BAD_PACKET_SIZE},
        {0xFFF7, 120, MQQB_OK},
        {0x0008, 19, MQQB_BAD_PACKET_SIZE},
        {0x0008, 20, MQQB_OK},
        {0xFFFF, 20, MQQB_OK},
        {0x001B, 36, MQQB_OK},
        {0x0000, 0, MQQB_BAD_PACKET_SIZE},
        {0x0008, 0, MQQB_BAD_PACKET_SIZE},
        {0x0000, 0x400000, MQQB_OK},
        {0x0000, 0x400001, MQQB_BAD_PACKET_SIZE},
        {0x0008, 0xFFFFFFFF, MQQB_BAD_PACKET_SIZE},
    };
    uint8_t in[16];
    mqqb_base_header h;
    uint32_t flags;
    size_t i;

    valid(MQQB_BASE_HEADER, in);
    for (i = 0; i < LENGTH(cases); i++) {
        le(in + 2, cases[i].flags, 2);
        le(in + 8, cases[i].size, 4);
        expect(MQQB_BASE_HEADER, in, 16, cases[i].status, "base flags");
    }
    le(in + 8, 120, 4);
    for (flags = 0; flags < 0x10000; flags += 1) {
        le(in + 2, flags, 2);
        CHECK(mqqb_unpack(MQQB_BASE_HEADER, &h, in, 16) == MQQB_OK && h.flags == flags);
    }
}

/* Where more than one thing is wrong, the status is that of the first in the order of their numbers. */
static void test_first_fault_wins(void)
{
    uint8_t in[64];

    memset(in, 0xFF, sizeof in);
    expect(MQQB_BASE_HEADER, in, 16, MQQB_BAD_VERSION_NUMBER, "all");
    in[0] = 0x10;
    expect(MQQB_BASE_HEADER, in, 16, MQQB_BAD_SIGNATURE, "signature and size");
    memset(in, 0, sizeof in);
    memset(in + 16, 0xFF, 4);
    expect(MQQB_TRANSACTION_HEADER, in, 20, MQQB_BAD_TX_SEQUENCE_NUMBER, "number and previous");
    memset(in, 0, sizeof in);
    expect(MQQB_CONNECTION_PARAMETERS, in, 12, MQQB_BAD_RECOVERABLE_ACK_TIMEOUT, "both times");
#ifndef MQQB_MINIMAL
    expect(MQQB_SECURITY_HEADER, in, 16, MQQB_BAD_SECURITY_SIZE, "no sizes");
    in[0] = 3;
    expect(MQQB_SECURITY_HEADER, in, 16, MQQB_BAD_SENDER_ID_TYPE, "type and sizes");
    memset(in, 0, sizeof in);
    in[1] = 0xFB;
    in[32] = 1;
    expect(MQQB_MESSAGE_PROPERTIES_HEADER, in, 56, MQQB_BAD_LABEL_LENGTH, "label and body");
#endif
}

#ifndef MQQB_MINIMAL
/* UserHeader.Flags: all combinations of what has a rule, judged by the tables of wire.md 2.2. */
static void test_user_flags(void)
{
    static const char dq[] = "y  y y y", aq[] = "y yy yyy"; /* by selector, y is allowed */
    static const uint32_t hops[] = {0, 1, 0x1C, 0x1D, 0x1E, 0x1F};
    uint8_t in[48];
    uint32_t i, rc, combination;

    valid(MQQB_USER_HEADER, in);
    for (i = 0; i < LENGTH(hops); i++) {
        rc = hops[i];
        for (combination = 0; combination < 1u << 14; combination++) {
            const uint32_t dm = combination & 3, d = combination >> 2 & 7, a = combination >> 5 & 7,
                           r = combination >> 8 & 7, th = combination >> 11 & 1, mp = combination >> 12 & 1,
                           ah = combination >> 13 & 1;
            const uint32_t rest = random32() & 0xFCC00380u & ~0x02000000u;
            mqqb_status status = MQQB_OK;
            if (ah) {
                status = MQQB_BAD_HTTP_FLAG;
            }
            if (!mp) {
                status = MQQB_BAD_PROPERTIES_FLAG;
            }
            if (th && dm == 0) {
                status = MQQB_BAD_TRANSACTION_MODE;
            }
            if (aq[a] != 'y') {
                status = MQQB_BAD_ADMIN_TYPE;
            }
            if (dq[d] != 'y') {
                status = MQQB_BAD_DESTINATION_TYPE;
            }
            if (dm > 1) {
                status = MQQB_BAD_DELIVERY_MODE;
            }
            if (rc > 29) {
                status = MQQB_BAD_HOP_COUNT;
            }
            le(in + 44, rc | dm << 5 | d << 10 | a << 13 | r << 16 | th << 20 | mp << 21 | ah << 25 | rest, 4);
            expect(MQQB_USER_HEADER, in, 48, status, "flags");
        }
    }
    for (rc = 0; rc < 32; rc++) {
        le(in + 44, 0x00201C00 | rc, 4);
        expect(MQQB_USER_HEADER, in, 48, rc > 29 ? MQQB_BAD_HOP_COUNT : MQQB_OK, "hop count");
    }
}

/* At least one of the five sizes; each alone is enough, down to its highest and lowest bit. */
static void test_security_sizes(void)
{
    static const struct {
        unsigned offset, width;
    } size[] = {{2, 2}, {4, 2}, {6, 2}, {8, 2}, {12, 4}};
    uint8_t in[16];
    unsigned i, bit;

    memset(in, 0, sizeof in);
    expect(MQQB_SECURITY_HEADER, in, 16, MQQB_BAD_SECURITY_SIZE, "all sizes 0");
    for (i = 0; i < LENGTH(size); i++) {
        for (bit = 0; bit < 8 * size[i].width; bit++) {
            memset(in, 0, sizeof in);
            in[0] = (uint8_t)(bit % 3);
            in[1] = 0xF0;
            le(in + size[i].offset, (uint64_t)1 << bit, size[i].width);
            expect(MQQB_SECURITY_HEADER, in, 16, MQQB_OK, "one size");
        }
    }
}
#endif

/* ---- framing --------------------------------------------------------------------------------------- */

static void test_packet_total(void)
{
    uint32_t flags;

    for (flags = 0; flags < 0x10000; flags++) {
        const int internal = flags >> 3 & 1, session = flags >> 4 & 1;
        CHECK_EQ(mqqb_packet_total(flags, 120), internal || !session ? 120 : 136);
    }
    CHECK_EQ(mqqb_packet_total(0x0010, 0x400000), 0x400010);
    CHECK_EQ(mqqb_packet_total(0x0018, 36), 36);
}

static void test_frame(void)
{
    uint8_t *in = calloc(1, 160);
    uint32_t total;
    size_t n;

    valid(MQQB_BASE_HEADER, in);
    le(in + 2, 0x0010, 2);
    le(in + 8, 124, 4);
    for (n = 0; n < 160; n++) {
        total = 77;
        CHECK_EQ(mqqb_frame(in, n, &total), n < 140 ? MQQB_NEED_MORE : MQQB_OK);
        CHECK_EQ(total, n < 16 ? 16 : 140);
    }
    le(in + 2, 0x0018, 2);
    for (n = 0; n < 160; n++) {
        total = 77;
        CHECK_EQ(mqqb_frame(in, n, &total), n < 124 ? MQQB_NEED_MORE : MQQB_OK);
        CHECK_EQ(total, n < 16 ? 16 : 124);
    }
    total = 77;
    le(in + 8, 0x400000, 4);
    CHECK_EQ(mqqb_frame(in, 160, &total), MQQB_NEED_MORE);
    CHECK_EQ(total, 0x400000);
    le(in + 8, 0x400001, 4);
    total = 77;
    CHECK_EQ(mqqb_frame(in, 160, &total), MQQB_BAD_PACKET_SIZE);
    CHECK_EQ(mqqb_frame(in, 16, &total), MQQB_BAD_PACKET_SIZE);
    in[4] ^= 1;
    CHECK_EQ(mqqb_frame(in, 160, &total), MQQB_BAD_SIGNATURE);
    in[0] = 0;
    CHECK_EQ(mqqb_frame(in, 160, &total), MQQB_BAD_VERSION_NUMBER);
    CHECK_EQ(total, 77);
    CHECK_EQ(mqqb_frame(in, 15, &total), MQQB_NEED_MORE); /* too early to judge */
    CHECK_EQ(total, 16);
    free(in);
}

/* ---- serial arithmetic and the bit field ------------------------------------------------------------- */

static void test_serial_after(void)
{
    static const struct {
        uint32_t a, b;
        int after;
    } cases[] = {
        {0, 0, 0},           {1, 0, 1},           {0, 1, 0},           {0, 0xFFFF, 1},      {0xFFFF, 0, 0},
        {1, 0xFFFF, 1},      {0xFFFF, 0xFFFE, 1}, {0x7FFF, 0, 1},      {0x8000, 0, 0},      {0x8001, 0, 0},
        {0, 0x8000, 0},      {0, 0x8001, 1},      {0, 0x7FFF, 0},      {0xFFFF, 0xFFFF, 0}, {0x8000, 0x7FFF, 1},
        {0x7FFF, 0x8000, 0}, {0x7FFE, 0xFFFF, 1}, {0x7FFF, 0xFFFF, 0}, {5, 0xFFF0, 1},      {0xFFF0, 5, 0},
    };
    uint32_t b;
    size_t i;

    for (i = 0; i < LENGTH(cases); i++) {
        CHECK_EQ(mqqb_serial_after(cases[i].a, cases[i].b), cases[i].after);
    }
    for (b = 0; b < 0x10000; b += 13) { /* one turn around each b: 32767 after it, then 32769 not */
        uint32_t steps, after = 0;
        for (steps = 1; steps < 0x10000; steps += 97) {
            after += (uint32_t)(mqqb_serial_after((b + steps) & 0xFFFF, b) == (steps <= 0x7FFF));
        }
        CHECK_EQ(after, (0x10000 - 2) / 97 + 1);
    }
}

/* A few of all 2^32 pairs, which exhaustive.c tries. */
static void test_ack_bits(void)
{
    static const struct {
        uint32_t base, flags, seq;
        int acked;
    } cases[] = {
        {7, 0, 7, 0},
        {6, 7, 8, 1},
        {6, 7, 9, 0},
        {6, 5, 7, 0},
        {100, 2, 100, 1},
        {100, 2, 99, 1},
        {0xFFFF, 3, 0, 1},
        {0xFFFF, 3, 1, 0},
        {100, 0xFFFFFFFF, 131, 1},
        {100, 0xFFFFFFFF, 132, 0},
    };
    size_t i;

    for (i = 0; i < LENGTH(cases); i++) {
        CHECK_EQ(mqqb_is_acked(cases[i].base, cases[i].flags, cases[i].seq), cases[i].acked);
    }
}

/* ---- a session -------------------------------------------------------------------------------------------- */

/* A message comes in and is stored at once. */
static mqqb_status arrive(mqqb_session *s, int recoverable)
{
    mqqb_session_received(s, recoverable);
    return mqqb_session_stored(s, recoverable);
}

static void test_init(void)
{
    static const uint32_t windows[] = {1, 2, 64, 0x7FFF, 0x8000, 0xFFFF};
    size_t i, j;

    for (i = 0; i < LENGTH(windows); i++) {
        mqqb_session s;
        memset(&s, 0xEE, sizeof s);
        mqqb_session_init(&s, windows[i]);
        for (j = 0; j < sizeof s / 4 - 2; j++) {
            uint32_t word;
            memcpy(&word, (uint8_t *)&s + 4 * j, 4);
            CHECK_EQ(word, 0);
        }
        CHECK_EQ(s.window_size, windows[i]);
        CHECK_EQ(s.received_window_size, windows[i]);
        CHECK_EQ(mqqb_session_can_send(&s), 1);
    }
}

/* 31, 32, 33 recoverable messages since the last header, at every kind of start. */
static void test_bit_field_is_full_at_32(void)
{
    static const uint32_t starts[] = {0, 1, 100, 0x7FF0, 0x8000, 0xFFDF, 0xFFE0, 0xFFE1, 0xFFFE, 0xFFFF};
    size_t i;
    uint32_t k;

    for (i = 0; i < LENGTH(starts); i++) {
        mqqb_session s, before;
        mqqb_session_header h;
        mqqb_session_init(&s, 64);
        s.message_received_count = s.message_stored_count = s.acked_message_count = starts[i];
        s.recoverable_message_received_count = s.recoverable_message_stored_count = starts[i];
        s.last_acked_recoverable_msg_seq_number = starts[i];
        for (k = 0; k < 32; k++) {
            CHECK_EQ(arrive(&s, 1), MQQB_OK);
            CHECK_EQ(s.recoverable_msg_ack_flags, k == 31 ? 0xFFFFFFFF : ((uint32_t)1 << (k + 1)) - 1);
            CHECK_EQ(s.recoverable_message_stored_count, (starts[i] + k + 1) & 0xFFFF);
        }
        mqqb_session_received(&s, 1);
        before = s;
        CHECK_EQ(mqqb_session_stored(&s, 1), MQQB_ACK_FIRST);
        CHECK_BYTES(&s, &before, sizeof s);
        mqqb_session_fill(&s, &h);
        CHECK_EQ(h.recoverable_msg_ack_seq_number, (starts[i] + 1) & 0xFFFF);
        CHECK_EQ(h.recoverable_msg_ack_flags, 0xFFFFFFFF);
        CHECK_EQ(h.ack_sequence_number, (starts[i] + 32) & 0xFFFF);
        CHECK_EQ(mqqb_session_stored(&s, 1), MQQB_OK);
        CHECK_EQ(s.recoverable_msg_ack_flags, 1);
        mqqb_session_fill(&s, &h);
        CHECK_EQ(h.recoverable_msg_ack_seq_number, (starts[i] + 33) & 0xFFFF);
        CHECK_EQ(h.recoverable_msg_ack_flags, 1);
        CHECK_EQ(h.ack_sequence_number, (starts[i] + 33) & 0xFFFF);
        for (k = 0; k < 40; k++) { /* express messages need no bit */
            CHECK_EQ(arrive(&s, 0), MQQB_OK);
        }
    }
}

/* A SessionHeader that fits the session's counts. */
static mqqb_session_header fitting(const mqqb_session *s)
{
    mqqb_session_header h = {0, 0, 0, 0, 0, 64, 0};

    h.ack_sequence_number = s->peer_acked_message_count;
    h.user_msg_sequence_number = s->message_received_count;
    h.recoverable_msg_sequence_number = s->recoverable_message_received_count;
    return h;
}

static void test_window(void)
{
    static const struct {
        uint32_t ours, theirs;
    } cases[] = {{1, 1}, {1, 64}, {64, 1}, {2, 3}, {31, 31}, {32, 32}, {33, 33}, {64, 64}, {64, 0xFFFF}, {0xFFFF, 40}};
    size_t i;

    for (i = 0; i < LENGTH(cases); i++) {
        const uint32_t least = cases[i].ours < cases[i].theirs ? cases[i].ours : cases[i].theirs;
        mqqb_session s;
        mqqb_session_header h;
        uint32_t n;
        mqqb_session_init(&s, cases[i].ours);
        h = fitting(&s);
        h.window_size = cases[i].theirs;
        CHECK_EQ(mqqb_session_check(&s, &h, 0), MQQB_OK);
        CHECK_EQ(s.received_window_size, cases[i].theirs);
        CHECK_EQ(s.window_size, cases[i].ours);
        s.message_sent_count = s.peer_acked_message_count = 0xFFF0; /* so that the counts wrap on the way */
        for (n = 0; n < least; n++) {
            CHECK_EQ(mqqb_session_can_send(&s), 1);
            CHECK_EQ(mqqb_session_unacked_sent(&s), n);
            mqqb_session_sent(&s, 0);
        }
        CHECK_EQ(mqqb_session_can_send(&s), 0);
        h = fitting(&s);
        h.window_size = cases[i].theirs;
        h.ack_sequence_number = 0xFFF1;
        CHECK_EQ(mqqb_session_check(&s, &h, 0), MQQB_OK);
        CHECK_EQ(mqqb_session_can_send(&s), 1);
        CHECK_EQ(mqqb_session_unacked_sent(&s), least - 1);
        h.ack_sequence_number = 0xFFF0; /* an older one lowers nothing */
        CHECK_EQ(mqqb_session_check(&s, &h, 0), MQQB_OK);
        CHECK_EQ(mqqb_session_unacked_sent(&s), least - 1);
        mqqb_session_fill(&s, &h);
        CHECK_EQ(h.window_size, cases[i].ours);
    }
}

/* The widest windows: serial arithmetic still tells every number on the way from every older one. */
static void test_window_never_outruns_serial_arithmetic(void)
{
    mqqb_session s;
    mqqb_session_header h;
    uint32_t n = 0;

    mqqb_session_init(&s, 0xFFFF);
    h = fitting(&s);
    h.window_size = 0xFFFF;
    CHECK_EQ(mqqb_session_check(&s, &h, 0), MQQB_OK);
    while (mqqb_session_can_send(&s) && n < 0x10000) {
        mqqb_session_sent(&s, 1);
        n++;
    }
    CHECK_EQ(n, 0x7FFF);
    CHECK_EQ(mqqb_session_check(&s, &h, 0), MQQB_OK); /* no progress is no error */
    CHECK_EQ(mqqb_session_unacked_sent(&s), 0x7FFF);
    h.ack_sequence_number = 0x7FFF;
    CHECK_EQ(mqqb_session_check(&s, &h, 0), MQQB_OK);
    CHECK_EQ(mqqb_session_unacked_sent(&s), 0);
}

/* Acknowledgement of what was never sent closes the session and changes nothing. */
static void test_bad_ack_count(void)
{
    static const struct {
        uint32_t sent, recoverable_sent, ack, base, flags;
        mqqb_status status;
    } cases[] = {
        {0, 0, 0, 0, 0, MQQB_OK},
        {0, 0, 1, 0, 0, MQQB_BAD_ACK_COUNT},
        {10, 0, 10, 0, 0, MQQB_OK},
        {10, 0, 11, 0, 0, MQQB_BAD_ACK_COUNT},
        {10, 0, 10 + 0x7FFF, 0, 0, MQQB_BAD_ACK_COUNT},
        {10, 0, 10 + 0x8000, 0, 0, MQQB_OK}, /* half the circle away counts as older */
        {10, 0, 0xFFFF, 0, 0, MQQB_OK},      /* older */
        {2, 0, 0xFFFE, 0, 0, MQQB_OK},
        {0xFFFF, 0, 0, 0, 0, MQQB_BAD_ACK_COUNT},
        {0, 0, 0xFFFF, 0, 0, MQQB_OK},
        /* Bits: base + k up to the last recoverable number. */
        {10, 3, 0, 1, 7, MQQB_OK},
        {10, 3, 0, 1, 8, MQQB_BAD_ACK_COUNT},
        {10, 3, 0, 1, 15, MQQB_BAD_ACK_COUNT},
        {10, 3, 0, 3, 1, MQQB_OK},
        {10, 3, 0, 3, 2, MQQB_BAD_ACK_COUNT},
        {10, 3, 0, 3, 3, MQQB_BAD_ACK_COUNT},
        {10, 3, 0, 4, 1, MQQB_BAD_ACK_COUNT},
        {10, 3, 0, 4, 2, MQQB_BAD_ACK_COUNT},
        {10, 3, 0, 2, 3, MQQB_OK},
        {10, 3, 0, 2, 2, MQQB_OK},
        {10, 3, 0, 2, 4, MQQB_BAD_ACK_COUNT},
        {10, 3, 0, 1, 0x80000000, MQQB_BAD_ACK_COUNT},
        {10, 3, 0, 4, 0, MQQB_OK}, /* with no bits the base says nothing */
        {10, 3, 0, 0xFFFF, 0, MQQB_OK},
        /* All 32 bits, just sent and one short. */
        {40, 32, 0, 1, 0xFFFFFFFF, MQQB_OK},
        {40, 31, 0, 1, 0xFFFFFFFF, MQQB_BAD_ACK_COUNT},
        {40, 31, 0, 1, 0x7FFFFFFF, MQQB_OK},
        {40, 30, 0, 1, 0x7FFFFFFF, MQQB_BAD_ACK_COUNT},
        {40, 30, 0, 1, 0x3FFFFFFF, MQQB_OK},
        {40, 33, 0, 1, 0xFFFFFFFF, MQQB_OK},
        {40, 33, 0, 2, 0x80000000, MQQB_OK},
        {40, 33, 0, 3, 0x80000000, MQQB_BAD_ACK_COUNT},
        /* Across the wrap. */
        {10, 1, 0, 0xFFFF, 7, MQQB_OK},
        {10, 1, 0, 0xFFFF, 15, MQQB_BAD_ACK_COUNT},
        {10, 0, 0, 0xFFE1, 0xFFFFFFFF, MQQB_OK},
        {10, 0, 0, 0xFFE2, 0xFFFFFFFF, MQQB_BAD_ACK_COUNT},
        {10, 0xFFFF, 0, 0, 1, MQQB_BAD_ACK_COUNT},
        {10, 0xFFFF, 0, 0xFFFF, 1, MQQB_OK},
        {10, 0xFFFF, 0, 0xFFFF, 3, MQQB_BAD_ACK_COUNT},
        {10, 5, 0, 5 + 0x7FFF, 1, MQQB_BAD_ACK_COUNT},
        {10, 5, 0, 5 + 0x8000, 1, MQQB_OK},
    };
    size_t i;
    int carried;

    for (i = 0; i < LENGTH(cases); i++) {
        for (carried = 0; carried < 2; carried++) {
            mqqb_session s, before;
            mqqb_session_header h;
            mqqb_session_init(&s, 64);
            s.message_sent_count = cases[i].sent;
            s.recoverable_message_sent_count = cases[i].recoverable_sent;
            h = fitting(&s);
            h.ack_sequence_number = cases[i].ack;
            h.recoverable_msg_ack_seq_number = cases[i].base;
            h.recoverable_msg_ack_flags = cases[i].flags;
            h.window_size = 9;
            before = s;
            CHECK_EQ(mqqb_session_check(&s, &h, carried), cases[i].status);
            if (cases[i].status != MQQB_OK) {
                CHECK_BYTES(&s, &before, sizeof s);
            } else {
                CHECK_EQ(s.received_window_size, 9);
            }
        }
    }
}

/* The peer's counts against ours, in a SessionAck and at the end of a message (OP-14). */
static void test_bad_message_count(void)
{
    int user, recoverable, carried;
    static const uint32_t starts[] = {0, 1, 2, 500, 0x8000, 0xFFFF};
    size_t i;

    for (i = 0; i < LENGTH(starts); i++) {
        for (carried = 0; carried < 2; carried++) {
            for (user = -3; user <= 3; user++) {
                for (recoverable = -3; recoverable <= 3; recoverable++) {
                    const int same = user == 0 && recoverable == 0;
                    const int left_out = carried && user == -1 && (recoverable == 0 || recoverable == -1);
                    mqqb_session s;
                    mqqb_session_header h;
                    mqqb_session_init(&s, 64);
                    s.message_sent_count = 10;
                    s.message_received_count = starts[i];
                    s.recoverable_message_received_count = (starts[i] + 0xFFFE) & 0xFFFF;
                    h = fitting(&s);
                    h.user_msg_sequence_number = (h.user_msg_sequence_number + (uint32_t)user) & 0xFFFF;
                    h.recoverable_msg_sequence_number =
                        (h.recoverable_msg_sequence_number + (uint32_t)recoverable) & 0xFFFF;
                    h.ack_sequence_number = 8;
                    h.window_size = 7;
                    CHECK_EQ(mqqb_session_check(&s, &h, carried), same || left_out ? MQQB_OK : MQQB_BAD_MESSAGE_COUNT);
                    CHECK_EQ(s.peer_acked_message_count, 8); /* adopted all the same: deliver, then close */
                    CHECK_EQ(s.received_window_size, 7);
                }
            }
        }
    }
}

/* Two sessions joined by a wire, against plain lists of what was sent, stored and acknowledged that know no modulus. */
typedef struct {
    mqqb_session s;
    unsigned long sent, recoverable_sent, received, recoverable_received, stored, recoverable_stored;
    unsigned long covered, covered_recoverable; /* by the headers it has sent */
    unsigned long acked;                        /* by the headers it has got */
    unsigned char kind[4096];                   /* of each message on the way to it: recoverable? */
    unsigned char recoverable_acked[200000];    /* what is_acked has said of each number */
} end;

static void random_header(end *from, end *to, int carried)
{
    mqqb_session_header h;
    uint8_t wire[16];
    unsigned long base, k, expected_flags = 0;

    for (k = 0; k < from->recoverable_stored - from->covered_recoverable; k++) {
        expected_flags |= 1ul << k;
    }
    base = expected_flags != 0 ? from->covered_recoverable + 1 : 0;
    mqqb_session_fill(&from->s, &h);
    CHECK_EQ(h.ack_sequence_number, from->stored % 65536);
    CHECK_EQ(h.recoverable_msg_ack_seq_number, base % 65536);
    CHECK_EQ(h.recoverable_msg_ack_flags, expected_flags);
    CHECK_EQ(h.user_msg_sequence_number, from->sent % 65536);
    CHECK_EQ(h.recoverable_msg_sequence_number, from->recoverable_sent % 65536);
    from->covered = from->stored;
    from->covered_recoverable = from->recoverable_stored;
    CHECK_EQ(mqqb_session_unacked_received(&from->s), from->received - from->covered);
    mqqb_pack(MQQB_SESSION_HEADER, &h, wire, sizeof wire);
    CHECK_EQ(mqqb_unpack(MQQB_SESSION_HEADER, &h, wire, sizeof wire), MQQB_OK);
    CHECK_EQ(mqqb_session_check(&to->s, &h, carried), MQQB_OK);
    to->acked = from->stored;
    CHECK_EQ(mqqb_session_unacked_sent(&to->s), to->sent - to->acked);
    for (k = to->recoverable_sent > 64 ? to->recoverable_sent - 64 : 1; k <= to->recoverable_sent; k++) {
        if (mqqb_is_acked(h.recoverable_msg_ack_seq_number, h.recoverable_msg_ack_flags, (uint32_t)(k % 65536))) {
            CHECK(k <= from->recoverable_stored);
            to->recoverable_acked[k] = 1;
        }
        /* Nothing that is stored and covered stays unacknowledged. */
        CHECK(to->recoverable_acked[k] == (k <= from->covered_recoverable));
    }
}

static void test_random_sessions(void)
{
    end *ends[2];
    unsigned long step;
    int i;

    for (i = 0; i < 2; i++) {
        ends[i] = calloc(1, sizeof(end));
        mqqb_session_init(&ends[i]->s, i == 0 ? 40 : 64);
    }
    for (step = 0; step < 500000; step++) {
        end *const from = ends[step & 1], *const to = ends[~step & 1];
        const uint32_t what = below(100);
        if (what < 60) {
            const int recoverable = below(10) < 8;
            const int may = mqqb_session_can_send(&from->s);
            CHECK(may == (from->sent - from->acked < 40)); /* the smaller of 40 and 64, once both are known */
            if (may && from->recoverable_sent < 199990 && from->sent - to->stored < 4000) {
                mqqb_session_sent(&from->s, recoverable);
                from->sent++;
                from->recoverable_sent += (unsigned long)recoverable;
                to->kind[from->sent % 4096] = (unsigned char)recoverable;
                mqqb_session_received(&to->s, recoverable);
                to->received++;
                to->recoverable_received += (unsigned long)recoverable;
                if (below(10) == 0) {
                    random_header(from, to, 1);
                }
            }
        } else if (what < 95) {
            if (from->stored < from->received) {
                const int recoverable = from->kind[(from->stored + 1) % 4096];
                const mqqb_status status = mqqb_session_stored(&from->s, recoverable);
                if (recoverable && from->recoverable_stored - from->covered_recoverable == 32) {
                    CHECK_EQ(status, MQQB_ACK_FIRST);
                    random_header(from, to, 0);
                } else {
                    CHECK_EQ(status, MQQB_OK);
                    from->stored++;
                    from->recoverable_stored += (unsigned long)recoverable;
                }
            }
        } else {
            random_header(from, to, 0);
        }
        if (step == 2) { /* each learns the other's window with the first header */
            random_header(from, to, 0);
            random_header(to, from, 0);
        }
    }
    CHECK(ends[0]->sent > 70000 && ends[1]->sent > 70000); /* the counts have wrapped */
    free(ends[0]);
    free(ends[1]);
}

/* ---- transactional order -------------------------------------------------------------------------------- */

static void test_tx_compare(void)
{
    static const uint32_t parts[] = {0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF};
    size_t a, b, c, d;

    for (a = 0; a < LENGTH(parts); a++) {
        for (b = 0; b < LENGTH(parts); b++) {
            for (c = 0; c < LENGTH(parts); c++) {
                for (d = 0; d < LENGTH(parts); d++) {
                    const uint64_t left = (uint64_t)parts[b] << 32 | parts[a],
                                   right = (uint64_t)parts[d] << 32 | parts[c];
                    CHECK_EQ(mqqb_tx_compare(parts[a], parts[b], parts[c], parts[d]), left < right   ? -1
                                                                                      : left > right ? 1
                                                                                                     : 0);
                }
            }
        }
    }
}

/* All small (in, header) pairs against the formula of B-270 as it is written. */
static void test_acceptance_formula(void)
{
    uint32_t in_id, in_number, id, number, previous;

    for (in_id = 0; in_id < 4; in_id++) {
        for (in_number = 0; in_number < 5; in_number++) {
            for (id = 0; id < 4; id++) {
                for (number = 1; number < 7; number++) {
                    for (previous = 0; previous < 7; previous++) {
                        mqqb_incoming in = {0, 0, 0, 3};
                        mqqb_transaction_header h = {0, 0, 0, 0, 0};
                        const int formula = (id == in_id && number > in_number && previous <= in_number) ||
                                            (id > in_id && previous == 0);
                        in.tx_sequence_ordinal = in_id & 1;
                        in.tx_sequence_time_stamp = in_id >> 1;
                        in.tx_sequence_number = in_number;
                        h.tx_sequence_ordinal = id & 1;
                        h.tx_sequence_time_stamp = id >> 1;
                        h.tx_sequence_number = number;
                        h.previous_tx_sequence_number = previous;
                        CHECK_EQ(mqqb_accept(&in, &h), formula);
                        CHECK_EQ(in.tx_sequence_number, formula ? number : in_number);
                        CHECK_EQ(in.reject_count, formula ? 0 : 4);
                    }
                }
            }
        }
    }
}

static void test_stamp(void)
{
    mqqb_outgoing out = {41, 1600000000, 1, 0};
    uint32_t i;

    for (i = 1; i <= 50; i++) {
        mqqb_transaction_header h = {0xABCDEF0C, 9, 9, 9, 9};
        CHECK_EQ(mqqb_stamp(&out, (i - 1) / 2, &h), MQQB_OK); /* those between have expired */
        CHECK_EQ(h.flags, 0xABCDEF0C);
        CHECK_EQ(h.tx_sequence_ordinal, 41);
        CHECK_EQ(h.tx_sequence_time_stamp, 1600000000);
        CHECK_EQ(h.tx_sequence_number, i);
        CHECK_EQ(h.previous_tx_sequence_number, (i - 1) / 2);
        CHECK_EQ(out.tx_sequence_number, i + 1);
        CHECK_EQ(out.last_ack, 0);
        CHECK_EQ(out.tx_sequence_ordinal, 41);
    }
}

static void test_stream_full(void)
{
    mqqb_outgoing out = {5, 6, 0xFFFFFFFE, 0}, before;
    mqqb_transaction_header h = {0, 0, 0, 0, 0}, same;

    CHECK_EQ(mqqb_stamp(&out, 0xFFFFFFFD, &h), MQQB_OK);
    CHECK_EQ(h.tx_sequence_number, 0xFFFFFFFE);
    before = out;
    same = h;
    CHECK_EQ(mqqb_stamp(&out, 0xFFFFFFFE, &h), MQQB_STREAM_FULL);
    CHECK_BYTES(&out, &before, sizeof out);
    CHECK_BYTES(&h, &same, sizeof h);
    mqqb_roll(&out);
    CHECK_EQ(mqqb_stamp(&out, 0, &h), MQQB_OK);
    CHECK_EQ(h.tx_sequence_number, 1);
    CHECK_EQ(h.tx_sequence_ordinal, 6);
}

static mqqb_order_ack order_ack(uint32_t ordinal, uint32_t time_stamp, uint32_t number)
{
    mqqb_order_ack ack;

    memset(&ack, 0x77, sizeof ack);
    ack.tx_sequence_ordinal = ordinal;
    ack.tx_sequence_time_stamp = time_stamp;
    ack.tx_sequence_number = number;
    return ack;
}

static void test_order_acks(void)
{
    static const struct {
        uint32_t ordinal, time_stamp, number;
        mqqb_status status;
        uint32_t last_ack;
    } steps[] = {
        {100, 7, 3, MQQB_OK, 3},       {100, 7, 3, MQQB_IGNORED, 3}, {100, 7, 2, MQQB_IGNORED, 3},
        {100, 7, 0, MQQB_IGNORED, 3},  {100, 7, 9, MQQB_IGNORED, 3}, {100, 7, 0xFFFFFFFF, MQQB_IGNORED, 3},
        {100, 7, 10, MQQB_IGNORED, 3}, {99, 7, 5, MQQB_IGNORED, 3},  {101, 7, 5, MQQB_IGNORED, 3},
        {100, 6, 5, MQQB_IGNORED, 3},  {100, 8, 5, MQQB_IGNORED, 3}, {7, 100, 5, MQQB_IGNORED, 3},
        {100, 7, 4, MQQB_OK, 4},       {100, 7, 8, MQQB_OK, 8},      {100, 7, 8, MQQB_IGNORED, 8},
    };
    mqqb_outgoing out = {100, 7, 9, 0};
    size_t i;

    for (i = 0; i < LENGTH(steps); i++) {
        const mqqb_order_ack ack = order_ack(steps[i].ordinal, steps[i].time_stamp, steps[i].number);
        CHECK_EQ(mqqb_order_ack_received(&out, &ack), steps[i].status);
        CHECK_EQ(out.last_ack, steps[i].last_ack);
        CHECK_EQ(out.tx_sequence_number, 9);
        CHECK_EQ(out.tx_sequence_ordinal, 100);
        CHECK_EQ(out.tx_sequence_time_stamp, 7);
    }
}

static void test_roll(void)
{
    static const struct {
        mqqb_outgoing before, after;
    } cases[] = {
        {{1, 50, 1, 0}, {1, 50, 1, 0}},
        {{1, 50, 2, 0}, {2, 50, 1, 0}},
        {{1, 50, 9, 8}, {2, 50, 1, 0}},
        {{0xFFFFFFFF, 50, 2, 1}, {0, 51, 1, 0}},
        {{0xFFFFFFFF, 50, 1, 0}, {0xFFFFFFFF, 50, 1, 0}},
        {{0xFFFFFFFE, 50, 5, 4}, {0xFFFFFFFF, 50, 1, 0}},
        {{0, 50, 5, 4}, {1, 50, 1, 0}},
        {{3, 0xFFFFFFFF, 0xFFFFFFFF, 7}, {4, 0xFFFFFFFF, 1, 0}},
    };
    size_t i;

    for (i = 0; i < LENGTH(cases); i++) {
        mqqb_outgoing out = cases[i].before;
        mqqb_roll(&out);
        CHECK_BYTES(&out, &cases[i].after, sizeof out);
        CHECK_EQ(mqqb_tx_compare(out.tx_sequence_ordinal, out.tx_sequence_time_stamp,
                                 cases[i].before.tx_sequence_ordinal, cases[i].before.tx_sequence_time_stamp),
                 cases[i].before.tx_sequence_number != 1);
        mqqb_roll(&out); /* twice is once */
        CHECK_BYTES(&out, &cases[i].after, sizeof out);
    }
}

/* One stream over a link that breaks: whatever is lost, repeated or expired, the receiver takes each message at most
 * once and in order, and in the end all that did not expire (the model of behaviour.md 27.1, with the core as both ends). */
static void test_random_streams(void)
{
    enum { MESSAGES = 60, RUNS = 400 };
    int trial;

    for (trial = 0; trial < RUNS; trial++) {
        struct {
            mqqb_transaction_header h;
            int id, gone;
        } table[MESSAGES];
        mqqb_outgoing out = {1, 77, 1, 0};
        mqqb_incoming in = {0, 0, 0, 0};
        int entries = 0, next_id = 0, last_taken = -1, taken = 0, expired = 0, guard = 0, i, j;

        out.tx_sequence_ordinal = trial % 4 == 0 ? 0xFFFFFFFD : 1; /* the 64-bit id carries on the way */
        while ((next_id < MESSAGES || entries > 0) && guard++ < 20000) {
            if (next_id < MESSAGES && below(3) == 0) {
                const uint32_t previous = entries > 0 ? table[entries - 1].h.tx_sequence_number : 0;
                table[entries].h.flags = 0;
                CHECK_EQ(mqqb_stamp(&out, previous, &table[entries].h), MQQB_OK);
                table[entries].id = next_id++;
                table[entries].gone = 0;
                entries++;
            }
            if (below(2) == 0) { /* everything waiting goes out again; the link breaks somewhere on the way */
                const int reach = (int)below((uint32_t)entries + 1);
                for (i = 0; i < reach; i++) {
                    mqqb_transaction_header h = table[i].h;
                    h.previous_tx_sequence_number = i > 0 ? table[i - 1].h.tx_sequence_number : 0;
                    if (mqqb_accept(&in, &h)) {
                        CHECK(table[i].id > last_taken);
                        CHECK(!table[i].gone);
                        last_taken = table[i].id;
                        table[i].gone = 1;
                        taken++;
                    }
                }
            }
            if (entries > 0 && below(12) == 0) { /* one that the receiver does not have yet expires */
                i = (int)below((uint32_t)entries);
                if (!table[i].gone) {
                    expired++;
                    for (j = i; j + 1 < entries; j++) {
                        table[j] = table[j + 1];
                    }
                    entries--;
                }
            }
            if (below(3) == 0) { /* an OrderAck, in every second case a stale one */
                mqqb_order_ack ack =
                    order_ack(in.tx_sequence_ordinal, in.tx_sequence_time_stamp, in.tx_sequence_number);
                if (below(2) == 0 && ack.tx_sequence_number > 0) {
                    ack.tx_sequence_number = 1 + below(ack.tx_sequence_number);
                }
                if (mqqb_order_ack_received(&out, &ack) == MQQB_OK) {
                    for (i = j = 0; i < entries; i++) {
                        if (table[i].h.tx_sequence_number > out.last_ack) {
                            table[j++] = table[i];
                        } else {
                            CHECK(table[i].gone); /* nothing is settled that was not taken */
                        }
                    }
                    entries = j;
                }
            }
            if (entries == 0) {
                mqqb_roll(&out);
            }
        }
        CHECK_EQ(taken + expired, MESSAGES);
    }
}

/* ---- a caller's mistakes --------------------------------------------------------------------------------------- */

#ifndef NDEBUG
static void test_part_is_asserted(void)
{
    uint8_t bytes[96];
    any_part part;

    memset(bytes, 0, sizeof bytes);
    memset(&part, 0, sizeof part);
    CHECK_ASSERTS(mqqb_part_size(MQQB_PARTS));
    CHECK_ASSERTS(mqqb_part_words(MQQB_PARTS));
    CHECK_ASSERTS(mqqb_part_size((mqqb_part)-1));
    CHECK_ASSERTS(mqqb_part_words((mqqb_part)1000));
    CHECK_ASSERTS(mqqb_unpack(MQQB_PARTS, &part, bytes, sizeof bytes));
    CHECK_ASSERTS(mqqb_pack(MQQB_PARTS, &part, bytes, sizeof bytes));
}

static void test_pack_space_is_asserted(void)
{
    size_t i;

    for (i = 0; i < LENGTH(sizes); i++) {
        uint8_t in[64];
        any_part part;
        valid(sizes[i].part, in);
        CHECK_EQ(mqqb_unpack(sizes[i].part, &part, in, sizeof in), MQQB_OK);
        CHECK_ASSERTS(mqqb_pack(sizes[i].part, &part, in, sizes[i].wire - 1));
        CHECK_ASSERTS(mqqb_pack(sizes[i].part, &part, in, 0));
    }
}

/* A narrow field one above its wire type, and every value that unpack would refuse. */
static void check_pack_values(const field *f)
{
    uint8_t in[64];
    any_part part;

    valid(f->part, in);
    CHECK_EQ(mqqb_unpack(f->part, &part, in, sizeof in), MQQB_OK);
    if (f->width < 4) {
        part.words[f->member / 4] |= 1u << 8 * f->width;
        CHECK_ASSERTS(mqqb_pack(f->part, &part, in, sizeof in));
        part.words[f->member / 4] |= 0x80000000;
        CHECK_ASSERTS(mqqb_pack(f->part, &part, in, sizeof in));
    }
    if (!is_special(f) && verdict(f, 0) != MQQB_OK) {
        part.words[f->member / 4] = 0;
        CHECK_ASSERTS(mqqb_pack(f->part, &part, in, sizeof in));
    }
    if (f->width == 4 && !is_special(f) && verdict(f, 0xFFFFFFFF) != MQQB_OK) {
        part.words[f->member / 4] = 0xFFFFFFFF;
        CHECK_ASSERTS(mqqb_pack(f->part, &part, in, sizeof in));
    }
}

static void test_pack_values_are_asserted(void)
{
    const field *f;

    for (f = fields; f < fields + LENGTH(fields); f++) {
        if (f->width <= 4) {
            check_pack_values(f);
        }
    }
}

static void test_session_mistakes_are_asserted(void)
{
    mqqb_session s;
    mqqb_session_header h;

    CHECK_ASSERTS(mqqb_session_init(&s, 0));
    CHECK_ASSERTS(mqqb_session_init(&s, 0x10000));
    mqqb_session_init(&s, 64);
    CHECK_ASSERTS(mqqb_session_stored(&s, 0)); /* nothing received */
    CHECK_ASSERTS(mqqb_session_stored(&s, 1));
    mqqb_session_received(&s, 0);
    CHECK_ASSERTS(mqqb_session_stored(&s, 1)); /* nothing recoverable received */
    CHECK_EQ(mqqb_session_stored(&s, 0), MQQB_OK);
    CHECK_ASSERTS(mqqb_session_stored(&s, 0)); /* once each */
    CHECK_ASSERTS(mqqb_session_stored(&s, 2));
    CHECK_ASSERTS(mqqb_session_sent(&s, 2));
    CHECK_ASSERTS(mqqb_session_sent(&s, -1));
    CHECK_ASSERTS(mqqb_session_received(&s, 2));
    h = fitting(&s);
    CHECK_ASSERTS(mqqb_session_check(&s, &h, 2));
    CHECK_ASSERTS(mqqb_session_check(&s, &h, -1));
}

static void test_stream_mistakes_are_asserted(void)
{
    mqqb_outgoing out = {1, 1, 5, 0};
    mqqb_transaction_header h;

    CHECK_ASSERTS(mqqb_stamp(&out, 5, &h)); /* the previous number is lower */
    CHECK_ASSERTS(mqqb_stamp(&out, 6, &h));
    out.tx_sequence_number = 0; /* a record that was never set up */
    CHECK_ASSERTS(mqqb_stamp(&out, 0, &h));
}
#endif

int main(int argc, char **argv)
{
    seed_random(argc, argv, 1801);
    RUN("", test_every_status_has_a_name);
    RUN("wire.md 11", test_sizes);
    RUN("wire.md 2, 5, 6, 7", test_every_field_is_where_it_belongs);
    RUN("B-168 B-169 B-170 B-213", test_every_field_at_its_edges);
    RUN("B-168 B-169 B-170", test_every_value_of_small_fields);
    RUN("B-168 B-213 B-202 B-429 B-431 B-432", test_every_limit_from_both_sides);
    RUN("B-430", test_truncation);
    RUN("B-429", test_base_flags);
    RUN("B-169", test_first_fault_wins);
#ifndef MQQB_MINIMAL
    RUN("B-171 B-173", test_user_flags);
    RUN("B-432", test_security_sizes);
#endif
    RUN("A-51", test_packet_total);
    RUN("B-429 A-51", test_frame);
    RUN("B-090 A-23", test_serial_after);
    RUN("B-103 B-107 B-222 B-223", test_ack_bits);
    RUN("B-086 A-10", test_init);
    RUN("B-123 B-277 A-11", test_bit_field_is_full_at_32);
    RUN("B-118 B-119 B-120 A-25", test_window);
    RUN("B-090 A-23", test_window_never_outruns_serial_arithmetic);
    RUN("B-229", test_bad_ack_count);
    RUN("B-227 A-12 A-13", test_bad_message_count);
    RUN("B-086 B-101 B-102 B-103 B-108 B-123", test_random_sessions);
    RUN("B-078", test_tx_compare);
    RUN("B-270 B-271 B-272 A-01", test_acceptance_formula);
    RUN("B-092 B-317 A-08", test_stamp);
    RUN("A-24", test_stream_full);
    RUN("B-230 B-233 A-04", test_order_acks);
    RUN("B-096 A-05", test_roll);
    RUN("B-091 B-093 B-096 B-110 B-270 B-318", test_random_streams);
#ifndef NDEBUG
    RUN("mqqb.h: read/write rule", test_part_is_asserted);
    RUN("mqqb.h: read/write rule", test_pack_space_is_asserted);
    RUN("mqqb.h: read/write rule", test_pack_values_are_asserted);
    RUN("mqqb.h: read/write rule", test_session_mistakes_are_asserted);
    RUN("mqqb.h: read/write rule", test_stream_mistakes_are_asserted);
#endif
    return summary("test_mqqb");
}
