/* mqqb_scan.h: splits bytes into packets and puts their fixed fields into columns, thousands of packets a call. For
 * hosts (captures, pipelines); firmware leaves this file out. The read/write rule and the statuses are mqqb.h's.
 *
 * COST. About 20 ns a packet on a desktop core from its caches, twice that from and to memory: reuse arrays for a
 * few thousand rows. Nothing is allocated, 3 KiB of stack. */
#ifndef MQQB_SCAN_H
#define MQQB_SCAN_H

#include "mqqb.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of MQQB_SCAN_KIND (wire.md 4.3, B-174 to B-178). */
enum {
    MQQB_KIND_MALFORMED = 0, /* MQQB_SCAN_STATUS gives the reason */
    MQQB_KIND_ESTABLISH_CONNECTION,
    MQQB_KIND_CONNECTION_PARAMETERS,
    MQQB_KIND_SESSION_ACK,
    MQQB_KIND_USER_MESSAGE,
    MQQB_KIND_ORDER_ACK,
    MQQB_KIND_FINAL_ACK
};

/* Problems of a whole packet; the other values of MQQB_SCAN_STATUS are mqqb_status. */
enum {
    MQQB_SCAN_FULL = 5,        /* capacity reached, bytes are left: call again */
    MQQB_SCAN_BAD_KIND = -64,  /* PT is 1 but there is no SessionHeader (B-174) */
    MQQB_SCAN_BAD_CHAIN = -65, /* a header, its data or its padding exceeds PacketSize (B-430) */
    MQQB_SCAN_BAD_NAME = -66,  /* direct name: Count below 4 or odd, no NUL at the end, or an earlier one (B-431) */
    MQQB_SCAN_BAD_LABEL = -67, /* Label: no NUL at the end, or an earlier one (B-431) */
    MQQB_SCAN_BAD_SOAP = -68,  /* SoapHeader: wrong section id or unterminated text (wire.md 2.7) */
    MQQB_SCAN_BAD_LIST = -69   /* MultiQueueFormatHeader: wrong id, HeaderSize or ElementCount (wire.md 2.8, B-431) */
};

/* The columns. Offsets count from the data given to mqqb_scan. Absent fields are 0; so are the columns of a
 * malformed packet behind MQQB_SCAN_TIME_TO_REACH_QUEUE. */
enum {
    MQQB_SCAN_OFFSET = 0,
    MQQB_SCAN_TOTAL_SIZE, /* with the SessionHeader; 0 if the packet's end is unknown */
    MQQB_SCAN_KIND,
    MQQB_SCAN_STATUS, /* as int32_t */
    MQQB_SCAN_BASE_FLAGS,
    MQQB_SCAN_TIME_TO_REACH_QUEUE,
    MQQB_SCAN_INTERNAL_FLAGS,
    MQQB_SCAN_SESSION_OFFSET, /* SessionHeader, alone or at the end of a message */
    MQQB_SCAN_ACK_SEQUENCE_NUMBER,
    MQQB_SCAN_RECOVERABLE_MSG_ACK_SEQ_NUMBER,
    MQQB_SCAN_RECOVERABLE_MSG_ACK_FLAGS,
    MQQB_SCAN_USER_MSG_SEQUENCE_NUMBER,
    MQQB_SCAN_RECOVERABLE_MSG_SEQUENCE_NUMBER,
    MQQB_SCAN_WINDOW_SIZE,
    MQQB_SCAN_SOURCE_OFFSET, /* UserHeader.SourceQueueManager, 16 bytes */
    MQQB_SCAN_MESSAGE_ID,
    MQQB_SCAN_USER_FLAGS,
    MQQB_SCAN_SENT_TIME,
    MQQB_SCAN_TIME_TO_BE_RECEIVED,
    MQQB_SCAN_DESTINATION_OFFSET, /* DestinationQueue, laid out by DQ */
    MQQB_SCAN_DESTINATION_SIZE,
    MQQB_SCAN_TX_FLAGS,
    MQQB_SCAN_TX_SEQUENCE_ORDINAL,
    MQQB_SCAN_TX_SEQUENCE_TIME_STAMP,
    MQQB_SCAN_TX_SEQUENCE_NUMBER, /* never 0 if there is a TransactionHeader */
    MQQB_SCAN_PREVIOUS_TX_SEQUENCE_NUMBER,
    MQQB_SCAN_PROPERTIES_OFFSET, /* MessagePropertiesHeader */
    MQQB_SCAN_PROPERTIES_FLAGS,
    MQQB_SCAN_MESSAGE_CLASS,
    MQQB_SCAN_LABEL_OFFSET,
    MQQB_SCAN_LABEL_LENGTH, /* WCHARs with the NUL */
    MQQB_SCAN_BODY_OFFSET,  /* also of an empty body */
    MQQB_SCAN_BODY_SIZE,
    MQQB_SCAN_ACK_TX_SEQUENCE_ORDINAL, /* OrderAck and FinalAck: their body */
    MQQB_SCAN_ACK_TX_SEQUENCE_TIME_STAMP,
    MQQB_SCAN_ACK_TX_SEQUENCE_NUMBER,
    MQQB_SCAN_ACK_PREVIOUS_TX_SEQUENCE_NUMBER,
    MQQB_SCAN_ACK_SOURCE_OFFSET, /* FinalAck: SourceGUID, 16 bytes */
    MQQB_SCAN_ACK_MESSAGE_ID,    /* FinalAck */
    MQQB_SCAN_COLUMNS
};

/* One array of at least capacity words for each column, or NULL for an unwanted column. */
typedef struct {
    uint32_t *column[MQQB_SCAN_COLUMNS];
} mqqb_scan_columns;

/* Scan data[0..size), which begins with a packet. Returns the number of rows written, at most capacity.
 * *consumed: bytes of packets that have a row and a known end; call again with the rest.
 * *status: MQQB_OK: all is consumed. MQQB_NEED_MORE: the packet at *consumed is incomplete (more than 4 GiB also
 * take several calls). MQQB_SCAN_FULL. Negative: the packet at *consumed has no valid BaseHeader; its row is the
 * last, and the next packet's place is unknown. Other malformed packets get a row, and the scan continues.
 * Checked: the fixed parts, that each header, name and text stays within the packet, and that names, label and
 * texts end with their only NUL. Not checked: elements of a MultiQueueFormatHeader, contents of SecurityData, and
 * rules across headers (TR without DH). A whole parser may refuse such a message. */
size_t mqqb_scan(const uint8_t *data, size_t size, const mqqb_scan_columns *columns, size_t capacity, size_t *consumed,
                 int32_t *status);

#ifdef __cplusplus
}
#endif

#endif
