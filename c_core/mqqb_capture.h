/* mqqb_capture.h: from the bytes of pcap and pcapng files to columns of packets: frames, IP, TCP put together again, mqqb_scan.
 * For hosts (captures, pipelines); firmware leaves this file out. Nothing is allocated: all tables are the caller's, who makes
 * them larger when a status asks for it. Only connections to or from TCP port 1801 are looked at.
 *
 * COST. A frame whose packets lie in it whole is scanned where it is. Bytes that wait (for what is missing before them, or for
 * the rest of their packet) are references into the files, so that memory grows with connections, not with bytes. */
#ifndef MQQB_CAPTURE_H
#define MQQB_CAPTURE_H

#include "mqqb_scan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of MQQB_SCAN_KIND beyond MQQB_KIND_FINAL_ACK: what happens to a direction. Such a row has MQQB_SCAN_OFFSET and the
 * columns below up to MQQB_CAPTURE_DIRECTION, besides what is said here; all else is 0. */
enum {
    MQQB_KIND_HOLE = 7,      /* MQQB_SCAN_TOTAL_SIZE bytes from MQQB_SCAN_OFFSET on were not captured (at most 2^32 - 1 is said); with
                              * them is lost the packet in which they begin, and all up to the next credible BaseHeader */
    MQQB_KIND_BEGIN = 8,     /* the SYN of a connection: one row for a connection, of the direction of the SYN seen first */
    MQQB_KIND_OLDER = 9,     /* the direction is first seen without a SYN: it may be older than the capture */
    MQQB_KIND_END = 10       /* MQQB_SCAN_STATUS: one of the next; MQQB_SCAN_TOTAL_SIZE: bytes left over of an incomplete packet */
};

/* MQQB_SCAN_STATUS of MQQB_KIND_END. */
enum {
    MQQB_END_FIN = 0,
    MQQB_END_RST = 1,
    MQQB_END_REPLACED = 2,   /* a new connection of the same addresses and ports began */
    MQQB_END_CAPTURE = 3     /* the capture ends, the direction did not */
};

/* The columns after those of mqqb_scan. MQQB_SCAN_OFFSET is the packet's place in its direction, modulo 2^32: 0 is the first byte
 * behind the SYN, or the first one captured. All other offsets are counted from the packet's first byte. Codes count from 1 in
 * their dictionary; 0 is none. */
enum {
    MQQB_CAPTURE_FILE = MQQB_SCAN_COLUMNS, /* number of the file, from 0 */
    MQQB_CAPTURE_FRAME,                    /* in the file, from 1: the frame in which the packet begins */
    MQQB_CAPTURE_CONNECTION,               /* index of mqqb_capture_connection */
    MQQB_CAPTURE_DIRECTION,                /* 0: from the end that opened the connection, or, if no SYN tells, from the lower address and port; 1 */
    MQQB_CAPTURE_SOURCE_QUEUE_MANAGER,     /* dictionary 0 */
    MQQB_CAPTURE_DESTINATION_QUEUE,        /* dictionary 1 */
    MQQB_CAPTURE_ACK_SOURCE,               /* FinalAck: SourceGUID, dictionary 0 */

    MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS,    /* from here on: found out only if one of these columns is wanted. Dictionary 0 */
    MQQB_CAPTURE_ADMINISTRATION_QUEUE,     /* dictionary 1 */
    MQQB_CAPTURE_RESPONSE_QUEUE,           /* dictionary 1 */
    MQQB_CAPTURE_CONNECTOR_QUEUE_MANAGER,  /* dictionary 0 */
    MQQB_CAPTURE_SECURITY_FLAGS,
    MQQB_CAPTURE_SENDER_ID_SIZE,
    MQQB_CAPTURE_ENCRYPTION_KEY_SIZE,
    MQQB_CAPTURE_SIGNATURE_SIZE,
    MQQB_CAPTURE_SENDER_CERT_SIZE,
    MQQB_CAPTURE_PROVIDER_INFO_SIZE,
    MQQB_CAPTURE_BODY_TYPE,
    MQQB_CAPTURE_APPLICATION_TAG,
    MQQB_CAPTURE_ALLOCATION_BODY_SIZE,
    MQQB_CAPTURE_PRIVACY_LEVEL,
    MQQB_CAPTURE_HASH_ALGORITHM,
    MQQB_CAPTURE_ENCRYPTION_ALGORITHM,
    MQQB_CAPTURE_EXTENSION_SIZE,
    MQQB_CAPTURE_CLIENT_GUID,              /* EstablishConnection, dictionary 0 */
    MQQB_CAPTURE_SERVER_GUID,              /* EstablishConnection, dictionary 0 */
    MQQB_CAPTURE_TIME_STAMP,               /* EstablishConnection */
    MQQB_CAPTURE_OPERATING_SYSTEM,         /* EstablishConnection */
    MQQB_CAPTURE_RECOVERABLE_ACK_TIMEOUT,  /* ConnectionParameters, ms */
    MQQB_CAPTURE_ACK_TIMEOUT,              /* ConnectionParameters, ms */
    MQQB_CAPTURE_PARAMETERS_WINDOW_SIZE,   /* ConnectionParameters */
    MQQB_CAPTURE_COLUMNS
};

/* Arrays of at least as many rows as capacity says, or NULL for what is not wanted. */
typedef struct {
    uint32_t *column[MQQB_CAPTURE_COLUMNS];
    int64_t *time;           /* of MQQB_CAPTURE_FRAME, ns since 1970 */
} mqqb_capture_columns;

#ifdef __cplusplus
}
#endif

#endif
