/* mqqb_audit.c: see mqqb_audit.h. host/ordack/audit/result.py defines the findings. */
#include "mqqb_audit_tables.c" /* NOLINT(bugprone-suspicious-include): a part of this file */

/* ---- missed packets --------------------------------------------------------------------------- */

static void count_missed(mqqb_audit *a, mqqb_audit_missed *missed, int64_t time)
{
    missed->missed++;
    missed->order = ++a->misses;
    missed->time = later(missed->time, time);
}

/* Packets of this direction are missing: of any queue manager sending in it, or between these hosts, or forwarded. */
static void miss(mqqb_audit *a, const row *r, mqqb_audit_connection *c)
{
    mqqb_audit_direction *const own = &c->direction[r->direction];
    uint32_t k;

    own->missed = 1;
    count_missed(a, &a->pairs[c->pair ^ r->direction].missed, r->time);
    if (c->direction[0].owner != 0) {
        count_missed(a, &a->sources[c->direction[0].owner].gaps[r->direction], r->time);
    }
    if (own->owner != 0) {
        count_missed(a, &a->sources[own->owner].missed, r->time);
    }
    for (k = 0; k < MQQB_AUDIT_SOURCES && own->sources[k] != 0; k++) {
        count_missed(a, &a->sources[own->sources[k]].missed, r->time);
    }
}

/* The gaps in connections like the one that carried the sequence last: of one opener, in one direction. */
static const mqqb_audit_missed *gaps_of(const mqqb_audit *a, const sequence *s)
{
    return &a->sources[a->connections[s->where / 2].direction[0].owner].gaps[s->where & 1];
}

static int64_t unseen(const mqqb_audit *a, const sequence *s)
{
    const int64_t managers = later(a->sources[s->key.source].missed.time, gaps_of(a, s)->time);

    return later(later(a->start, a->pairs[s->pair].missed.time), later(managers, s->left));
}

static int has_end(const mqqb_audit_direction *own)
{
    return own->ended != 0 && own->ending != MQQB_END_REPLACED;
}

/* Does the capture lack the end of a connection from this number on, of the same sender to the same peer, although the
 * sender has begun another one since? Then its last packets may be missing without a trace. Returns the beginning of
 * the newest connection, or 0. where: one of these connections. */
static int64_t left_at(const mqqb_audit *a, uint32_t where, uint32_t first)
{
    const uint32_t side = where & 1;
    const mqqb_audit_connection *const c = &a->connections[where / 2], *newest = NULL, *older;
    uint32_t next = a->sources[c->direction[side].owner].newest[side], k;

    for (k = 0; next > first && k < MQQB_AUDIT_EARLIER; next = older->before[side], k++) {
        older = &a->connections[next - 1];
        if (older->pair == c->pair || older->direction[side ^ 1].owner == c->direction[side ^ 1].owner) {
            newest = newest == NULL ? older : newest;
            if (older != newest && !has_end(&older->direction[side]) &&
                older->direction[side].last_time <= newest->first_time) {
                return newest->first_time;
            }
        }
    }
    return 0;
}

/* Drop certainty if packets of this sender may have been missed since the last look. */
static void refresh(const mqqb_audit *a, sequence *s)
{
    const uint32_t managers = greatest(a->sources[s->key.source].missed.order, gaps_of(a, s)->order);

    if (greatest(managers, a->pairs[s->pair].missed.order) > s->misses) {
        s->sure = 0;
        s->fresh = 1;
    }
    s->misses = a->misses;
}

/* All messages from this lower number on are seen. */
static void be_sure(sequence *s, uint32_t number)
{
    s->sure = number;
    s->accepted = greatest(s->accepted, number - 1);
}

static void add_source(uint32_t *sources, uint32_t *more, uint32_t code)
{
    uint32_t k;

    for (k = 0; k < MQQB_AUDIT_SOURCES; k++) {
        if (sources[k] == code || sources[k] == 0) {
            sources[k] = code;
            return;
        }
    }
    *more = 1;
}

/* ---- late packets ----------------------------------------------------------------------------- */

static void withdraw(mqqb_audit *a, const row *r, uint32_t code, int64_t since)
{
    mqqb_audit_finding *const found = &a->findings[a->findings_used++];

    memset(found, 0, sizeof *found);
    found->detail = MQQB_AUDIT_LATE;
    found->connection = r->connection;
    found->direction = r->direction;
    found->a = code;
    found->packet[0].time = since;
    found->packets = 1;
}

/* Packets of this connection were in flight, or lost, since the rows before. Withdraw findings that depend on them. */
static void come_late(mqqb_audit *a, const row *r, const mqqb_audit_connection *c)
{
    uint32_t side, k;

    for (side = 0; side < 2; side++) {
        const mqqb_audit_direction *const d = &c->direction[side];
        int64_t since = d->last_time != 0 ? d->last_time : c->first_time;
        if (side != r->direction) { /* limit of the wait for missing packets */
            since = later(since, r->time - MQQB_CAPTURE_WINDOW);
        }
        if (a->accused < since) {
            continue;
        }
        withdraw(a, r, d->owner, since);
        for (k = 0; k < MQQB_AUDIT_SOURCES && d->sources[k] != 0; k++) {
            if (d->sources[k] != d->owner) {
                withdraw(a, r, d->sources[k], since);
            }
        }
    }
}

/* ---- session acknowledgements ----------------------------------------------------------------- */

/* Does this difference differ from the last reported? A header in a message may not count the message (OP-14). */
static int differs(uint32_t difference, uint32_t last)
{
    const uint32_t step = (difference - last) & 0xFFFF;

    return last == 0 || (step != 0 && step != 1 && step != 0xFFFF);
}

/* b: the correct number. */
static mqqb_audit_finding *wrong_count(mqqb_audit *a, const row *r, mqqb_audit_detail detail, uint32_t stated,
                                       uint32_t b, int unknown)
{
    mqqb_audit_finding *const found = find_of(a, r, 0, MQQB_AUDIT_COUNT_MISMATCH, detail, unknown);

    found->a = stated;
    found->b = b & 0xFFFF;
    return found;
}

/* Check the counts of a SessionHeader, in a completely seen direction. */
static void check_counts(mqqb_audit *a, const row *r, mqqb_audit_direction *own, const mqqb_session_header *h,
                         int carried)
{
    const uint32_t left_out = (own->messages - h->user_msg_sequence_number) & 0xFFFF;
    const uint32_t recoverable_left_out = (own->recoverable - h->recoverable_msg_sequence_number) & 0xFFFF;

    if (left_out > (uint32_t)carried) {
        if (differs(left_out, own->user_difference)) {
            show(wrong_count(a, r, MQQB_AUDIT_USER_COUNT, h->user_msg_sequence_number, own->messages, 0), &r->packet);
        }
        own->user_difference = left_out;
    } else if (recoverable_left_out > left_out) {
        if (differs(recoverable_left_out, own->recoverable_difference)) {
            show(wrong_count(a, r, MQQB_AUDIT_RECOVERABLE_COUNT, h->recoverable_msg_sequence_number, own->recoverable,
                             0),
                 &r->packet);
        }
        own->recoverable_difference = recoverable_left_out;
    } else {
        own->user_difference = 0;
        own->recoverable_difference = 0;
    }
}

