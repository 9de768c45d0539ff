/* SPDX-License-Identifier: MIT */
/* sender.c: sends one transactional message and waits until its destination has stored it. It needs mqqb.c and sockets.
 *
 *     cc -I.. sender.c ../mqqb.c -o sender && ./sender 10.0.0.5 1801 'TCP:10.0.0.5\private$\line1' 21.5
 *
 * A device has a GUID of its own. It keeps `stream` and the packet on flash before the packet leaves (B-098), and sends
 * the same packet again on each new connection until its OrderAck or FinalAck has come. */
#include "mqqb.h"

#include <arpa/inet.h>
#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define GUID "\xC0\xFF\xEE example's ID"
#define LABEL_BYTES 32u /* of "QM Ordering Ack" */
#define ACK_BYTES 192u  /* an OrderAck or a FinalAck has at least */

static uint8_t packet[1024];
static int line;

static void need(int is_good, const char *problem)
{
    if (!is_good) {
        errx(1, "%s", problem);
    }
}

static void put(mqqb_part part, const void *fields, size_t at)
{
    mqqb_pack(part, fields, packet + at, sizeof packet - at);
}

static void take(mqqb_part part, void *fields, size_t at)
{
    const mqqb_status status = mqqb_unpack(part, fields, packet + at, sizeof packet - at);
    need(status == MQQB_OK, mqqb_status_name(status));
}

static void write_packet(uint32_t flags, size_t size)
{
    const mqqb_base_header base = {MQQB_VERSION_NUMBER, 0, flags, MQQB_SIGNATURE, (uint32_t)size, 0xFFFFFFFFu};
    put(MQQB_BASE_HEADER, &base, 0);
    need(write(line, packet, size) == (ssize_t)size, "cannot write");
}

static void read_packet(mqqb_base_header *base)
{
    mqqb_status status;
    uint32_t total = 0;
    size_t have = 0;
    while ((status = mqqb_frame(packet, have, &total)) == MQQB_NEED_MORE) {
        need(total <= sizeof packet, "the peer's packet is too long");
        const ssize_t count = read(line, packet + have, total - have);
        need(count > 0, "the peer closed the connection");
        have += (size_t)count;
    }
    need(status == MQQB_OK, mqqb_status_name(status));
    take(MQQB_BASE_HEADER, base, 0);
}

/* Write a packet of the handshake, and read the answer into the same fields. */
static void exchange(uint32_t type, mqqb_part part, void *fields, size_t size)
{
    mqqb_internal_header internal = {0, type};
    mqqb_base_header base;
    put(MQQB_INTERNAL_HEADER, &internal, MQQB_BASE_END);
    put(part, fields, MQQB_INTERNAL_END);
    write_packet(MQQB_BASE_IN | 3, size);
    read_packet(&base);
    take(MQQB_INTERNAL_HEADER, &internal, MQQB_BASE_END);
    need(internal.flags == type, "the peer refused the session");
    take(part, fields, MQQB_INTERNAL_END);
}

static void write_message(const mqqb_transaction_header *transaction, const char *queue, const char *body)
{
    const size_t characters = strlen(queue) + 1, size = strlen(body);
    mqqb_user_header user = {.time_to_be_received = 0xFFFFFFFFu, .sent_time = (uint32_t)time(NULL), .message_id = 1};
    mqqb_message_properties_header properties = {.message_size = (uint32_t)size,
                                                 .allocation_body_size = (uint32_t)size};
    size_t at = MQQB_USER_END, i;
    need(2 * characters + size < sizeof packet - 200, "name and body are too long");
    memcpy(user.source_queue_manager, GUID, sizeof user.source_queue_manager);
    user.flags = MQQB_USER_MP | MQQB_USER_TH | MQQB_USER_DQ | 0x20; /* recoverable, to a direct name */
    memset(packet, 0, sizeof packet);
    put(MQQB_USER_HEADER, &user, MQQB_BASE_END);
    packet[at] = (uint8_t)(2 * characters);
    packet[at + 1] = (uint8_t)(2 * characters >> 8);
    for (i = 0; i < characters; i++) {
        packet[at + 2 + 2 * i] = (uint8_t)queue[i];
    }
    at += (2 + 2 * characters + 3) & ~(size_t)3;
    put(MQQB_TRANSACTION_HEADER, transaction, at);
    put(MQQB_MESSAGE_PROPERTIES_HEADER, &properties, at += MQQB_TRANSACTION_HEADER_SIZE);
    memcpy(packet + (at += MQQB_MESSAGE_PROPERTIES_HEADER_SIZE), body, size);
    write_packet(0, (at + size + 3) & ~(size_t)3);
}

