/* mqqb_audit.h: replays transactional streams over the columns of mqqb_capture: transmissions, resends,
 * acknowledgements, latencies, and broken rules. For hosts; firmware leaves this file out. One pass, in the
 * capture's order. Nothing is allocated: the caller owns all tables, and enlarges them when a status asks for it.
 *
 * host/ordack/audit/result.py defines the findings and their rules. A flow is one source queue manager, destination
 * queue and hop count; its sequences follow one another (B-096). The last messages of a sequence have slots; older
 * messages are only counted. So memory grows with flows and unsettled messages, not with packets.
 *
 * Codes and indexes in the tables are stored plus one; 0 is none. */
#ifndef MQQB_AUDIT_H
#define MQQB_AUDIT_H

#include "mqqb_capture.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MQQB_AUDIT_SOURCES = 4,  /* sources of a direction, or of two hosts, known by name */
    MQQB_AUDIT_ACKS = 6,     /* OrderAcks waiting until the sender shows their receipt */
    MQQB_AUDIT_FINALS = 16,  /* remembered FinalAcks of a sequence whose messages have lost their slots */
    MQQB_AUDIT_REPORTED = 8, /* remembered numbers of a sequence with wrong acknowledgements */
    MQQB_AUDIT_CLASSES = 8,  /* classes of FinalAcks with separate counts */
    MQQB_AUDIT_EARLIER = 64, /* earlier connections of an opener to look at */
    MQQB_AUDIT_PACKETS = 4,
    MQQB_AUDIT_KEEP = 16,    /* finished sequences of a flow to keep */
    MQQB_AUDIT_DETAILED = 3, /* fewer of them than this keep their messages */
    MQQB_AUDIT_BLOCK = 64,   /* slots that a sequence frees at once */
    MQQB_AUDIT_BLOCKS = 16,  /* limit of its blocks */
    MQQB_AUDIT_PIECE = 16,   /* slots that it takes at once */
    MQQB_AUDIT_PIECES = MQQB_AUDIT_BLOCKS * MQQB_AUDIT_BLOCK / MQQB_AUDIT_PIECE,
    MQQB_AUDIT_HEADERS = 16,                                             /* remembered SessionHeaders of a direction */
    MQQB_AUDIT_FINDINGS = 8 * (3 + MQQB_AUDIT_BLOCKS * MQQB_AUDIT_BLOCK) /* limit for one row */
};

typedef enum {
    MQQB_AUDIT_RENUMBERED = 0,
    MQQB_AUDIT_ACK_BEYOND_RECEIPT,
    MQQB_AUDIT_ID_WENT_BACK,
    MQQB_AUDIT_SKIPPED,
    MQQB_AUDIT_COUNT_MISMATCH,
    MQQB_AUDIT_RESENT_AFTER_ACK,
    MQQB_AUDIT_DELIVERED_TWICE,
    MQQB_AUDIT_KINDS
} mqqb_audit_kind;