/* Does a 16-bit number exceed the `sent` counted messages? */
static int names_unsent(uint32_t number, uint32_t sent)
{
    return ((sent - number) & 0xFFFF) > least(sent, 0x8000);
}

/* 1: the SessionHeader acknowledges messages that were not sent, as far as seen. */
static int check_acks(mqqb_audit *a, const row *r, mqqb_audit_connection *c, const mqqb_session_header *h)
{
    mqqb_audit_direction *const own = &c->direction[r->direction];
    const mqqb_audit_direction *const other = &c->direction[r->direction ^ 1];
    const int user = names_unsent(h->ack_sequence_number, other->messages), unknown = other->missed != 0;
    uint32_t *const last = user ? &own->beyond : &own->recoverable_beyond;
    const uint32_t stated = user ? h->ack_sequence_number : h->recoverable_msg_ack_seq_number;
    uint32_t bits = h->recoverable_msg_ack_flags, top = h->recoverable_msg_ack_seq_number;
    mqqb_audit_finding *found;

    while (bits > 1) {
        bits >>= 1;
        top++;
    }
    if (!user && (bits == 0 || (!names_unsent(h->recoverable_msg_ack_seq_number, other->recoverable) &&
                                !names_unsent(top, other->recoverable)))) {
        return 0;
    }
    if (unknown ? (own->unknown & UNKNOWN_ACK) != 0 : *last == stated + 1) {
        return 1;
    }
    *last = stated + 1;
    if (unknown) {
        own->unknown |= UNKNOWN_ACK;
    } else {
        a->accused = later(a->accused, r->time);
    }
    found = find_of(a, r, 0, MQQB_AUDIT_ACK_BEYOND_RECEIPT, user ? MQQB_AUDIT_SESSION_ACK : MQQB_AUDIT_RECOVERABLE_ACK,
                    unknown);
    found->a = stated;
    found->b = (user ? other->messages : other->recoverable) & 0xFFFF;
    show(found, &r->packet);
    return 1;
}

static void session_header(mqqb_audit *a, const row *r, mqqb_audit_connection *c, int carried)
{
    mqqb_audit_direction *const own = &c->direction[r->direction];
    const mqqb_audit_direction *const other = &c->direction[r->direction ^ 1];
    mqqb_session_header h = {0};

    h.ack_sequence_number = get(r, MQQB_SCAN_ACK_SEQUENCE_NUMBER);
    h.recoverable_msg_ack_seq_number = get(r, MQQB_SCAN_RECOVERABLE_MSG_ACK_SEQ_NUMBER);
    h.recoverable_msg_ack_flags = get(r, MQQB_SCAN_RECOVERABLE_MSG_ACK_FLAGS);
    h.user_msg_sequence_number = get(r, MQQB_SCAN_USER_MSG_SEQUENCE_NUMBER);
    h.recoverable_msg_sequence_number = get(r, MQQB_SCAN_RECOVERABLE_MSG_SEQUENCE_NUMBER);

    if (!check_acks(a, r, c, &h) && other->missed == 0) {
        const uint32_t covered = other->messages - ((other->messages - h.ack_sequence_number) & 0xFFFF);
        if (covered > own->shown) {
            const mqqb_audit_header header = {covered, own->messages + (carried ? 0 : 1),
                                              h.recoverable_msg_ack_flags == 0};
            own->shown = covered;
            own->shown_packet = r->packet;
            own->headers[own->headers_next++ % MQQB_AUDIT_HEADERS] = header;
        }
    }
    if (own->missed == 0) {
        check_counts(a, r, own, &h, carried);
    } else if ((own->unknown & UNKNOWN_COUNT) == 0) {
        own->unknown |= UNKNOWN_COUNT;
        show(wrong_count(a, r, MQQB_AUDIT_USER_COUNT, h.user_msg_sequence_number, own->messages, 1), &r->packet);
    }
}

/* ---- messages --------------------------------------------------------------------------------- */

/* Has the sender shown that it has this message of the other side? */
static int is_shown(const mqqb_audit *a, uint32_t where, uint32_t index)
{
    return index != 0 && a->connections[where / 2].direction[(where & 1) ^ 1].shown >= index;
}

/* Move shown acknowledgements out of the waiting list. */
static void settle_acks(const mqqb_audit *a, sequence *s)
{
    uint32_t k, left = 0;

    for (k = 0; k < s->acks_used; k++) {
        if (is_shown(a, s->acks[k].where, s->acks[k].index)) {
            if (s->acks[k].number >= s->shown.number) {
                s->shown = s->acks[k];
            }
        } else {
            s->acks[left++] = s->acks[k];
        }
    }
    s->acks_used = left;
}

/* The first remembered SessionHeader of this direction that covers the other's message with this index, or NULL. */
static const mqqb_audit_header *covering(const mqqb_audit_direction *own, uint32_t index)
{
    uint32_t k = own->headers_next > MQQB_AUDIT_HEADERS ? own->headers_next - MQQB_AUDIT_HEADERS : 0;

    for (; index != 0 && k < own->headers_next; k++) {
        if (own->headers[k % MQQB_AUDIT_HEADERS].covered >= index) {
            return &own->headers[k % MQQB_AUDIT_HEADERS];
        }
    }
    return NULL;
}

