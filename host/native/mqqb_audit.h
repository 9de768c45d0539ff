/* mqqb_audit.h: replays transactional streams over the columns of mqqb_capture: what was sent, resent, acknowledged, how long that
 * took, and which rules were broken. For hosts; firmware leaves this file out. One pass, packets in the order of the capture. Nothing
 * is allocated: all tables are the caller's, who makes them larger when a status asks for it.
 *
 * What is reported when, and which rules say so, is in host/ordack/audit/result.py. A flow is one source queue manager,
 * destination queue and hop count; its sequences follow one another (B-096). Of a sequence's last messages each has a slot, older ones
 * are only counts; so memory grows with flows and with what is unsettled, not with packets.
 *
 * Codes and indexes in the tables are one more than what they mean; 0 is none. */
#ifndef MQQB_AUDIT_H
#define MQQB_AUDIT_H

#include "mqqb_capture.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    MQQB_AUDIT_SOURCES = 4,  /* of a direction, or of two hosts, that are known by name */
    MQQB_AUDIT_ACKS = 6,     /* OrderAcks that wait until the sender shows that it has them */
    MQQB_AUDIT_FINALS = 16,  /* FinalAcks of a sequence that are remembered when their message has lost its slot */
    MQQB_AUDIT_REPORTED = 8, /* numbers of a sequence whose acknowledgement was found wrong that are remembered */
    MQQB_AUDIT_CLASSES = 8,  /* different classes of FinalAcks that are counted apart */
    MQQB_AUDIT_PACKETS = 4,
    MQQB_AUDIT_KEEP = 16,    /* finished sequences of a flow that are kept */
    MQQB_AUDIT_DETAILED = 3, /* of these, with their messages: less than so many */
    MQQB_AUDIT_BLOCK = 64,   /* slots of a sequence that it gives up at once */
    MQQB_AUDIT_BLOCKS = 16,  /* it has so many at most */
    MQQB_AUDIT_PIECE = 16,   /* slots that it takes at once */
    MQQB_AUDIT_PIECES = MQQB_AUDIT_BLOCKS * MQQB_AUDIT_BLOCK / MQQB_AUDIT_PIECE,
    MQQB_AUDIT_HEADERS = 16, /* SessionHeaders of a direction that are remembered */
    MQQB_AUDIT_FINDINGS = 8 * (3 + MQQB_AUDIT_BLOCKS * MQQB_AUDIT_BLOCK) /* of one row at most */
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

/* What exactly; a and b of the finding. */
typedef enum {
    MQQB_AUDIT_TWO_IDS = 1,       /* the number was seen with MessageID a, and now with b */
    MQQB_AUDIT_TWO_NUMBERS,       /* MessageID a was seen with number b, of this or another sequence */
    MQQB_AUDIT_LOWER_SEQUENCE,    /* the flow has used ordinal a, time stamp b */
    MQQB_AUDIT_ORDER_ACK_UNSENT,  /* a: highest number sent */
    MQQB_AUDIT_ORDER_ACK_SKIPS,   /* a: highest number that the receiver can have accepted; b: previous number */
    MQQB_AUDIT_FINAL_ACK_UNSENT,  /* a: highest number sent */
    MQQB_AUDIT_FINAL_ACK_SKIPS,   /* as for OrderAcks */
    MQQB_AUDIT_FINAL_ACK_OTHER,   /* names MessageID a, number has MessageID b */
    MQQB_AUDIT_SESSION_ACK,       /* AckSequenceNumber a, sent were b */
    MQQB_AUDIT_RECOVERABLE_ACK,   /* RecoverableMsgAckSeqNumber a and its flags, recoverable were b */
    MQQB_AUDIT_USER_COUNT,        /* UserMsgSequenceNumber a, counted b */
    MQQB_AUDIT_RECOVERABLE_COUNT, /* RecoverableMsgSeqNumber a, counted b */
    MQQB_AUDIT_RESENT_ORDERED,    /* OrderAck for number a */
    MQQB_AUDIT_RESENT_FINAL,      /* FinalAck of class a */
    MQQB_AUDIT_TWO_FINAL_ACKS,    /* with their own MessageIDs a and b */
    MQQB_AUDIT_WENT_BACK,         /* OrderAcks named a, then b, then number */
    MQQB_AUDIT_ORDER_ACK_STRAY, /* of a sequence that was not seen, though it is younger than ordinal a, time stamp b */
    MQQB_AUDIT_FINAL_ACK_STRAY, /* as for OrderAcks. Both are shown with the flow of the sequence a, b */
    /* No findings. Of what was found before, with packet[0].time or later: */
    MQQB_AUDIT_LATE /* what depends on the packets of source code a, or of these hosts, is not certain any more */
} mqqb_audit_detail;

typedef struct {
    int64_t time;
    uint32_t file, frame;
} mqqb_audit_packet;

/* A violation; or, if unknown is 1, what would be one if nothing of it were missing in the capture. flow: its index and 1, 0 if the
 * connection shows it. */
