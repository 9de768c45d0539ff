/* mqqb_capture.h: from bytes of pcap and pcapng files to columns of packets: frames, IP, reassembled TCP,
 * mqqb_scan. For hosts (captures, pipelines); firmware leaves this file out. Nothing is allocated: the caller owns
 * all tables, and enlarges them when a status asks for it. Only connections of TCP port 1801 are read.
 *
 * COST. A frame with whole packets is scanned in place. Waiting bytes (out of order, or of an incomplete packet)
 * are references into the files, so that memory grows with connections, not with bytes. */
#ifndef MQQB_CAPTURE_H
#define MQQB_CAPTURE_H

#include "mqqb_scan.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Values of MQQB_SCAN_KIND beyond MQQB_KIND_FINAL_ACK: events of a direction. Such a row has MQQB_SCAN_OFFSET, the
 * columns below up to MQQB_CAPTURE_DIRECTION, and the values given here; all else is 0. */
enum {
    MQQB_KIND_HOLE =
        7, /* MQQB_SCAN_TOTAL_SIZE bytes from MQQB_SCAN_OFFSET on were not captured (at most 2^32 - 1 is shown).
                              * The packet around their beginning is lost, and all bytes up to the next credible BaseHeader */
    MQQB_KIND_BEGIN = 8, /* the SYN of a connection: one row for a connection, of the direction of the SYN seen first */
    MQQB_KIND_OLDER = 9, /* the direction began without a SYN of either end: it may be older */
    MQQB_KIND_END =
        10, /* MQQB_SCAN_STATUS: one of the next; MQQB_SCAN_TOTAL_SIZE: bytes of an incomplete last packet */
    MQQB_KIND_FOREIGN =
        11 /* another protocol: the first bytes behind the SYN are no packet, and the other direction has sent none. As
             * MQQB_KIND_MALFORMED, except for TLS, which may carry ours */
};

/* MQQB_SCAN_STATUS of MQQB_KIND_END. */
enum {
    MQQB_END_FIN = 0,
    MQQB_END_RST = 1,
    MQQB_END_REPLACED = 2, /* a new connection began with the same addresses and ports */
    MQQB_END_CAPTURE = 3   /* the capture ended before the direction */
};

/* The columns after those of mqqb_scan. MQQB_SCAN_OFFSET is the packet's place in its direction, modulo 2^32: 0 is
 * the first byte behind the SYN, or the first captured byte. All other offsets count from the packet's first byte.
 * Codes count from 1 in their dictionary; 0 is none. */
enum {
    MQQB_CAPTURE_FILE = MQQB_SCAN_COLUMNS, /* number of the file, from 0 */
    MQQB_CAPTURE_FRAME,                    /* in the file, from 1: of the packet's first byte */
    MQQB_CAPTURE_CONNECTION,               /* index of mqqb_capture_connection */
    MQQB_CAPTURE_DIRECTION, /* 0: from the opening end, or without a SYN from the lower address and port; 1: the other */
    MQQB_CAPTURE_SOURCE_QUEUE_MANAGER, /* this and the following: filled only if wanted. Dictionary 0 */
    MQQB_CAPTURE_DESTINATION_QUEUE,    /* dictionary 1 */
    MQQB_CAPTURE_ACK_SOURCE,           /* FinalAck: SourceGUID, dictionary 0 */

    MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS,   /* this and the following: filled only if one is wanted. Dictionary 0 */
    MQQB_CAPTURE_ADMINISTRATION_QUEUE,    /* dictionary 1 */
    MQQB_CAPTURE_RESPONSE_QUEUE,          /* dictionary 1 */
    MQQB_CAPTURE_CONNECTOR_QUEUE_MANAGER, /* dictionary 0 */
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
    MQQB_CAPTURE_BODY_CRC,                /* filled only if wanted */
    MQQB_CAPTURE_CLIENT_GUID,             /* EstablishConnection, dictionary 0 */
    MQQB_CAPTURE_SERVER_GUID,             /* EstablishConnection, dictionary 0 */
    MQQB_CAPTURE_TIME_STAMP,              /* EstablishConnection */
    MQQB_CAPTURE_OPERATING_SYSTEM,        /* EstablishConnection */
    MQQB_CAPTURE_RECOVERABLE_ACK_TIMEOUT, /* ConnectionParameters, ms */
    MQQB_CAPTURE_ACK_TIMEOUT,             /* ConnectionParameters, ms */
    MQQB_CAPTURE_PARAMETERS_WINDOW_SIZE,  /* ConnectionParameters */
    MQQB_CAPTURE_COLUMNS
};