/* Only packets of this connection count: a sender may lose its knowledge in a power cut. */
static void check_resend(mqqb_audit *a, const row *r, sequence *s, const mqqb_audit_slot *slot, uint32_t number)
{
    const uint32_t answers = 2 * r->connection | (r->direction ^ 1); /* direction of acknowledgements */
    const mqqb_audit_connection *const c = &a->connections[r->connection];
    const mqqb_audit_packet *const proof = &c->direction[r->direction].shown_packet;
    const mqqb_audit_header *const header = covering(&c->direction[r->direction ^ 1], slot->index);
    mqqb_audit_finding *found;

    /* Ambiguous messages are skipped, and forwarded ones: the source may lack the forwarder's acknowledgements. */
    if ((slot->flags & (TWO_IDS | OTHER_ID)) != 0 || s->key.hops != 0) {
        return;
    }
    if ((slot->flags & FINAL) != 0 && slot->final_where == answers && is_shown(a, answers, slot->final_index)) {
        const mqqb_audit_packet final = final_packet(slot);
        found = find(a, r, s, MQQB_AUDIT_RESENT_AFTER_ACK, MQQB_AUDIT_RESENT_FINAL, 0);
        found->a = slot->flags >> 16;
        found->number = number;
        show_slot(found, slot);
        show(found, &final);
        show(found, proof);
        show(found, &r->packet);
        return;
    }
    settle_acks(a, s);
    if (slot->where != (answers ^ 1) || s->shown.where != answers || s->shown.number < number || header == NULL ||
        !is_shown(a, answers, header->index)) {
        return;
    }
    /* Without its bit a SessionHeader does not settle a message with an OrderAck (B-224); a later OrderAck does. */
    if (header->bare != 0 && s->shown.index < header->index) {
        return;
    }
    found = find(a, r, s, MQQB_AUDIT_RESENT_AFTER_ACK, MQQB_AUDIT_RESENT_ORDERED, 0);
    found->a = s->shown.number;
    found->number = number;
    show_slot(found, slot);
    show(found, &s->shown.packet);
    show(found, proof);
    show(found, &r->packet);
}

/* Another message of the flow with this MessageID, or NULL. *k: its number. */
static const mqqb_audit_slot *find_id(const mqqb_audit *a, const mqqb_audit_flow *f, const sequence *s, uint32_t number,
                                      uint32_t id, uint64_t *k)
{
    for (uint32_t entry = f->newest; entry != 0; entry = a->sequences[entry - 1].older) {
        const sequence *const other = &a->sequences[entry - 1];
        for (*k = slots_begin(other); *k < slots_end(other); ++*k) {
            const mqqb_audit_slot *const slot = seen_slot(a, other, (uint32_t)*k);
            if (slot != NULL && slot->message_id == id && (other != s || *k != number)) {
                return slot;
            }
        }
    }
    return NULL;
}

/* Does one MessageID have two numbers? Identifiers rise, so comparisons are rare. 1: reported. */
static int check_id(mqqb_audit *a, const row *r, const mqqb_audit_flow *f, sequence *s, uint32_t number, uint32_t id)
{
    uint64_t k;
    sequence *const newest = s->superseded == 0 ? s : &a->sequences[f->newest - 1];
    const mqqb_audit_slot *slot;
    mqqb_audit_finding *found;

    if (id > newest->message_id) {
        newest->message_id = id;
        return 0;
    }
    slot = find_id(a, f, s, number, id, &k);
    if (slot == NULL) {
        return 0;
    }
    found = find(a, r, s, MQQB_AUDIT_RENUMBERED, MQQB_AUDIT_TWO_NUMBERS, 0);
    found->number = number;
    found->a = id;
    found->b = (uint32_t)k;
    show_slot(found, slot);
    show(found, &r->packet);
    return 1;
}

/* The receiver's rule over all seen messages gives an upper bound of its accepted number. 1: it accepts. */
static void replay(mqqb_audit *a, const row *r, const mqqb_audit_flow *f, sequence *s, uint32_t number,
                   uint32_t previous, int resent)
{
    const int old = s->superseded != 0 && a->sequences[f->newest - 1].accepted != 0;
    unsigned reason;

    if (resent && s->back != 0 && previous <= s->back_to && number > s->back_to && number <= s->back_from) {
        s->back_to = number;
        s->back_number = number;
        s->back_packet[2] = r->packet;
    }
    if (number > s->accepted && (previous <= s->accepted || s->fresh != 0)) {
        s->accepted = number;
        if (!old) {
            return;
        }
    }
    if (old) {
        reason = MQQB_AUDIT_OLD_SEQUENCE;
    } else if (number <= s->accepted) {
        reason = MQQB_AUDIT_DUPLICATE;
    } else {
        reason = s->accepted == 0 ? MQQB_AUDIT_START_MISSING : MQQB_AUDIT_GAP;
    }
    s->counts.rejects[reason]++;
}

static void keep_highest(mqqb_audit_source *source, const sequence *s)
{
    if (mqqb_tx_compare(s->ordinal, s->time_stamp, source->folded_ordinal, source->folded_time_stamp) > 0) {
        source->folded_ordinal = s->ordinal;
        source->folded_time_stamp = s->time_stamp;
    }
}

/* Keep of old sequences only state that still matters. */
static void prune(mqqb_audit *a, mqqb_audit_flow *f)
{
    uint32_t entry = a->sequences[f->newest - 1].older, *link = &a->sequences[f->newest - 1].older, place;

    for (place = 1; entry != 0; place++) {
        sequence *const s = &a->sequences[entry - 1];
        const uint32_t older = s->older;
        if (s->has_slots != 0 && place >= MQQB_AUDIT_DETAILED &&
            (place >= 4 * MQQB_AUDIT_KEEP || all_over(a, s, 0, MQQB_AUDIT_BLOCKS * MQQB_AUDIT_BLOCK))) {
            conclude_all(a, s);
        }
        if (s->has_slots == 0 && place >= MQQB_AUDIT_KEEP) {
            const uint32_t *const from = (const uint32_t *)&s->counts;
            uint32_t *const to = (uint32_t *)&f->folded;
            uint32_t k;
            for (k = 0; k < sizeof s->counts / sizeof *from; k++) {
                to[k] += from[k];
            }
            f->last_time = later(f->last_time, s->last_time);
            keep_highest(&a->sources[s->key.source], s);
            unindex_sequence(a, entry);
            memset(s, 0, sizeof *s);
            s->older = a->sequences_free;
            a->sequences_free = entry;
            *link = older;
            f->kept--;
        } else {
            link = &s->older;
        }
        entry = older;
    }
}

static uint32_t new_flow(mqqb_audit *a, const row *r, const mqqb_audit_key *key)
{
    uint32_t at, entry = find_flow(a, key, &at);

    if (entry == 0) {
        mqqb_audit_flow *const f = &a->flows[a->flows_used];
        entry = ++a->flows_used;
        a->flow_index[at] = entry;
        f->key = *key;
        f->first_time = r->time;
    }
    return entry;
}

/* Report a message of a lower sequence after these packets of a higher one. */
static void went_back(mqqb_audit *a, const row *r, const sequence *lower, const sequence *higher,
                      const mqqb_audit_packet *first, const mqqb_audit_packet *second)
{
    mqqb_audit_finding *const found = find(a, r, lower, MQQB_AUDIT_ID_WENT_BACK, MQQB_AUDIT_LOWER_SEQUENCE, 0);

    found->number = get(r, MQQB_SCAN_TX_SEQUENCE_NUMBER);
    found->a = higher->ordinal;
    found->b = higher->time_stamp;
    show(found, first);
    if (second != NULL) {
        show(found, second);
    }
    show(found, &r->packet);
}