typedef struct {
    uint32_t kind, detail, unknown, flow, ordinal, time_stamp, connection, direction, number, a, b, packets;
    mqqb_audit_packet packet[MQQB_AUDIT_PACKETS];
} mqqb_audit_finding;

/* Why the receiver's rule does not accept (B-270). */
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

/* Codes of the queue manager that sends, the queue, the queue manager that has it if the queue's name does not say that (DQ 3). */
typedef struct {
    uint32_t source, destination, address, hops;
} mqqb_audit_key;

/* classes: of FinalAcks, and how many messages they ended; what finds no place is in class_rest. */
typedef struct {
    mqqb_audit_key key;
    int64_t last_time;
    uint32_t newest; /* its sequence with the highest id */
    uint32_t connections, last_connection, sequences, kept;
    int64_t first_time;
    mqqb_audit_counts folded; /* of sequences that are not kept */
    uint32_t classes[MQQB_AUDIT_CLASSES], class_counts[MQQB_AUDIT_CLASSES], class_rest;
    uint32_t violations[MQQB_AUDIT_KINDS], unknowns[MQQB_AUDIT_KINDS];
} mqqb_audit_flow;

/* An OrderAck. where: 2 * connection + direction; index: which message it is there, 0: not counted. */
typedef struct {
    mqqb_audit_packet packet;
    uint32_t number, where, index, spare;
} mqqb_audit_ack;

/* A FinalAck of a message that has lost its slot, or was not seen yet. id: its own MessageID. */
typedef struct {
    mqqb_audit_packet packet;
    uint32_t number, id, message_id, message_class;
} mqqb_audit_final;

/* A block of slots is for numbers from a multiple of MQQB_AUDIT_BLOCK on. Of a block those pieces have slots in which something was
 * seen. */