/* The detail of a finding, with its values a and b. */
typedef enum {
    MQQB_AUDIT_TWO_IDS = 1,       /* the number had MessageID a, and now has b */
    MQQB_AUDIT_TWO_NUMBERS,       /* MessageID a had number b, of this or another sequence */
    MQQB_AUDIT_LOWER_SEQUENCE,    /* the flow has used ordinal a, time stamp b */
    MQQB_AUDIT_ORDER_ACK_UNSENT,  /* a: highest number sent */
    MQQB_AUDIT_ORDER_ACK_SKIPS,   /* a: highest number that the receiver can have accepted; b: previous number */
    MQQB_AUDIT_FINAL_ACK_UNSENT,  /* a: highest number sent */
    MQQB_AUDIT_FINAL_ACK_SKIPS,   /* as for OrderAcks */
    MQQB_AUDIT_FINAL_ACK_OTHER,   /* names MessageID a, number has MessageID b */
    MQQB_AUDIT_SESSION_ACK,       /* AckSequenceNumber a exceeds b sent messages */
    MQQB_AUDIT_RECOVERABLE_ACK,   /* RecoverableMsgAckSeqNumber a and its flags exceed b recoverable messages */
    MQQB_AUDIT_USER_COUNT,        /* UserMsgSequenceNumber a, counted b */
    MQQB_AUDIT_RECOVERABLE_COUNT, /* RecoverableMsgSeqNumber a, counted b */
    MQQB_AUDIT_RESENT_ORDERED,    /* OrderAck for number a */
    MQQB_AUDIT_RESENT_FINAL,      /* FinalAck of class a */
    MQQB_AUDIT_TWO_FINAL_ACKS,    /* with their own MessageIDs a and b */
    MQQB_AUDIT_WENT_BACK,         /* OrderAcks named a, then b, then number */
    MQQB_AUDIT_ORDER_ACK_STRAY,   /* of an unseen sequence, although younger than ordinal a, time stamp b */
    MQQB_AUDIT_FINAL_ACK_STRAY,   /* as for OrderAcks. Both are shown with the flow of the sequence a, b */
    /* Not a finding, but a change of earlier findings, from packet[0].time on: */
    MQQB_AUDIT_LATE /* findings that depend on packets of source code a, or of these hosts, become uncertain */
} mqqb_audit_detail;

typedef struct {
    int64_t time;
    uint32_t file, frame;
} mqqb_audit_packet;

/* A violation; with unknown 1, a violation unless packets are missing. flow: its index and 1; 0: a connection's. */
typedef struct {
    uint32_t kind, detail, unknown, flow, ordinal, time_stamp, connection, direction, number, a, b, packets;
    mqqb_audit_packet packet[MQQB_AUDIT_PACKETS];
} mqqb_audit_finding;

/* Why the receiver's rule rejects (B-270). */
enum {
    MQQB_AUDIT_DUPLICATE = 0,
    MQQB_AUDIT_GAP,
    MQQB_AUDIT_OLD_SEQUENCE,
    MQQB_AUDIT_START_MISSING,
    MQQB_AUDIT_REJECTS
};

typedef struct {
    uint32_t messages, resends, rejects[MQQB_AUDIT_REJECTS], order_acked, final_acked, unsettled;
} mqqb_audit_counts;

/* Codes of the sending queue manager and the queue; address: the queue's manager if not in its name (DQ 3). */
typedef struct {
    uint32_t source, destination, address, hops;
} mqqb_audit_key;

/* classes: of FinalAcks, with the number of ended messages; class_rest counts further classes. */
typedef struct {
    mqqb_audit_key key;
    int64_t last_time;
    uint32_t newest; /* its sequence with the highest id */
    uint32_t connections, last_connection, sequences, kept;
    int64_t first_time;
    mqqb_audit_counts folded; /* of sequences not kept */
    uint32_t classes[MQQB_AUDIT_CLASSES], class_counts[MQQB_AUDIT_CLASSES], class_rest;
    uint32_t violations[MQQB_AUDIT_KINDS], unknowns[MQQB_AUDIT_KINDS];
} mqqb_audit_flow;

/* An OrderAck. where: 2 * connection + direction; index: number of its message there, 0: not counted. */
typedef struct {
    mqqb_audit_packet packet;
    uint32_t number, where, index, spare;
} mqqb_audit_ack;

/* A FinalAck of a message that has lost its slot, or is not seen yet. id: its own MessageID. */
typedef struct {
    mqqb_audit_packet packet;
    uint32_t number, id, message_id, message_class;
} mqqb_audit_final;