static int may_have_missed(const mqqb_audit *a, const mqqb_audit_pair *pair)
{
    const sequence *const newest = &a->sequences[a->flows[pair->begun_flow - 1].newest - 1];

    return greatest(a->sources[newest->key.source].missed.order, pair->missed.order) > pair->misses ||
           newest->left > pair->begun.time;
}

/* A sequence after one that is completely known. Not for forwarded ones, which are sent later than numbered. */
static void has_begun(const mqqb_audit *a, const row *r, sequence *s)
{
    mqqb_audit_pair *const pair = &a->pairs[s->pair];

    if (s->key.hops != 0) {
        return;
    }
    if (pair->begun_flow == 0 || may_have_missed(a, pair)) {
        pair->begun_flow = s->flow;
        pair->begun_ordinal = s->ordinal;
        pair->begun_time_stamp = s->time_stamp;
        pair->misses = a->misses;
        pair->begun = r->packet;
    }
}

/* Was a message of the sequence sent after the last missed packets, in time, on an older connection? */
static int was_in_use(const mqqb_audit *a, const sequence *s)
{
    return s->fresh == 0 &&
           (s->sure != 0 || (s->key.hops == 0 && s->left == 0 && a->connections[s->where / 2].begun != 0));
}

static uint32_t new_sequence(mqqb_audit *a, const row *r, const mqqb_audit_key *key, uint32_t pair)
{
    const uint32_t ordinal = get(r, MQQB_SCAN_TX_SEQUENCE_ORDINAL),
                   time_stamp = get(r, MQQB_SCAN_TX_SEQUENCE_TIME_STAMP);
    const uint32_t flow = new_flow(a, r, key);
    mqqb_audit_flow *const f = &a->flows[flow - 1];
    uint32_t entry = a->sequences_free, lower, *link = &f->newest;
    sequence *s;

    if (entry != 0) {
        a->sequences_free = a->sequences[entry - 1].older;
    } else {
        entry = ++a->sequences_used;
    }
    s = &a->sequences[entry - 1];
    memset(s, 0, sizeof *s);
    s->ordinal = ordinal;
    s->time_stamp = time_stamp;
    s->key = *key;
    s->flow = flow;
    s->fresh = 1;
    s->pair = pair;
    s->misses = a->misses;
    s->first_where = 2 * r->connection | r->direction;
    s->where = s->first_where;
    s->reported_where = NOWHERE;
    s->first_time = r->time;
    s->lowest = 0xFFFFFFFFu;
    index_sequence(a, entry);

    while ((lower = *link) != 0 && mqqb_tx_compare(a->sequences[lower - 1].ordinal, a->sequences[lower - 1].time_stamp,
                                                   ordinal, time_stamp) > 0) {
        link = &a->sequences[lower - 1].older;
    }
    s->left = a->misses != 0 ? left_at(a, s->where, lower != 0 ? a->sequences[lower - 1].where / 2 : 0) : 0;
    s->older = lower;
    *link = entry;
    f->sequences++;
    f->kept++;
    if (f->newest != entry) {
        s->superseded = 1;
    } else if (lower != 0) {
        sequence *const before = &a->sequences[lower - 1];
        s->message_id = before->message_id;
        before->superseded = 1;
        refresh(a, before);
        if (before->pair == pair && (key->hops == 0 || gaps_of(a, before) == gaps_of(a, s)) &&
            was_in_use(a, before)) { /* until now (B-093) */
            s->fresh = 0;
            if (s->left == 0) {
                be_sure(s, 1);
            }
            if (s->left == 0 && before->sure != 0) {
                has_begun(a, r, s);
            }
        }
        s->left = later(s->left, before->left);
        prune(a, f);
    }
    return entry;
}

/* May a message of a lower sequence on an older connection have been sent before the higher one began? Not if the
 * sender has shown, in this direction and before it, an OrderAck for the higher one. */
static void check_went_back_late(mqqb_audit *a, const row *r, const mqqb_audit_flow *f, sequence *s)
{
    const uint32_t where = 2 * r->connection | r->direction;
    uint32_t entry;

    for (entry = f->newest; &a->sequences[entry - 1] != s; entry = a->sequences[entry - 1].older) {
        sequence *const higher = &a->sequences[entry - 1];
        settle_acks(a, higher);
        if (higher->shown.number != 0 && higher->shown.where == (where ^ 1)) {
            s->reported_where = where;
            went_back(a, r, s, higher, &higher->shown.packet,
                      &a->connections[r->connection].direction[r->direction].shown_packet);
            return;
        }
    }
}

/* Check a message of a sequence lower than the flow's newest. Forwarded messages may have waited at the forwarder. */
static void check_went_back(mqqb_audit *a, const row *r, const mqqb_audit_flow *f, sequence *s)
{
    const uint32_t where = 2 * r->connection | r->direction;
    const mqqb_audit_connection *const c = &a->connections[r->connection];
    const sequence *const newest = &a->sequences[f->newest - 1];

    if (s->key.hops != 0 || s->reported_where == where) {
        return;
    }
    if (where != newest->where && where != newest->first_where &&
        (c->begun == 0 || c->first_time <= newest->first_time)) {
        check_went_back_late(a, r, f, s);
        return;
    }
    s->reported_where = where;
    went_back(a, r, s, newest, &newest->highest_packet, NULL);
}

static void removed_twice(mqqb_audit *a, const row *r, const sequence *s, const mqqb_audit_final *first,
                          const mqqb_audit_final *second)
{
    mqqb_audit_slot *const slot = seen_slot(a, s, first->number);
    mqqb_audit_finding *const found = find(a, r, s, MQQB_AUDIT_DELIVERED_TWICE, MQQB_AUDIT_TWO_FINAL_ACKS, 0);

    found->number = first->number;
    found->a = first->id;
    found->b = second->id;
    if (slot != NULL) {
        slot->flags |= TWICE;
        show_slot(found, slot);
    }
    show(found, &first->packet);
    show(found, &second->packet);
}