typedef struct {
    mqqb_audit_key key;
    uint32_t ordinal, time_stamp, flow; /* flow: its index and 1, 0: free */
    uint32_t older;                     /* the next lower one of the flow that is kept */
    uint32_t sure;                      /* from this number on all transmissions are seen; 0: from none */
    uint32_t fresh;                     /* 1: nothing seen since something may have been missed */
    uint32_t accepted, highest, lowest,
        covered; /* the most a receiver can have accepted; seen; seen; named by OrderAcks */
    uint32_t pair, pair_missed, source_missed;
    uint32_t where, message_id; /* message_id: the flow's greatest, in its newest sequence */
    uint32_t several;           /* 1: more than one connection has carried it, so the order of arrival is not known */
    uint32_t superseded;        /* 1: it is not the flow's newest */
    uint32_t has_slots, first_block, last_block, floor_block; /* blocks below the floor are given up */
    uint32_t acks_used, finals_next;
    int64_t last_time;
    mqqb_audit_counts counts;
    uint32_t pieces[MQQB_AUDIT_PIECES];
    mqqb_audit_packet highest_packet, ack_packet, back_packet[3];
    uint32_t first_where, reported_where, reported_next, reported[MQQB_AUDIT_REPORTED], ack_where;
    uint32_t ack_number, ack_id, acked, back, back_from, back_to,
        back_number; /* the OrderAck before, and whether they went back */
    int64_t first_time;
    mqqb_audit_ack shown; /* the highest that the sender has shown to have */
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

/* A SessionHeader: how many messages of the other direction it covers, how many of its own direction the other end has shown to have
 * once it has this one; 1: it has no bits. */
typedef struct {
    uint32_t covered, index, bare;
} mqqb_audit_header;

/* What was missed of a queue manager's or of a host's packets: how often, and when last. ahead: 1: its clock was seen to be ahead of
 * the capture's, so a SentTime proves nothing. */
typedef struct {
    int64_t time;
    uint32_t missed, ahead;
} mqqb_audit_missed;

/* A queue manager that sends. folded: its highest sequence that was seen and is not kept; stray: the last one that an acknowledgement
 * named, was not seen, and was reported.  newest: the newest connection that it has
 * opened, and the newest that was opened to it, each its index and 1. */
typedef struct {
    mqqb_audit_missed missed;
    uint32_t folded_ordinal, folded_time_stamp, stray_ordinal, stray_time_stamp;
    uint32_t newest[2];
} mqqb_audit_source;

/* Packets of one host to another. begun: a sequence between them that is younger than the capture; flow: its flow's index and 1, 0:
 * none; source_missed, pair_missed: what had been missed then. */
typedef struct {
    mqqb_audit_missed missed;
    uint32_t sources[MQQB_AUDIT_SOURCES], more;
    uint32_t begun_flow, begun_ordinal, begun_time_stamp, source_missed, pair_missed;
    mqqb_audit_packet begun;
} mqqb_audit_pair;

typedef struct {
    int64_t last_time, first_message;
    uint32_t messages, recoverable; /* counted so far */
    uint32_t shown;                 /* messages of the other direction that a SessionHeader of this one covers */
    uint32_t missed;                /* 1: some are not counted */
    uint32_t headers_next;
    mqqb_audit_header headers[MQQB_AUDIT_HEADERS];
    uint32_t packets;
    uint32_t owner, sources[MQQB_AUDIT_SOURCES], more; /* of EstablishConnection; seen; 1: more than have a place */
    uint32_t user_difference, recoverable_difference, beyond, recoverable_beyond, unknown;
    mqqb_audit_packet shown_packet; /* the last SessionHeader that raised shown */
    int64_t first_hole, last_hole, first_malformed;
    uint32_t holes, malformed, ended, ending;
} mqqb_audit_direction;

/* pair: caller: 2 * index of the two hosts, + 1 if direction 0 is not that of pairs[2 * index]; all ones: pass its rows over. before: by
 * direction, the one before that its owner has opened, or that was opened to it, its index and 1. */
typedef struct {
    uint32_t pair, begun, before[2]; /* begun: 1 if its SYN was seen */
    uint32_t foreign, spare;         /* the direction that began with another protocol, and 1; 0: none did */
    int64_t first_time, last_time, established;
    mqqb_audit_direction direction[2];
} mqqb_audit_connection;

/* An acknowledgement of a sequence that was not seen. source: 0 if it is not certain whose it is. */
typedef struct {
    uint32_t source, ordinal, time_stamp;
} mqqb_audit_stray;

/* All zeros at first, but for what is marked: that is the caller's to set, before the first call and when a status asks for it. */
typedef struct {
    int64_t start;                      /* caller: of the capture's first frame, ns since 1970 */
    mqqb_audit_source *sources;         /* caller: by code of dictionary 0 */
    mqqb_audit_pair *pairs;             /* caller: two for each two hosts */
    mqqb_audit_connection *connections; /* caller: as mqqb_capture numbers them */
    mqqb_audit_flow *flows;             /* caller */
    mqqb_audit_sequence *sequences;     /* caller */
    uint32_t *flow_index,
        *sequence_index;          /* caller: all 0 at first; sizes are powers of 2, at least twice the tables' */
    mqqb_audit_slot *slots;       /* caller */
    mqqb_audit_finding *findings; /* caller */
    mqqb_audit_stray *strays;     /* caller; or NULL, if nobody asks for them */
    uint32_t sources_size, connections_size, flows_size, sequences_size;                   /* caller */
    uint32_t flow_index_size, sequence_index_size, slots_size, findings_size, strays_size; /* caller */

    uint32_t findings_used, strays_used; /* caller sets them to 0 */
    uint32_t flows_used, sequences_used, sequences_free, slots_used;
    uint32_t slots_free;
    uint32_t violations[MQQB_AUDIT_KINDS], unknowns[MQQB_AUDIT_KINDS]; /* of connections; those of flows are there */
    int64_t accused; /* when an acknowledgement was last found wrong, which something that comes late may make right */
    uint64_t packets, holes, malformed, foreign; /* foreign: connections that never spoke the protocol */
} mqqb_audit;

enum {
    MQQB_AUDIT_DONE = 0,
    MQQB_AUDIT_GROW_CONNECTIONS =
        1, /* a row is of a connection that the table has no place for. After every growth: call again */
    MQQB_AUDIT_GROW_SOURCES = 2,   /* a code is above the table */
    MQQB_AUDIT_GROW_FLOWS = 3,     /* flows and flow_index, mqqb_audit_rehash */
    MQQB_AUDIT_GROW_SEQUENCES = 4, /* sequences and sequence_index, mqqb_audit_rehash; at most 2^24 - 1 sequences */
    MQQB_AUDIT_GROW_SLOTS = 5,     /* at least MQQB_AUDIT_PIECE more */
    MQQB_AUDIT_FINDINGS_FULL = 6   /* take findings and strays, and set findings_used and strays_used to 0 */
};

/* Take rows from *done on; *done becomes how many have been taken. columns: all up to MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS,
 * MQQB_CAPTURE_CLIENT_GUID, MQQB_CAPTURE_SERVER_GUID, and time. */
int32_t mqqb_audit_rows(mqqb_audit *a, const mqqb_capture_columns *columns, uint32_t rows, uint32_t *done);

/* Something of the whole capture is missing, as where a file ends early. time: ns since 1970, when what follows begins. */
void mqqb_audit_interrupted(mqqb_audit *a, int64_t time);

/* At the end of the capture: count the messages that still have a slot. */
void mqqb_audit_finish(mqqb_audit *a);

/* Which of so many connections the tables refer to: those become MQQB_CAPTURE_KEEP in `wishes`. */
void mqqb_audit_referred(mqqb_audit *a, uint32_t connections, uint32_t *wishes);

/* Connections have the new numbers of mqqb_capture_forget; nothing refers to what it has forgotten. */
void mqqb_audit_renumber(mqqb_audit *a, uint32_t connections, const uint32_t *numbers);

/* After the size of an index was changed: fill all indexes, which are all 0, again. */
void mqqb_audit_rehash(mqqb_audit *a);

#ifdef __cplusplus
}
#endif

#endif