/* A block of slots begins at a multiple of MQQB_AUDIT_BLOCK. Only pieces with a seen message have slots. */
typedef struct {
    mqqb_audit_key key;
    uint32_t ordinal, time_stamp, flow; /* flow: its index and 1, 0: free */
    uint32_t older;                     /* the next lower kept sequence of the flow */
    uint32_t sure;                      /* all transmissions from this number on are seen; 0: none */
    uint32_t fresh;                     /* 1: no message seen since packets may have been missed */
    uint32_t accepted, highest, lowest,
        covered;                /* limit of the receiver's accepted number; seen; seen; named by OrderAcks */
    uint32_t pair, misses;      /* misses: mqqb_audit.misses at the last look */
    uint32_t where, message_id; /* message_id: the flow's greatest, in its newest sequence */
    uint32_t several;           /* 1: several connections have carried it, so the order of arrival is unknown */
    uint32_t superseded;        /* 1: a newer sequence of the flow exists */
    int64_t left;               /* packets may be missing on connections before this time */
    uint32_t has_slots, first_block, last_block, floor_block; /* blocks below the floor are freed */
    uint32_t acks_used, finals_next;
    int64_t last_time;
    mqqb_audit_counts counts;
    uint32_t pieces[MQQB_AUDIT_PIECES];
    mqqb_audit_packet highest_packet, ack_packet, back_packet[3];
    uint32_t first_where, reported_where, reported_next, reported[MQQB_AUDIT_REPORTED];
    uint32_t ack_number, ack_id, acked, back, back_from, back_to,
        back_number; /* the OrderAck before, and whether they went back */
    int64_t first_time;
    mqqb_audit_ack shown; /* the highest one shown by the sender */
    mqqb_audit_ack acks[MQQB_AUDIT_ACKS];
    mqqb_audit_final finals[MQQB_AUDIT_FINALS];
} mqqb_audit_sequence;

/* A message. */
typedef struct {
    int64_t time, final_time;
    uint32_t files, frame; /* files: of the first transmission, and in the high half of the FinalAck */
    uint32_t message_id, flags;
    uint32_t where, index; /* of the last transmission: 2 * connection + direction, 0 in index: not counted */
    uint32_t previous;     /* the lowest PreviousTxSequenceNumber */
    uint32_t final_frame, final_id, final_where, final_index; /* as where and index */
} mqqb_audit_slot;

/* A SessionHeader. covered: messages of the other direction. index: messages of its own direction that its receiver
 * then has shown. bare: 1: without bits. */
typedef struct {
    uint32_t covered, index, bare;
} mqqb_audit_header;

/* Missed packets of a queue manager or host: count, and time of the last. order: mqqb_audit.misses of the last.
 * ahead: 1: its clock was ahead of the capture's, so a SentTime proves nothing. */
typedef struct {
    int64_t time;
    uint32_t missed, order, ahead;
} mqqb_audit_missed;

/* A sending queue manager. folded: its highest seen sequence that is not kept. stray: the last unseen sequence
 * reported for an acknowledgement. newest: the newest connections that it opened, and opened to it, each index and
 * 1. gaps: missed packets in connections that it opened, by direction. */
typedef struct {
    mqqb_audit_missed missed, gaps[2];
    uint32_t folded_ordinal, folded_time_stamp, stray_ordinal, stray_time_stamp;
    uint32_t newest[2];
} mqqb_audit_source;

/* Packets from one host to another. begun: a sequence between them that is younger than the capture. flow: its
 * flow's index and 1, 0: none. misses: mqqb_audit.misses at that time. */
typedef struct {
    mqqb_audit_missed missed;
    uint32_t sources[MQQB_AUDIT_SOURCES], more;
    uint32_t begun_flow, begun_ordinal, begun_time_stamp, misses;
    mqqb_audit_packet begun;
} mqqb_audit_pair;

typedef struct {
    int64_t last_time;
    uint32_t messages, recoverable; /* counted so far */
    uint32_t shown;                 /* messages of the other direction covered by a SessionHeader of this one */
    uint32_t missed;                /* 1: some are not counted */
    uint32_t headers_next;
    mqqb_audit_header headers[MQQB_AUDIT_HEADERS];
    uint32_t packets;
    uint32_t owner, sources[MQQB_AUDIT_SOURCES], more; /* of EstablishConnection; seen; 1: more than the table holds */
    uint32_t user_difference, recoverable_difference, beyond, recoverable_beyond, unknown;
    mqqb_audit_packet shown_packet; /* the last SessionHeader that raised shown */
    int64_t first_hole, last_hole, first_malformed;
    uint32_t holes, malformed, ended, ending;
} mqqb_audit_direction;