static void message(mqqb_audit *a, const row *r, mqqb_audit_connection *c)
{
    mqqb_audit_direction *const own = &c->direction[r->direction];
    const uint32_t user_flags = get(r, MQQB_SCAN_USER_FLAGS);
    const mqqb_audit_key key = {get(r, MQQB_CAPTURE_SOURCE_QUEUE_MANAGER), get(r, MQQB_CAPTURE_DESTINATION_QUEUE),
                                host(r), user_flags & MQQB_USER_RC};
    const uint32_t ordinal = get(r, MQQB_SCAN_TX_SEQUENCE_ORDINAL),
                   time_stamp = get(r, MQQB_SCAN_TX_SEQUENCE_TIME_STAMP);
    const uint32_t number = get(r, MQQB_SCAN_TX_SEQUENCE_NUMBER), id = get(r, MQQB_SCAN_MESSAGE_ID);
    const uint32_t previous = get(r, MQQB_SCAN_PREVIOUS_TX_SEQUENCE_NUMBER);
    const uint32_t where = 2 * r->connection | r->direction, pair = c->pair ^ r->direction;
    const uint32_t sent_time = get(r, MQQB_SCAN_SENT_TIME);
    uint32_t at = sequence_place(a, key.source, ordinal, time_stamp), entry;
    int resent;
    int64_t left;
    const mqqb_audit_missed *gaps;
    mqqb_audit_flow *f;
    mqqb_audit_slot *slot;
    sequence *s;

    do {
        entry = next_sequence(a, key.source, ordinal, time_stamp, &at);
    } while (entry != 0 && !same_key(&a->sequences[entry - 1].key, &key));
    if (entry == 0) {
        entry = new_sequence(a, r, &key, pair);
    }
    s = &a->sequences[entry - 1];
    f = &a->flows[s->flow - 1];
    s->last_time = r->time;
    if (f->connections == 0 || r->connection > f->last_connection) {
        f->connections++;
        f->last_connection = r->connection;
    }

    refresh(a, s);
    gaps = gaps_of(a, s);
    left = a->misses != 0 && s->where != where ? left_at(a, s->where, s->where / 2) : 0;
    if (left != 0) {
        s->sure = 0;
        s->left = left;
    }
    s->where = where;
    if (s->pair != pair || gaps_of(a, s) != gaps) {
        s->pair = pair;
        if (later(a->pairs[pair].missed.time, gaps_of(a, s)->time) >= s->first_time) {
            s->sure = 0;
            s->fresh = 1;
        }
    }
    if (where != s->first_where) {
        s->several = 1;
    }
    if (s->superseded != 0) {
        check_went_back(a, r, f, s);
    }
    if ((int64_t)sent_time * NS_PER_S > r->time + NS_PER_S) {
        a->sources[key.source].missed.ahead = 1;
    } else if ((s->sure == 0 || number < s->sure) && a->sources[key.source].missed.ahead == 0 &&
               (int64_t)sent_time * NS_PER_S >= unseen(a, s)) {
        be_sure(s, number);
    }

    slot = make_slot(a, s, number);
    resent = slot == NULL || (slot->flags & SEEN) != 0;
    s->counts.resends += (uint32_t)resent;
    if (!resent) {
        s->counts.messages++;
        slot->time = r->time;
        slot->files = r->packet.file & 0xFFFF;
        slot->frame = r->packet.frame;
        slot->message_id = id;
        slot->previous = previous;
        slot->flags = SEEN;
        if ((user_flags & (MQQB_USER_JN | MQQB_USER_JP)) != 0) {
            slot->flags |= HELD | ASKED;
        } else if ((get(r, MQQB_SCAN_TX_FLAGS) & MQQB_TX_FA) != 0) {
            slot->flags |= ASKED;
        }
        if (number <= s->covered) {
            slot->flags |= ORDERED;
            s->counts.order_acked++;
        }
        if (check_id(a, r, f, s, number, id)) {
            slot->flags |= TWO_IDS;
        }
    } else if (slot != NULL) {
        if (slot->message_id != id && (slot->flags & TWO_IDS) == 0) {
            mqqb_audit_finding *const found = find(a, r, s, MQQB_AUDIT_RENUMBERED, MQQB_AUDIT_TWO_IDS, 0);
            slot->flags |= TWO_IDS;
            found->number = number;
            found->a = slot->message_id;
            found->b = id;
            show_slot(found, slot);
            show(found, &r->packet);
        }
        check_resend(a, r, s, slot, number);
        slot->previous = least(slot->previous, previous);
    }
    if (slot != NULL) {
        slot->where = where;
        slot->index = own->missed != 0 ? 0 : own->messages;
    }
    if (number > s->highest) {
        s->highest = number;
        s->highest_packet = r->packet;
    }
    s->lowest = least(s->lowest, number);
    replay(a, r, f, s, number, previous, resent);
    s->fresh = 0;
}

/* ---- acknowledgements of messages ------------------------------------------------------------- */

/* Was this number sent? 1: yes. 0: no, or it was missed. -1: before the known part. */
static int was_sent(const mqqb_audit *a, const sequence *s, uint32_t number)
{
    if (number > s->highest) {
        return 0;
    }
    if (number < s->lowest) {
        return -1;
    }
    return s->has_slots == 0 || number < slots_begin(s) || seen_slot(a, s, number) != NULL;
}

/* Raise the receiver's limit, up to a number, for any order of arrival over connections. */
static void accept_any_order(const mqqb_audit *a, sequence *s, uint32_t number)
{
    uint64_t k;

    for (k = greatest(s->accepted + 1, slots_begin(s)); k <= number; k++) {
        const mqqb_audit_slot *const slot = seen_slot(a, s, (uint32_t)k);
        if (slot != NULL && slot->previous <= s->accepted) {
            s->accepted = (uint32_t)k;
        }
    }
}

/* Raise the receiver's limit to an acknowledged number. It may have accepted the following messages seen since. */
static void accept_said(const mqqb_audit *a, sequence *s, uint32_t number)
{
    if (number > s->accepted) {
        s->accepted = number;
        accept_any_order(a, s, s->highest);
    }
}

static int is_reported(const sequence *s, uint32_t number)
{
    uint32_t k;

    for (k = 0; k < MQQB_AUDIT_REPORTED && s->reported[k] != number; k++) {
    }
    return k < MQQB_AUDIT_REPORTED;
}

