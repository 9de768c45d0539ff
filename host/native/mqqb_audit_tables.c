/* mqqb_audit_tables.c: part of mqqb_audit.c: flags, findings, indexes, and the slots of messages. */
#include "mqqb_audit.h"

#include <string.h>

#define NS_PER_S 1000000000
#define NOWHERE 0xFFFFFFFFu

/* mqqb_audit_slot.flags; the high half has the class of the FinalAck. */
#define SEEN 0x01u
#define HELD 0x02u /* JN or JP: an OrderAck does not settle it (B-237) */
#define ORDERED 0x04u
#define FINAL 0x10u
#define INSERTED 0x20u  /* its FinalAck shows that the message was in the queue */
#define TWO_IDS 0x40u   /* a message with another MessageID or number was reported */
#define TWICE 0x80u     /* two FinalAcks were reported */
#define ASKED 0x100u    /* JN, JP or FA: a FinalAck is expected (B-116) */
#define OTHER_ID 0x200u /* a FinalAck for another MessageID was reported */

/* mqqb_audit_direction.unknown: already reported. */
#define UNKNOWN_ACK 1u
#define UNKNOWN_COUNT 2u

typedef mqqb_audit_sequence sequence;

typedef struct {
    const mqqb_capture_columns *columns;
    uint32_t i;
    uint32_t connection, direction;
    int64_t time;
    mqqb_audit_packet packet;
} row;

static inline uint32_t get(const row *r, unsigned column)
{
    return r->columns->column[column][r->i];
}