/* pair: caller: 2 * index of the two hosts, + 1 if direction 0 is not that of pairs[2 * index]; all ones: skip its
 * rows. before: by direction, its owner's previous connection, opened by it or to it, its index and 1. */
typedef struct {
    uint32_t pair, begun, before[2]; /* begun: 1: its SYN was seen */
    uint32_t foreign, spare;         /* the direction that began with another protocol, and 1; 0: none did */
    int64_t first_time, last_time, established;
    mqqb_audit_direction direction[2];
} mqqb_audit_connection;

/* An acknowledgement of an unseen sequence. source: 0 if uncertain. */
typedef struct {
    uint32_t source, ordinal, time_stamp;
} mqqb_audit_stray;

/* Initially all zeros, except "caller": the caller sets these before the first call and when a status asks for it. */
typedef struct {
    int64_t start;                      /* caller: time of the capture's first frame, ns since 1970 */
    mqqb_audit_source *sources;         /* caller: by code of dictionary 0 */
    mqqb_audit_pair *pairs;             /* caller: two for each two hosts */
    mqqb_audit_connection *connections; /* caller: numbered as in mqqb_capture */
    mqqb_audit_flow *flows;             /* caller */
    mqqb_audit_sequence *sequences;     /* caller */
    uint32_t *flow_index,
        *sequence_index;          /* caller: all 0 at first; sizes are powers of 2, at least twice the tables' */
    mqqb_audit_slot *slots;       /* caller */
    mqqb_audit_finding *findings; /* caller */
    mqqb_audit_stray *strays;     /* caller; or NULL if not wanted */
    uint32_t sources_size, connections_size, flows_size, sequences_size;                   /* caller */
    uint32_t flow_index_size, sequence_index_size, slots_size, findings_size, strays_size; /* caller */

    uint32_t findings_used, strays_used; /* caller sets them to 0 */
    uint32_t flows_used, sequences_used, sequences_free, slots_used;
    uint32_t slots_free, misses;                                       /* misses: counted so far, of all kinds */
    uint32_t violations[MQQB_AUDIT_KINDS], unknowns[MQQB_AUDIT_KINDS]; /* of connections; a flow has its own */
    int64_t accused; /* time of the last wrong acknowledgement, which late packets may justify */
    uint64_t packets, holes, malformed, foreign; /* foreign: connections that never spoke the protocol */
} mqqb_audit;

enum {
    MQQB_AUDIT_DONE = 0,
    MQQB_AUDIT_GROW_CONNECTIONS = 1, /* a row's connection is above the table. After every growth: call again */
    MQQB_AUDIT_GROW_SOURCES = 2,     /* a code is above the table */
    MQQB_AUDIT_GROW_FLOWS = 3,       /* flows and flow_index, then mqqb_audit_rehash */
    MQQB_AUDIT_GROW_SEQUENCES =
        4,                       /* sequences and sequence_index, then mqqb_audit_rehash; at most 2^24 - 1 sequences */
    MQQB_AUDIT_GROW_SLOTS = 5,   /* at least MQQB_AUDIT_PIECE more */
    MQQB_AUDIT_FINDINGS_FULL = 6 /* take findings and strays, and set findings_used and strays_used to 0 */
};

/* Take rows from *done on; *done becomes the number of taken rows. columns: all up to
 * MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS, MQQB_CAPTURE_CLIENT_GUID, MQQB_CAPTURE_SERVER_GUID, and time. */
int32_t mqqb_audit_rows(mqqb_audit *a, const mqqb_capture_columns *columns, uint32_t rows, uint32_t *done);

/* Part of the whole capture is missing, for instance at a truncated file. time: ns since 1970 of the next rows. */
void mqqb_audit_interrupted(mqqb_audit *a, int64_t time);

/* At the end of the capture: count the messages that still have a slot. */
void mqqb_audit_finish(mqqb_audit *a);

/* After a change of an index's size: fill all indexes, which are all 0, again. */
void mqqb_audit_rehash(mqqb_audit *a);

#ifdef __cplusplus
}
#endif

#endif