/* Check an acknowledgement for a number that the receiver cannot have, or cannot have accepted. 1: it is one. */
static int check_number(mqqb_audit *a, const row *r, sequence *s, uint32_t number, int order, int accepted)
{
    const int sent = was_sent(a, s, number);
    int skipped = sent == 1 && accepted && number > s->accepted, unknown;

    if (skipped && s->several != 0) {
        accept_any_order(a, s, number);
        skipped = number > s->accepted;
    }
    if (sent < 0 || (sent == 1 && !skipped)) {
        return 0;
    }
    unknown = s->sure == 0 || number < s->sure || left_at(a, s->where, s->where / 2) != 0;
    if (!is_reported(s, number)) {
        mqqb_audit_finding *found;
        if (skipped) {
            const mqqb_audit_slot *const slot = seen_slot(a, s, number);
            found = find(a, r, s, MQQB_AUDIT_SKIPPED, order ? MQQB_AUDIT_ORDER_ACK_SKIPS : MQQB_AUDIT_FINAL_ACK_SKIPS,
                         unknown);
            found->a = s->accepted;
            if (slot != NULL) {
                found->b = slot->previous;
                show_slot(found, slot);
            }
        } else {
            found = find(a, r, s, MQQB_AUDIT_ACK_BEYOND_RECEIPT,
                         order ? MQQB_AUDIT_ORDER_ACK_UNSENT : MQQB_AUDIT_FINAL_ACK_UNSENT, unknown);
            found->a = s->highest;
            show(found, &s->highest_packet);
        }
        found->number = number;
        show(found, &r->packet);
        s->reported[s->reported_next++ % MQQB_AUDIT_REPORTED] = number;
        a->accused = later(a->accused, r->time);
    }
    if (skipped || unknown) {
        accept_said(a, s, number); /* one report is enough */
    }
    return 1;
}

/* Did the receiver's OrderAcks go back, and again pass a number that was resent? */
static void check_back(mqqb_audit *a, const row *r, sequence *s, uint32_t number)
{
    const uint32_t id = get(r, MQQB_SCAN_MESSAGE_ID);

    if (s->acked != 0) {
        if ((id - s->ack_id) - 1 >= 0x7FFFFFFF) {
            return; /* a repeated or an earlier one */
        }
        if (s->back != 0 && s->back_number != 0 && number >= s->back_number) {
            mqqb_audit_finding *const found = find(a, r, s, MQQB_AUDIT_DELIVERED_TWICE, MQQB_AUDIT_WENT_BACK, 0);
            found->number = s->back_number;
            found->a = s->back_from;
            show(found, &s->back_packet[0]);
            show(found, &s->back_packet[1]);
            show(found, &s->back_packet[2]);
            show(found, &r->packet);
            s->back = 0;
        } else if (s->back == 0 && number < s->ack_number) {
            s->back = 1;
            s->back_from = s->ack_number;
            s->back_to = number;
            s->back_number = 0;
            s->back_packet[0] = s->ack_packet;
            s->back_packet[1] = r->packet;
        }
    }
    s->acked = 1;
    s->ack_id = id;
    s->ack_number = number;
    s->ack_packet = r->packet;
}

static void remember_ack(const mqqb_audit *a, const row *r, sequence *s, const mqqb_audit_direction *own,
                         uint32_t number)
{
    const uint32_t where = 2 * r->connection | r->direction;
    const mqqb_audit_ack ack = {r->packet, number, where, own->messages, 0};

    if (own->missed != 0) {
        return;
    }
    if (s->acks_used == MQQB_AUDIT_ACKS) {
        settle_acks(a, s);
    }
    if (s->acks_used ==
        MQQB_AUDIT_ACKS) { /* drop those of earlier connections, or every second one: later ones cover it */
        const int before = s->acks[0].where != where;
        uint32_t k, left = 0;
        for (k = 0; k < MQQB_AUDIT_ACKS; k++) {
            if (before ? s->acks[k].where == where : k % 2 == 0) {
                s->acks[left++] = s->acks[k];
            }
        }
        s->acks_used = left;
    }
    s->acks[s->acks_used++] = ack;
}

static void order_ack(mqqb_audit *a, const row *r, const mqqb_audit_direction *own, uint32_t entry)
{
    sequence *const s = &a->sequences[entry - 1];
    const uint32_t number = get(r, MQQB_SCAN_ACK_TX_SEQUENCE_NUMBER), last = least(number, s->highest);
    uint32_t k;

    refresh(a, s);
    if (!check_number(a, r, s, number, 1, 1) || number <= s->highest) {
        check_back(a, r, s, number);
        remember_ack(a, r, s, own, number);
    }
    if (last <= s->covered) {
        return;
    }
    for (k = last; k > s->covered && k >= slots_begin(s); k--) {
        mqqb_audit_slot *const slot = seen_slot(a, s, k);
        if (slot != NULL) {
            slot->flags |= ORDERED;
            s->counts.order_acked++;
        }
    }
    s->covered = last;
}

/* Did another remembered FinalAck end this message while it had no slot? 1: yes. */
static int check_twice(mqqb_audit *a, const row *r, const sequence *s, const mqqb_audit_final *second)
{
    uint32_t k;

    for (k = 0; k < MQQB_AUDIT_FINALS; k++) {
        const mqqb_audit_final *const final = &s->finals[k];
        if (final->number == second->number && final->message_id == second->message_id) {
            if (final->id != second->id) {
                removed_twice(a, r, s, final, second);
            }
            return 1;
        }
    }
    return 0;
}

static void final_ack(mqqb_audit *a, const row *r, const mqqb_audit_direction *own, uint32_t entry)
{
    sequence *const s = &a->sequences[entry - 1];
    mqqb_audit_flow *const f = &a->flows[s->flow - 1];
    const mqqb_audit_final final = {r->packet, get(r, MQQB_SCAN_ACK_TX_SEQUENCE_NUMBER), get(r, MQQB_SCAN_MESSAGE_ID),
                                    get(r, MQQB_SCAN_ACK_MESSAGE_ID), get(r, MQQB_SCAN_MESSAGE_CLASS)};
    const uint32_t number = final.number, id = final.id, message_id = final.message_id,
                   message_class = final.message_class;
    const int inserted = is_inserted(message_class);
    mqqb_audit_slot *const slot = seen_slot(a, s, number);

    refresh(a, s);
    s->last_time = r->time;
    (void)check_number(a, r, s, number, 0, inserted);
    if (slot == NULL) {
        if (inserted && check_twice(a, r, s, &final)) {
            return;
        }
        if (inserted) {
            remember_final(s, &final);
        }
        if (was_sent(a, s, number) == 1) { /* its message has lost its slot, and is already counted */
            s->counts.final_acked++;
            s->counts.unsettled -= s->counts.unsettled != 0;
            count_class(f, message_class);
        }
        return;
    }
    if (slot->message_id != message_id && (slot->flags & (TWO_IDS | OTHER_ID)) == 0) {
        mqqb_audit_finding *const found =
            find(a, r, s, MQQB_AUDIT_ACK_BEYOND_RECEIPT, MQQB_AUDIT_FINAL_ACK_OTHER, s->sure == 0 || number < s->sure);
        a->accused = later(a->accused, r->time);
        slot->flags |= OTHER_ID;
        found->number = number;
        found->a = message_id;
        found->b = slot->message_id;
        show_slot(found, slot);
        show(found, &r->packet);
        return;
    }
    if ((slot->flags & FINAL) == 0) {
        slot->flags |= FINAL | message_class << 16;
        s->counts.final_acked++;
        count_class(f, message_class);
    } else if (!inserted || (slot->flags & INSERTED) != 0) {
        if (inserted && id != slot->final_id && (slot->flags & TWICE) == 0) {
            const mqqb_audit_final first = final_of(slot, number);
            removed_twice(a, r, s, &first, &final);
        }
        return;
    }
    if (inserted) {
        (void)check_twice(a, r, s, &final); /* the other one may have come before its message was seen */
        slot->flags |= INSERTED;
    }
    set_final(slot, &final, 2 * r->connection | r->direction, own->missed != 0 ? 0 : own->messages);
}