/* Arrays of at least mqqb_capture.capacity rows, or NULL if not wanted. */
typedef struct {
    uint32_t *column[MQQB_CAPTURE_COLUMNS];
    int64_t *time;           /* of MQQB_CAPTURE_FRAME, ns since 1970 */
    uint8_t *correlation_id; /* 20 bytes a row */
    int32_t *label_end;      /* end of the row's label in label_text, behind the label of the row before */
    uint8_t *label_text;     /* UTF-8; U+FFFD for a lone surrogate; label_size bytes, at least MQQB_CAPTURE_LABEL */
    size_t label_size;
    int64_t *packet_end; /* end of the row's packet in packets, behind the packet of the row before */
    /* The bytes of packets: whole ones, or 16 of one with unknown end; packets_size bytes, at least
     * MQQB_CAPTURE_SCRATCH. Time and frame of MQQB_KIND_HOLE and MQQB_KIND_END are then those of an incomplete
     * packet's beginning. */
    uint8_t *packets;
    size_t packets_size;
} mqqb_capture_columns;

enum {
    MQQB_CAPTURE_LABEL = 750,         /* bytes of the longest label */
    MQQB_CAPTURE_SCRATCH = 0x400010,  /* bytes of the longest packet */
    MQQB_CAPTURE_NAMES = 0x80000,     /* free bytes of a dictionary needed before a packet is read */
    MQQB_CAPTURE_CUT = 1 << 30,       /* instead of a link type: the frame's headers are truncated */
    MQQB_CAPTURE_WRAPPED,             /* the same: the frame is in a tunnel (VXLAN or GRE), or is an IP fragment */
    MQQB_CAPTURE_WINDOW = 1000000000, /* ns: limit of the disorder of frames */
    MQQB_CAPTURE_INTERFACES = 256     /* of one section of a pcapng file */
};

/* ---- the tables, in the caller's memory -------------------------------------------------------- */

/* Waiting bytes: a reference into a file. */
typedef struct {
    uint64_t place; /* in the file */
    int64_t time;
    uint32_t file, frame;
    uint32_t sequence, size; /* TCP's number of the first byte; bytes */
    uint32_t next;
} mqqb_capture_segment;

/* One direction of a connection. */
typedef struct {
    uint64_t offset;            /* the next byte's place in the stream */
    uint32_t sequence, initial; /* TCP's number of the next byte, of the first byte */
    uint32_t flags;
    uint32_t fin, acked; /* TCP's number behind the last byte; behind the bytes that the other end certainly has */
    uint32_t carry, carry_last, carry_size,
        need;                       /* segments of an incomplete packet, their bytes, bytes needed to continue */
    uint32_t pending, pending_size; /* segments that wait for earlier bytes */
    uint32_t code[4];               /* the last codes found in the dictionaries */
} mqqb_capture_direction;

/* Address and port of an end: wire bytes, 4 for IPv4, then zeros; port, and 1 << 16 for IPv6. */
typedef struct {
    uint32_t word[5];
} mqqb_capture_end;

typedef struct {
    mqqb_capture_direction direction[2];
    mqqb_capture_end end[2]; /* senders of the directions */
    uint32_t flags;          /* bit 0: a SYN was seen */
    uint32_t ending;         /* a value of MQQB_KIND_END and 1, while it ends */
} mqqb_capture_connection;

/* Distinct strings of bytes. Entry number n, from 1, is bytes[end[n - 1]..end[n]); end[0] is 0. */
typedef struct {
    uint32_t *index; /* all 0 at first; index_size is a power of 2 and above capacity */
    uint64_t *end;   /* capacity + 1 */
    uint8_t *bytes;
    uint64_t size; /* of bytes; at least MQQB_CAPTURE_NAMES more than used */
    uint32_t index_size, capacity, count;
} mqqb_capture_dictionary;

typedef struct {
    uint32_t units, link; /* units of time per second; link type */
} mqqb_capture_interface;

/* A frame of TCP port 1801, to read by moment, or by the task that replays its connection. key: equal for all
 * frames of a connection. managers: a number for each GUID in a packet that begins in the frame; 0: none. moment:
 * its time. A frame more than MQQB_CAPTURE_WINDOW behind later ones has the greatest time before it, because the
 * clock was set back. */
typedef struct {
    uint64_t key, managers[2];
    uint64_t place; /* of its bytes in the file */
    int64_t time, moment;
    uint32_t file, frame; /* the file's number in `files`; from 1 */
    uint32_t link, size, wire;
    uint32_t rank; /* caller: orders frames of the same moment */
} mqqb_capture_routed;

/* The header that mqqb_capture_gather puts before a frame's bytes. */
typedef struct {
    int64_t time, moment;
    uint32_t frame, link, size, wire;
} mqqb_capture_frame;

/* Initially all zeros, except fields marked "caller". The caller sets these before mqqb_capture_start and when a
 * status asks for it. */