static inline uint32_t least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static inline int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline uint32_t greatest(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* The queue manager of a private queue (DQ 3); 0 for names that include it. */
static inline uint32_t host(const row *r)
{
    return (get(r, MQQB_SCAN_USER_FLAGS) & MQQB_USER_DQ) == 3u << 10 ? get(r, MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS) : 0;
}

/* ---- findings --------------------------------------------------------------------------------- */

static void show(mqqb_audit_finding *found, const mqqb_audit_packet *packet)
{
    found->packet[found->packets++] = *packet;
}

static void show_slot(mqqb_audit_finding *found, const mqqb_audit_slot *slot)
{
    const mqqb_audit_packet packet = {slot->time, slot->files & 0xFFFF, slot->frame};

    show(found, &packet);
}

/* flow: its index and 1; 0: the connection shows it. */
static mqqb_audit_finding *find_of(mqqb_audit *a, const row *r, uint32_t flow, mqqb_audit_kind kind,
                                   mqqb_audit_detail detail, int unknown)
{
    mqqb_audit_finding *const found = &a->findings[a->findings_used++];

    memset(found, 0, sizeof *found);
    found->kind = (uint32_t)kind;
    found->detail = (uint32_t)detail;
    found->unknown = unknown != 0;
    found->connection = r->connection;
    found->direction = r->direction;
    found->flow = flow;
    if (flow == 0) {
        (unknown ? a->unknowns : a->violations)[kind]++;
    } else {
        mqqb_audit_flow *const f = &a->flows[flow - 1];
        (unknown ? f->unknowns : f->violations)[kind]++;
    }
    return found;
}

static mqqb_audit_finding *find(mqqb_audit *a, const row *r, const sequence *s, mqqb_audit_kind kind,
                                mqqb_audit_detail detail, int unknown)
{
    mqqb_audit_finding *const found = find_of(a, r, s->flow, kind, detail, unknown);

    found->ordinal = s->ordinal;
    found->time_stamp = s->time_stamp;
    return found;
}

/* ---- tables ----------------------------------------------------------------------------------- */

static inline uint32_t hash(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t h = a * 0x9E3779B1u ^ b * 0x85EBCA77u ^ c * 0xC2B2AE3Du;

    h ^= h >> 15;
    h *= 0x2C1B3C6Du;
    return h ^ h >> 13;
}

static inline int same_key(const mqqb_audit_key *a, const mqqb_audit_key *b)
{
    return a->source == b->source && a->destination == b->destination && a->address == b->address && a->hops == b->hops;
}

static uint32_t find_flow(const mqqb_audit *a, const mqqb_audit_key *key, uint32_t *at)
{
    const uint32_t mask = a->flow_index_size - 1;
    uint32_t entry;

    for (*at = hash(key->source, key->destination, key->address ^ key->hops) & mask; (entry = a->flow_index[*at]) != 0;
         *at = (*at + 1) & mask) {
        if (same_key(&a->flows[entry - 1].key, key)) {
            return entry;
        }
    }
    return 0;
}

/* An entry of the sequences' index: the sequence's index and 1, above it part of the hash, which saves look-ups. */
#define ENTRY 0x00FFFFFFu

static inline uint32_t sequence_place(const mqqb_audit *a, uint32_t source, uint32_t ordinal, uint32_t time_stamp)
{
    return hash(source, ordinal, time_stamp) & (a->sequence_index_size - 1);
}

/* The next sequence of this id at *at or after it; *at becomes the place to continue from. All queues and hop
 * counts of a source share one id counter (B-079), so there is usually one. */
static uint32_t next_sequence(const mqqb_audit *a, uint32_t source, uint32_t ordinal, uint32_t time_stamp, uint32_t *at)
{
    const uint32_t mask = a->sequence_index_size - 1, own = hash(source, ordinal, time_stamp);
    uint32_t entry;

    while ((entry = a->sequence_index[*at]) != 0) {
        const sequence *const s = &a->sequences[(entry & ENTRY) - 1];
        *at = (*at + 1) & mask;
        if (((entry ^ own) & ~ENTRY) == 0 && s->ordinal == ordinal && s->time_stamp == time_stamp &&
            s->key.source == source) {
            return entry & ENTRY;
        }
    }
    return 0;
}

static void index_sequence(mqqb_audit *a, uint32_t entry)
{
    const sequence *const s = &a->sequences[entry - 1];
    uint32_t at = sequence_place(a, s->key.source, s->ordinal, s->time_stamp);

    while (a->sequence_index[at] != 0) {
        at = (at + 1) & (a->sequence_index_size - 1);
    }
    a->sequence_index[at] = entry | (hash(s->key.source, s->ordinal, s->time_stamp) & ~ENTRY);
}

static void unindex_sequence(mqqb_audit *a, uint32_t entry)
{
    const uint32_t mask = a->sequence_index_size - 1;
    const sequence *s = &a->sequences[entry - 1];
    uint32_t at = sequence_place(a, s->key.source, s->ordinal, s->time_stamp), next;

    while ((a->sequence_index[at] & ENTRY) != entry) {
        at = (at + 1) & mask;
    }
    for (next = (at + 1) & mask; a->sequence_index[next] != 0; next = (next + 1) & mask) {
        uint32_t home;
        s = &a->sequences[(a->sequence_index[next] & ENTRY) - 1];
        home = sequence_place(a, s->key.source, s->ordinal, s->time_stamp);
        if (((next - home) & mask) >= ((next - at) & mask)) {
            a->sequence_index[at] = a->sequence_index[next];
            at = next;
        }
    }
    a->sequence_index[at] = 0;
}

void mqqb_audit_rehash(mqqb_audit *a)
{
    uint32_t entry;

    for (entry = 1; entry <= a->flows_used; entry++) {
        const mqqb_audit_flow *const f = &a->flows[entry - 1];
        uint32_t at;
        (void)find_flow(a, &f->key, &at);
        a->flow_index[at] = entry;
    }
    for (entry = 1; entry <= a->sequences_used; entry++) {
        if (a->sequences[entry - 1].flow != 0) {
            index_sequence(a, entry);
        }
    }
}

static uint32_t take_piece(mqqb_audit *a)
{
    uint32_t at = a->slots_free;

    if (at != 0) {
        a->slots_free = a->slots[at - 1].message_id;
        memset(&a->slots[at - 1], 0, sizeof a->slots[0] * MQQB_AUDIT_PIECE);
    } else {
        at = a->slots_used + 1;
        a->slots_used += MQQB_AUDIT_PIECE;
    }
    return at;
}

static void give_piece(mqqb_audit *a, uint32_t at)
{
    a->slots[at - 1].message_id = a->slots_free;
    a->slots_free = at;
}

/* ---- slots ------------------------------------------------------------------------------------ */

/* The slot of a seen number, or NULL. */
static mqqb_audit_slot *seen_slot(const mqqb_audit *a, const sequence *s, uint32_t number)
{
    const uint32_t block = number / MQQB_AUDIT_BLOCK, at = s->pieces[number / MQQB_AUDIT_PIECE % MQQB_AUDIT_PIECES];
    mqqb_audit_slot *slot;

    if (at == 0 || block < s->first_block || block > s->last_block) {
        return NULL;
    }
    slot = &a->slots[at - 1 + number % MQQB_AUDIT_PIECE];
    return (slot->flags & SEEN) != 0 ? slot : NULL;
}

/* The lowest number that may have a slot, and the one after the greatest; both above all seen numbers if none has. */
static inline uint32_t slots_begin(const sequence *s)
{
    return s->first_block * MQQB_AUDIT_BLOCK;
}

static inline uint64_t slots_end(const sequence *s)
{
    return ((uint64_t)s->last_block + 1) * MQQB_AUDIT_BLOCK;
}

/* Is the message settled, without a FinalAck? */
static int settled(const mqqb_audit_slot *slot)
{
    return (slot->flags & (ORDERED | HELD)) == ORDERED;
}

/* Is no further packet expected for the message? */
static int over(const mqqb_audit_slot *slot)
{
    return (slot->flags & FINAL) != 0 || (settled(slot) && (slot->flags & ASKED) == 0);
}

static void remember_final(sequence *s, const mqqb_audit_final *final)
{
    s->finals[s->finals_next++ % MQQB_AUDIT_FINALS] = *final;
}

/* Is the class about receiving, not arriving (B-365)? Then the message was in its queue. */
static inline int is_inserted(uint32_t message_class)
{
    return (message_class & 0x4000) != 0;
}

static mqqb_audit_packet final_packet(const mqqb_audit_slot *slot)
{
    const mqqb_audit_packet packet = {slot->final_time, slot->files >> 16, slot->final_frame};

    return packet;
}

/* The FinalAck of a message that was in its queue. The slot's class may be an earlier rejection of another copy. */
static mqqb_audit_final final_of(const mqqb_audit_slot *slot, uint32_t number)
{
    const mqqb_audit_final final = {final_packet(slot), number, slot->final_id, slot->message_id,
                                    slot->flags >> 16 | 0x4000};

    return final;
}

/* Count a message that loses its slot. */
static void conclude(sequence *s, const mqqb_audit_slot *slot, uint32_t number)
{
    if ((slot->flags & INSERTED) != 0) {
        const mqqb_audit_final final = final_of(slot, number);
        remember_final(s, &final);
    }
    if ((slot->flags & SEEN) != 0 && (slot->flags & FINAL) == 0 && !settled(slot)) {
        s->counts.unsettled++;
    }
}

/* Free the oldest block. */
static void conclude_block(mqqb_audit *a, sequence *s)
{
    uint32_t number, k;

    for (number = s->first_block * MQQB_AUDIT_BLOCK; number / MQQB_AUDIT_BLOCK == s->first_block; number += k) {
        uint32_t *const at = &s->pieces[number / MQQB_AUDIT_PIECE % MQQB_AUDIT_PIECES];
        for (k = 0; *at != 0 && k < MQQB_AUDIT_PIECE; k++) {
            conclude(s, &a->slots[*at - 1 + k], number + k);
        }
        if (*at != 0) {
            give_piece(a, *at);
        }
        *at = 0;
        k = MQQB_AUDIT_PIECE;
    }
    s->first_block++;
    s->floor_block = s->first_block;
}

static void conclude_all(mqqb_audit *a, sequence *s)
{
    while (s->has_slots != 0 && s->first_block <= s->last_block) {
        conclude_block(a, s);
    }
    s->has_slots = 0;
}

/* Is no further packet expected for `count` slots from this place on? */
static int all_over(const mqqb_audit *a, const sequence *s, uint32_t place, uint32_t count)
{
    for (; count != 0; place++, count--) {
        const uint32_t at = s->pieces[place / MQQB_AUDIT_PIECE % MQQB_AUDIT_PIECES];
        if (at != 0) {
            const mqqb_audit_slot *const slot = &a->slots[at - 1 + place % MQQB_AUDIT_PIECE];
            if ((slot->flags & SEEN) != 0 && !over(slot)) {
                return 0;
            }
        }
    }
    return 1;
}

/* The slot for a number, or NULL if the number is too old. */
static mqqb_audit_slot *make_slot(mqqb_audit *a, sequence *s, uint32_t number)
{
    const uint32_t block = number / MQQB_AUDIT_BLOCK;
    uint32_t *const at = &s->pieces[number / MQQB_AUDIT_PIECE % MQQB_AUDIT_PIECES];

    if (block < s->floor_block) {
        return NULL;
    }
    if (s->has_slots == 0) {
        s->has_slots = 1;
        s->first_block = block;
        s->last_block = block;
    }
    if (block < s->first_block) {
        if (s->last_block - block >= MQQB_AUDIT_BLOCKS) {
            return NULL;
        }
        s->first_block = block;
    }
    if (block > s->last_block) {
        while (s->first_block <= s->last_block && s->first_block + 1 < block &&
               (block - s->first_block >= MQQB_AUDIT_BLOCKS ||
                all_over(a, s, s->first_block * MQQB_AUDIT_BLOCK, MQQB_AUDIT_BLOCK))) {
            conclude_block(a, s);
        }
        if (s->first_block > s->last_block) {
            s->first_block = block; /* no old slot is left */
        }
        s->last_block = block;
    }
    if (*at == 0) {
        *at = take_piece(a);
    }
    return &a->slots[*at - 1 + number % MQQB_AUDIT_PIECE];
}

/* index: number of its message in `where`, 0: not counted. */
static void set_final(mqqb_audit_slot *slot, const mqqb_audit_final *final, uint32_t where, uint32_t index)
{
    slot->final_time = final->packet.time;
    slot->files = (slot->files & 0xFFFF) | final->packet.file << 16;
    slot->final_frame = final->packet.frame;
    slot->final_id = final->id;
    slot->final_where = where;
    slot->final_index = index;
}

static void count_class(mqqb_audit_flow *f, uint32_t message_class)
{
    uint32_t k;

    for (k = 0; k < MQQB_AUDIT_CLASSES; k++) {
        if (f->classes[k] == 0) {
            f->classes[k] = message_class;
        }
        if (f->classes[k] == message_class) {
            f->class_counts[k]++;
            return;
        }
    }
    f->class_rest++;
}