/* The source of this acknowledgement; 0: uncertain. An OrderAck names only the sequence, whose id belongs to its
 * sender (B-079): the addressed queue manager, or the one at the other end. */
static uint32_t addressee(const mqqb_audit *a, const row *r, const mqqb_audit_connection *c, uint32_t ordinal,
                          uint32_t time_stamp)
{
    const mqqb_audit_direction *const other = &c->direction[r->direction ^ 1];
    const mqqb_audit_pair *const pair = &a->pairs[c->pair ^ r->direction ^ 1];
    const uint32_t *const known = other->sources[0] != 0 ? other->sources : pair->sources;
    uint32_t source = 0, k;

    if (get(r, MQQB_SCAN_KIND) == MQQB_KIND_FINAL_ACK) {
        return get(r, MQQB_CAPTURE_ACK_SOURCE);
    }
    if (host(r) != 0 || other->owner != 0) {
        return host(r) != 0 ? host(r) : other->owner;
    }
    if (known == pair->sources && pair->more != 0) {
        return 0;
    }
    for (k = 0; k < MQQB_AUDIT_SOURCES && known[k] != 0; k++) {
        uint32_t at = sequence_place(a, known[k], ordinal, time_stamp);
        if (next_sequence(a, known[k], ordinal, time_stamp, &at) != 0) {
            if (source != 0) {
                return 0; /* ambiguous */
            }
            source = known[k];
        }
    }
    return known[1] == 0 ? known[0] : source;
}

/* Check an acknowledgement of an unseen sequence. Identifiers of a queue manager only rise (B-079), so a sequence
 * above a completely seen one is younger, and its messages would have been seen. Unknown if they may have been
 * missed, or with another time stamp: then another queue or queue manager may own it. */
static void check_stray(mqqb_audit *a, const row *r, const mqqb_audit_connection *c, uint32_t source)
{
    const uint32_t hosts = c->pair ^ r->direction ^ 1;
    const mqqb_audit_pair *const pair = &a->pairs[hosts];
    const sequence *newest;
    mqqb_audit_source *const sender = &a->sources[source];
    const uint32_t ordinal = get(r, MQQB_SCAN_ACK_TX_SEQUENCE_ORDINAL);
    const uint32_t time_stamp = get(r, MQQB_SCAN_ACK_TX_SEQUENCE_TIME_STAMP);
    const int order = get(r, MQQB_SCAN_KIND) == MQQB_KIND_ORDER_ACK;
    mqqb_audit_finding *found;
    int unknown;

    if (pair->begun_flow == 0 || a->flows[pair->begun_flow - 1].key.source != source || sender->missed.ahead != 0 ||
        mqqb_tx_compare(ordinal, time_stamp, pair->begun_ordinal, pair->begun_time_stamp) <= 0 ||
        mqqb_tx_compare(ordinal, time_stamp, sender->folded_ordinal, sender->folded_time_stamp) <= 0 ||
        (ordinal == sender->stray_ordinal && time_stamp == sender->stray_time_stamp)) {
        return;
    }
    /* An OrderAck does not name its source, and may be addressed to a forwarder (B-361). */
    if (order && pair->sources[1] != 0) {
        return;
    }
    newest = &a->sequences[a->flows[pair->begun_flow - 1].newest - 1];
    unknown = may_have_missed(a, pair) || time_stamp != pair->begun_time_stamp ||
              left_at(a, newest->where, newest->where / 2) != 0;
    sender->stray_ordinal = ordinal;
    sender->stray_time_stamp = time_stamp;
    found = find_of(a, r, pair->begun_flow, MQQB_AUDIT_ACK_BEYOND_RECEIPT,
                    order ? MQQB_AUDIT_ORDER_ACK_STRAY : MQQB_AUDIT_FINAL_ACK_STRAY, unknown);
    found->ordinal = ordinal;
    found->time_stamp = time_stamp;
    found->number = get(r, MQQB_SCAN_ACK_TX_SEQUENCE_NUMBER);
    found->a = pair->begun_ordinal;
    found->b = pair->begun_time_stamp;
    show(found, &pair->begun);
    show(found, &r->packet);
    a->accused = later(a->accused, r->time);
}

static void acknowledgement(mqqb_audit *a, const row *r, const mqqb_audit_connection *c)
{
    const uint32_t ordinal = get(r, MQQB_SCAN_ACK_TX_SEQUENCE_ORDINAL);
    const uint32_t time_stamp = get(r, MQQB_SCAN_ACK_TX_SEQUENCE_TIME_STAMP);
    const mqqb_audit_direction *const own = &c->direction[r->direction];
    const uint32_t source = addressee(a, r, c, ordinal, time_stamp);
    uint32_t k, at = sequence_place(a, source, ordinal, time_stamp), entry;

    if (source == 0 || next_sequence(a, source, ordinal, time_stamp, &at) == 0) {
        if (source != 0) {
            check_stray(a, r, c, source);
        }
        if (a->strays != NULL) {
            mqqb_audit_stray *const stray = &a->strays[a->strays_used++];
            stray->source = source;
            stray->ordinal = ordinal;
            stray->time_stamp = time_stamp;
        }
        return;
    }
    at = sequence_place(a, source, ordinal, time_stamp);
    for (k = 0; k < 8 && (entry = next_sequence(a, source, ordinal, time_stamp, &at)) != 0; k++) {
        if (get(r, MQQB_SCAN_KIND) == MQQB_KIND_ORDER_ACK) {
            order_ack(a, r, own, entry);
        } else {
            final_ack(a, r, own, entry);
        }
    }
}

/* ---- rows ------------------------------------------------------------------------------------- */