typedef struct {
    const uint8_t *const *files;          /* caller: the files in memory, readable until the capture is finished */
    uint64_t size;                        /* caller: bytes of the current file */
    uint32_t file;                        /* caller: its number */
    uint32_t part, parts;                 /* caller: read only connections whose hash modulo parts is part */
    mqqb_capture_columns columns;         /* caller */
    uint32_t rows, capacity;              /* rows written; caller: limit, at least 16 */
    mqqb_capture_connection *connections; /* caller */
    uint32_t *index; /* caller: all 0 at first; index_size is a power of 2, at least twice connections_size */
    mqqb_capture_segment *segments;                       /* caller */
    uint32_t connections_size, index_size, segments_size; /* caller */
    mqqb_capture_dictionary
        dictionary[2];                 /* caller: GUIDs of 16 bytes; queue names: the selector, then the name's bytes */
    uint8_t *scratch;                  /* caller: MQQB_CAPTURE_SCRATCH bytes */
    uint64_t pause;                    /* caller: return after a frame that ends there or behind it */
    mqqb_capture_routed *routed;       /* caller: or NULL. Takes the frames; no rows are made */
    uint32_t routed_used, routed_size; /* MQQB_CAPTURE_ROWS: full; take them, and set routed_used to 0 */
    const mqqb_capture_routed *order;  /* caller: or NULL. Read these `size` frames, whose moments never go back */

    uint64_t cursor, frames,
        unread; /* in the file; frames of all files; the unreadable ones: of an unknown link type, in a tunnel, fragments of
                 * IP, or too short to identify the protocol */
    uint32_t frame, connections_used, segments_used, segments_free, segments_spare;
    uint32_t started, format, swapped, interfaces_used; /* from the file's header */
    uint32_t active, drain_first, finished;
    uint32_t details, flushed;
    uint32_t unread_link; /* the link type of the first unread frame, MQQB_CAPTURE_CUT or MQQB_CAPTURE_WRAPPED */
    uint64_t next, label_used, packets_used;
    int64_t latest; /* the greatest time of the file */
    uint64_t key, managers[2];
    int64_t time;
    int64_t moment;                 /* of the current frame */
    uint32_t set_back, spare;       /* 1: the clock was set back, and has not reached `latest` again */
    uint32_t told_file, told_frame; /* last rows with an event of a direction */
    int64_t told_time;
    mqqb_capture_interface interfaces[MQQB_CAPTURE_INTERFACES];
    uint32_t block[MQQB_CAPTURE_COLUMNS * 16];
} mqqb_capture;

/* Answers of mqqb_capture_read and mqqb_capture_finish. */
enum {
    MQQB_CAPTURE_END_OF_FILE =
        0, /* read: set file, size or order, cursor 0 and started 0 for the next one, or call mqqb_capture_finish */
    MQQB_CAPTURE_ROWS = 1,             /* take the rows and set rows to 0; call again */
    MQQB_CAPTURE_GROW_CONNECTIONS = 2, /* more connections and index, mqqb_capture_rehash; call again */
    MQQB_CAPTURE_GROW_SEGMENTS = 3,    /* more segments; call again */
    MQQB_CAPTURE_GROW_DICTIONARY =
        4, /* enlarge all arrays of a dictionary that is nearly full; mqqb_capture_rehash; call again */
    MQQB_CAPTURE_PAUSE = 5, /* cursor has reached pause: raise it, call again */
    /* Errors of the file at cursor, which end the file: */
    MQQB_CAPTURE_BAD_MAGIC = -1, /* neither pcap nor pcapng */
    MQQB_CAPTURE_BAD_END = -2,   /* the file ends inside the header, record or block at cursor */
    MQQB_CAPTURE_BAD_SIZE = -3,  /* a record or block has an impossible size */
    MQQB_CAPTURE_BAD_BLOCK =
        -4 /* a block is too short or obsolete, lacks a byte order mark, or has an unknown interface or unsupported units of
              * time */
};

/* Call it before the first mqqb_capture_read. */
void mqqb_capture_start(mqqb_capture *c);

/* Continue in the file, or in `order`. Rows come in the order in which packets become complete. Bytes acknowledged
 * by the other end were captured before the acknowledgement, or not at all. */
int32_t mqqb_capture_read(mqqb_capture *c);

/* After the last file: drop waiting bytes, and end all directions. MQQB_CAPTURE_END_OF_FILE: done. If only some
 * frames of the capture were read, first set file, frame and time to those of its last frame. */
int32_t mqqb_capture_finish(mqqb_capture *c);

/* Before file `file` is released: move its waiting bytes to `out`, in a row, and refer to them there. Returns their
 * number; with NULL nothing moves. files: a byte for each file; 1: still referred to. */
uint64_t mqqb_capture_keep(mqqb_capture *c, uint8_t *out, uint8_t *files);

/* Copy routed frames in a row, each behind its mqqb_capture_frame. */
void mqqb_capture_gather(const uint8_t *file, const mqqb_capture_routed *routed, const uint32_t *which, uint64_t count,
                         uint8_t *out);

/* List gathered frames in `size` bytes, which are file number `file`, to read in an order. Their routing data is
 * lost. Returns their number. */
uint64_t mqqb_capture_list(const uint8_t *gathered, uint64_t size, uint32_t file, mqqb_capture_routed *out);

/* After a change of index_size of the connections or of a dictionary: fill the indexes, which are all 0, again. */
void mqqb_capture_rehash(mqqb_capture *c);

#ifdef __cplusplus
}
#endif

#endif