/* An OrderAck or a FinalAck has come, and the packet is read: tell the peer. */
static void acknowledge(mqqb_session *session, int recoverable)
{
    const mqqb_internal_header internal = {0, MQQB_PT_SESSION_ACK};
    mqqb_session_header header;
    mqqb_session_received(session, recoverable);
    need(mqqb_session_stored(session, recoverable) == MQQB_OK, "too much is unacknowledged");
    mqqb_session_fill(session, &header);
    put(MQQB_INTERNAL_HEADER, &internal, MQQB_BASE_END);
    put(MQQB_SESSION_HEADER, &header, MQQB_INTERNAL_END);
    write_packet(MQQB_BASE_IN | MQQB_BASE_SH | 3, MQQB_PACKET_SIZE_SESSION_ACK);
}

static void await_order_ack(mqqb_session *session, mqqb_outgoing *stream)
{
    mqqb_message_properties_header properties;
    mqqb_session_header header;
    mqqb_base_header base;
    mqqb_order_ack ack = {0}; /* a FinalAck begins like it */
    for (;;) {
        read_packet(&base);
        if ((base.flags & MQQB_BASE_IN) != 0) {
            take(MQQB_SESSION_HEADER, &header, MQQB_INTERNAL_END);
            need(mqqb_session_check(session, &header, 0) == MQQB_OK, "a SessionAck does not fit");
            continue;
        }
        need(base.packet_size >= ACK_BYTES, "a device that only sends expects no message");
        const size_t body_at = base.packet_size - MQQB_ORDER_ACK_SIZE;
        take(MQQB_MESSAGE_PROPERTIES_HEADER, &properties, body_at - LABEL_BYTES - MQQB_MESSAGE_PROPERTIES_HEADER_SIZE);
        take(MQQB_ORDER_ACK, &ack, body_at);
        const int is_final = properties.message_class != 0x00FF;
        acknowledge(session, is_final);
        if (mqqb_order_ack_received(stream, &ack) == MQQB_OK) {
            need(!is_final, "the message was rejected");
            return;
        }
    }
}

int main(int count, char **words)
{
    struct sockaddr_in peer = {.sin_family = AF_INET};
    mqqb_establish_connection establish = {.operating_system = 0x0310};
    mqqb_connection_parameters parameters = {500, 20000, 0, 64};
    mqqb_transaction_header transaction = {.flags = MQQB_TX_FM | MQQB_TX_LM};
    mqqb_outgoing stream = {1, (uint32_t)time(NULL), 1, 0};
    mqqb_session session;
    need(count == 5 && inet_pton(AF_INET, words[1], &peer.sin_addr) == 1, "arguments: ADDRESS PORT QUEUE BODY");
    peer.sin_port = htons((uint16_t)atoi(words[2]));
    line = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(line, (struct sockaddr *)&peer, sizeof peer) == 0, "cannot connect");
    memcpy(establish.client_guid, GUID, sizeof establish.client_guid);
    exchange(MQQB_PT_ESTABLISH_CONNECTION, MQQB_ESTABLISH_CONNECTION, &establish,
             MQQB_PACKET_SIZE_ESTABLISH_CONNECTION);
    exchange(MQQB_PT_CONNECTION_PARAMETERS, MQQB_CONNECTION_PARAMETERS, &parameters,
             MQQB_PACKET_SIZE_CONNECTION_PARAMETERS);
    mqqb_session_init(&session, 64);
    need(mqqb_stamp(&stream, 0, &transaction) == MQQB_OK, "the sequence is full");
    mqqb_session_sent(&session, 1);
    write_message(&transaction, words[3], words[4]);
    await_order_ack(&session, &stream);
    printf("stored as number %u\n", (unsigned)stream.last_ack);
    return 0;
}