static void message_format(mqqb_audit *a, const row *r, mqqb_audit_connection *c, uint32_t kind)
{
    mqqb_audit_direction *const own = &c->direction[r->direction];
    const uint32_t source = get(r, MQQB_CAPTURE_SOURCE_QUEUE_MANAGER);

    own->messages++;
    own->recoverable += (get(r, MQQB_SCAN_USER_FLAGS) & MQQB_USER_DM) != 0;
    if (own->sources[0] != source) {
        if (own->missed != 0) {
            count_missed(a, &a->sources[source].missed, r->time);
        }
        add_source(own->sources, &own->more, source);
        add_source(a->pairs[c->pair ^ r->direction].sources, &a->pairs[c->pair ^ r->direction].more, source);
    }
    if (get(r, MQQB_SCAN_SESSION_OFFSET) != 0) {
        session_header(a, r, c, 1);
    }
    if (kind != MQQB_KIND_USER_MESSAGE) {
        acknowledgement(a, r, c);
    } else if (get(r, MQQB_SCAN_TX_SEQUENCE_NUMBER) != 0) {
        message(a, r, c);
    }
}

static void take(mqqb_audit *a, const row *r, uint32_t kind)
{
    mqqb_audit_connection *const c = &a->connections[r->connection];
    mqqb_audit_direction *const own = &c->direction[r->direction];

    c->last_time = r->time;
    if (c->first_time == 0) {
        c->first_time = r->time;
    }
    if (kind == MQQB_KIND_FOREIGN && c->foreign == 0) {
        c->foreign = r->direction + 1;
        a->foreign++;
    }
    if (c->foreign != 0 && kind != MQQB_KIND_END) {
        return;
    }
    if (kind == MQQB_KIND_HOLE || kind == MQQB_KIND_MALFORMED) {
        come_late(a, r, c);
    }
    switch (kind) {
    case MQQB_KIND_HOLE:
    case MQQB_KIND_OLDER:
        if (kind == MQQB_KIND_HOLE) {
            own->holes++;
            a->holes++;
            own->last_hole = r->time;
            if (own->first_hole == 0) {
                own->first_hole = r->time;
            }
        }
        miss(a, r, c);
        return;
    case MQQB_KIND_BEGIN:
        c->begun = 1;
        return;
    case MQQB_KIND_END:
        own->ended = 1;
        own->ending = get(r, MQQB_SCAN_STATUS);
        return;
    case MQQB_KIND_MALFORMED:
        own->malformed++;
        a->malformed++;
        if (own->first_malformed == 0) {
            own->first_malformed = r->time;
        }
        miss(a, r, c);
        return;
    default:
        break;
    }
    a->packets++;
    own->packets++;
    if (kind >= MQQB_KIND_USER_MESSAGE) {
        message_format(a, r, c, kind);
    } else if (kind == MQQB_KIND_SESSION_ACK) {
        session_header(a, r, c, 0);
    } else if (kind == MQQB_KIND_ESTABLISH_CONNECTION) {
        if (own->packets > 1) { /* a later connection with the same ports, whose SYNs are missing: the counts restart */
            c->direction[r->direction ^ 1].missed = 1;
        }
        if (c->begun != 0) { /* the opener sends the request (B-204, B-208) */
            const uint32_t owner = get(r, r->direction == 0 ? MQQB_CAPTURE_CLIENT_GUID : MQQB_CAPTURE_SERVER_GUID);
            if (own->owner == 0) {
                c->before[r->direction] = a->sources[owner].newest[r->direction];
                a->sources[owner].newest[r->direction] = r->connection + 1;
            }
            own->owner = owner;
        }
    } else {
        c->established = r->time; /* the response comes second */
    }
}

static void one(mqqb_audit *a, const row *r, uint32_t kind)
{
    take(a, r, kind);
    a->connections[r->connection].direction[r->direction].last_time = r->time;
}

/* Do the tables have room for any effect of the row? */
static int32_t room(const mqqb_audit *a, const row *r)
{
    if (r->connection >= a->connections_size) {
        return MQQB_AUDIT_GROW_CONNECTIONS;
    }
    if (get(r, MQQB_CAPTURE_SOURCE_QUEUE_MANAGER) >= a->sources_size ||
        get(r, MQQB_CAPTURE_ACK_SOURCE) >= a->sources_size || get(r, MQQB_CAPTURE_CLIENT_GUID) >= a->sources_size ||
        get(r, MQQB_CAPTURE_SERVER_GUID) >= a->sources_size ||
        get(r, MQQB_CAPTURE_QUEUE_MANAGER_ADDRESS) >= a->sources_size) {
        return MQQB_AUDIT_GROW_SOURCES;
    }
    if (a->flows_used == a->flows_size) {
        return MQQB_AUDIT_GROW_FLOWS;
    }
    if (a->sequences_used == a->sequences_size && a->sequences_free == 0) {
        return MQQB_AUDIT_GROW_SEQUENCES;
    }
    if (a->slots_size - a->slots_used < MQQB_AUDIT_PIECE) {
        return MQQB_AUDIT_GROW_SLOTS;
    }
    if (a->findings_size - a->findings_used < MQQB_AUDIT_FINDINGS ||
        (a->strays != NULL && a->strays_used == a->strays_size)) {
        return MQQB_AUDIT_FINDINGS_FULL;
    }
    return MQQB_AUDIT_DONE;
}

int32_t mqqb_audit_rows(mqqb_audit *a, const mqqb_capture_columns *columns, uint32_t rows, uint32_t *done)
{
    row r;

    r.columns = columns;
    for (r.i = *done; r.i < rows; r.i++) {
        int32_t status;
        r.connection = get(&r, MQQB_CAPTURE_CONNECTION);
        r.direction = get(&r, MQQB_CAPTURE_DIRECTION);
        r.time = columns->time[r.i];
        r.packet.time = r.time;
        r.packet.file = get(&r, MQQB_CAPTURE_FILE);
        r.packet.frame = get(&r, MQQB_CAPTURE_FRAME);
        status = room(a, &r);
        if (status != MQQB_AUDIT_DONE) {
            *done = r.i;
            return status;
        }
        if (a->connections[r.connection].pair == NOWHERE) {
            continue;
        }
        one(a, &r, get(&r, MQQB_SCAN_KIND));
    }
    *done = rows;
    return MQQB_AUDIT_DONE;
}

void mqqb_audit_interrupted(mqqb_audit *a, int64_t time)
{
    uint32_t k;

    for (k = 0; k < a->sources_size; k++) {
        count_missed(a, &a->sources[k].missed, time);
    }
    for (k = 0; k < a->connections_size; k++) {
        if (a->connections[k].first_time != 0) {
            a->connections[k].direction[0].missed = 1;
            a->connections[k].direction[1].missed = 1;
        }
    }
    a->start = time;
}

void mqqb_audit_finish(mqqb_audit *a)
{
    uint32_t k;

    for (k = 0; k < a->sequences_used; k++) {
        sequence *const s = &a->sequences[k];
        if (s->flow != 0) {
            conclude_all(a, s);
            a->flows[s->flow - 1].last_time = later(a->flows[s->flow - 1].last_time, s->last_time);
        }
    }
}
