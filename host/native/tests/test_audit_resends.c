/* test_audit_resends.c: mqqb_audit on rows made by hand: sessions, resends, messages that are delivered twice, whose an
 * acknowledgement is, and what loses its slot or its connection. */
#include "audit.h"

/* ---- sessions ------------------------------------------------------------------------------------ */

static void test_count_mismatch(void)
{
    static const struct {
        uint32_t user, recoverable;
        const char *found;
    } cases[] = {
        {0, 0, ""}, {0xFFFF, 0xFFFF, "C"}, {1, 0, "C"}, {0, 7, "C"}, {7, 7, "C"},
    };

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint32_t wrong;
        start();
        (void)message(1, 0, USUAL);
        wrong = session_ack(0, WITH(.user = cases[k].user, .recoverable = cases[k].recoverable));
        (void)session_ack(0, WITH(.user = cases[k].user, .recoverable = cases[k].recoverable)); /* said once */
        CHECK_FOUND(cases[k].found);
        if (found_count != 0) {
            CHECK_SHOWN(0, wrong);
            CHECK_EQ(found[0].flow, 0);
            CHECK_EQ(a.violations[MQQB_AUDIT_COUNT_MISMATCH], 1);
        }
    }
    start();
    (void)session_ack(0, WITH(.user = 5));
    (void)session_ack(0, WITH(.user = 4)); /* may leave out a message or not: the same one */
    (void)session_ack(0, WITH(.user = 5));
    (void)session_ack(0, WITH(.user = 9));
    (void)session_ack(0, USUAL);
    (void)session_ack(0, WITH(.user = 9));
    (void)session_ack(0, WITH(.recoverable = 9));
    (void)session_ack(0, WITH(.recoverable = 5));
    CHECK_FOUND("CCCCC");
}

static void test_a_header_in_a_message(void)
{
    for (uint32_t left_out = 0; left_out < 3; left_out++) {
        start();
        (void)message(1, 0, USUAL);
        (void)message(2, 1, WITH(.header = 1, .user = 0u - left_out, .recoverable = 0u - left_out));
        CHECK_FOUND(left_out < 2 ? "" : "C");
    }
    start();
    (void)message(1, 0, WITH(.header = 1, .recoverable = 0xFFFF)); /* counts itself in one place only */
    CHECK_FOUND("C");
}

static void test_session_acks_beyond_receipt(void)
{
    static const struct {
        what header;
        const char *found;
    } cases[] = {
        {{.ack = 1}, "A"},
        {{.ack = 40000}, "A"},
        {{.ack = 0xFFFF}, ""},
        {{.base = 3, .bits = 1}, "A"},
        {{.base = 2, .bits = 1}, ""},
        {{.base = 1, .bits = 3}, ""},
        {{.base = 2, .bits = 3}, "A"},
        {{.base = 40000, .bits = 1}, "A"},
        {{.base = 9}, ""},
        {{.base = 1, .bits = 0x80000000u}, "A"},
    };

    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        uint32_t wrong;
        start();
        (void)message(1, 0, USUAL);
        (void)message(2, 1, USUAL);
        wrong = session_ack(1, cases[k].header);
        (void)session_ack(1, cases[k].header);
        CHECK_FOUND(cases[k].found);
        if (found_count != 0) {
            CHECK_SHOWN(0, wrong);
            CHECK_EQ(found[0].detail, cases[k].header.ack != 0 ? MQQB_AUDIT_SESSION_ACK : MQQB_AUDIT_RECOVERABLE_ACK);
        }
    }
}

/* ---- resends ------------------------------------------------------------------------------------- */

static void test_resent_after_the_order_ack(void)
{
    uint32_t shown, order, proof, again;

    start();
    shown = message(1, 0, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 1));
    order = order_ack(1, USUAL);
    proof = session_ack(0, USUAL);
    again = message(1, 0, USUAL);
    CHECK_FOUND("T");
    CHECK_SHOWN(0, shown, order, proof, again);
    CHECK_EQ(found[0].detail, MQQB_AUDIT_RESENT_ORDERED);

    for (uint32_t k = 0; k < 2; k++) { /* on a later connection: a sender that lost its power has lost its marks too */
        start();
        (void)message(1, 0, USUAL);
        (void)session_ack(1, WITH(.base = 1, .bits = 1));
        (void)(k == 0 ? order_ack(1, USUAL) : final_ack(1, USUAL));
        (void)session_ack(0, USUAL);
        opened(1, 0, SENDER);
        (void)message(1, 0, WITH(.connection = 1));
        (void)message(1, 0, WITH(.connection = 1));
        (void)session_ack(1, WITH(.connection = 1, .base = 1, .bits = 3));
        order = order_ack(1, WITH(.connection = 1));
        proof = session_ack(0, WITH(.connection = 1));
        again = message(1, 0, WITH(.connection = 1)); /* acknowledged on this one as well */
        CHECK_FOUND("T");
        CHECK_SHOWN(0, 6, order, proof, again);
    }
}

static void test_proofs_on_several_connections(void)
{
    start_two(); /* the higher OrderAck was shown first */
    (void)message(1, 0, USUAL);
    (void)message(2, 1, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 3));
    (void)order_ack(1, WITH(.connection = 1));
    (void)order_ack(2, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(1, 0, USUAL);
    (void)session_ack(0, WITH(.connection = 1));
    (void)message(2, 1, USUAL);
    CHECK_FOUND("TT");

    start_two(); /* a FinalAck that was shown on another connection, at no time that could be compared */
    (void)message(1, 0, USUAL);
    (void)final_ack(1, WITH(.connection = 1));
    (void)session_ack(0, WITH(.connection = 1));
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");

    start_two(); /* and the same of an OrderAck */
    (void)message(1, 0, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 1));
    (void)order_ack(1, WITH(.connection = 1));
    (void)message(0, 0, WITH(.direction = 1));
    (void)session_ack(0, WITH(.connection = 1));
    (void)session_ack(0, USUAL);
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");

    start_two(); /* and of a SessionHeader */
    (void)message(1, 0, WITH(.connection = 1));
    (void)session_ack(1, WITH(.connection = 1, .base = 1, .bits = 1));
    (void)message(0, 0, WITH(.connection = 1, .direction = 1));
    (void)order_ack(1, USUAL);
    (void)session_ack(0, WITH(.connection = 1));
    (void)session_ack(0, USUAL);
    (void)message(1, 0, USUAL);
    CHECK_FOUND("");

    for (uint32_t k = 0; k < 2; k++) { /* a SessionHeader without bits, and an OrderAck that came no one knows when */
        start_two();
        (void)message(1, 0, USUAL);
        (void)session_ack(1, k == 0 ? USUAL : WITH(.base = 1, .bits = 1));
        (void)message(0, 0, WITH(.direction = 1));
        (void)order_ack(1, WITH(.connection = 1));
        (void)session_ack(0, USUAL);
        (void)session_ack(0, WITH(.connection = 1));
        opened(2, 0, SENDER);
        (void)message(1, 0, WITH(.connection = 2));
        CHECK_FOUND("");
    }
}

static void test_resends_that_are_legal(void)
{
    start_two(); /* sent last on another connection */
    (void)message(1, 0, USUAL);
    (void)message(2, 1, WITH(.connection = 1));
    (void)session_ack(1, WITH(.connection = 1, .base = 1, .bits = 1));
    (void)order_ack(2, WITH(.connection = 1));
    (void)session_ack(0, WITH(.connection = 1));
    (void)message(1, 0, WITH(.connection = 1));
    CHECK_FOUND("");

    start(); /* how many SessionHeaders cannot be counted after a hole is said once */
    (void)plain(HOLE, 0, 0);
    (void)session_ack(0, USUAL);
    (void)session_ack(0, USUAL);
    CHECK_FOUND("c");

    for (uint32_t k = 0; k < 8; k++) {
        start_two();
        (void)message(1, 0, USUAL);
        if (k != 0) {
            (void)session_ack(1, k == 6 ? USUAL : WITH(.base = 1, .bits = 1));
        }
        if (k != 1 && k != 6) {
            (void)order_ack(1, USUAL);
        }
        if (k == 2) {
            (void)session_ack(0, WITH(.ack = 0xFFFF)); /* does not cover the OrderAck */
        } else if (k != 3) {
            (void)session_ack(0, USUAL);
        }
        if (k == 5) {
            (void)plain(OLDER, 2, 0);
        }
        if (k == 6) { /* the session acknowledgement does not prove that it was the sender's before the OrderAck */
            (void)order_ack(1, WITH(.connection = 1));
            (void)session_ack(0, WITH(.connection = 1));
        }
        if (k == 7) {
            opened(2, 0, SENDER);
            (void)message(1, 0, WITH(.connection = 2, .flags = 1)); /* one hop on: another queue manager's */
        } else {
            (void)message(1, 0, WITH(.connection = k == 4 ? 1 : k == 5 ? 2 : 0)); /* 4: a connection from before */
        }
        CHECK_FOUND("");
    }
}

static void test_a_forwarder_resends(void)
{
    start();
    (void)message(1, 0, WITH(.flags = 1));
    (void)session_ack(1, WITH(.base = 1, .bits = 1));
    (void)order_ack(1, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(1, 0, WITH(.flags = 1)); /* what it has, the source may not have */
    CHECK_FOUND("");

    start();
    (void)message(1, 0, USUAL);
    (void)message(2, 1, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 3));
    (void)order_ack(1, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(2, 1, USUAL); /* the OrderAck was for the one before */
    CHECK_FOUND("");
}

static void test_a_session_ack_without_bits(void)
{
    for (uint32_t k = 0; k < 3; k++) {
        start();
        (void)message(1, 0, USUAL);
        if (k != 1) {
            (void)order_ack(1, USUAL);
        }
        (void)session_ack(1, k == 0 ? WITH(.base = 1, .bits = 1) : USUAL);
        if (k == 1) {
            (void)order_ack(1, USUAL);
        }
        (void)message(0, 0, WITH(.direction = 1));
        (void)session_ack(0, USUAL);
        (void)message(1, 0, USUAL);
        CHECK_FOUND(k < 2 ? "T" : "");
    }
}

/* ---- delivered twice ----------------------------------------------------------------------------- */

static void test_two_final_acks(void)
{
    uint32_t shown, first, second;

    start();
    shown = message(1, 0, USUAL);
    first = final_ack(1, WITH(.own_id = 900));
    (void)final_ack(1, WITH(.own_id = 900)); /* sent again */
    second = final_ack(1, WITH(.own_id = 901));
    (void)final_ack(1, WITH(.own_id = 902)); /* said once */
    (void)final_ack(1, WITH(.own_id = 903, .class = 0x8003));
    CHECK_FOUND("D");
    CHECK_SHOWN(0, shown, first, second);
    CHECK_EQ(counts_of(0).final_acked, 1);

    start(); /* purged, and expired in the queue */
    (void)message(1, 0, USUAL);
    (void)final_ack(1, WITH(.class = 0xC001));
    (void)final_ack(1, WITH(.class = 0xC002));
    CHECK_FOUND("D");

    start();
    (void)message(1, 0, USUAL);
    (void)final_ack(1, USUAL);
    (void)final_ack(1, WITH(.class = 0x8003)); /* another copy */
    CHECK_FOUND("");

    start();
    (void)message(1, 0, USUAL);
    (void)final_ack(1, WITH(.class = 0x8003)); /* another copy */
    (void)message(1, 0, USUAL);
    (void)final_ack(1, USUAL);
    CHECK_FOUND("");
}

static void test_two_final_acks_one_of_them_before_its_message(void)
{
    uint32_t shown, first, second;

    start();
    (void)message(9, 8, WITH(.old = 1));
    first = final_ack(1, WITH(.own_id = 900));
    (void)final_ack(2, WITH(.own_id = 910));
    (void)final_ack(3, WITH(.own_id = 920, .id = 77)); /* for another message, which nobody sees */
    shown = message(1, 0, WITH(.old = 1));
    (void)message(2, 1, WITH(.old = 1));
    (void)message(3, 2, WITH(.old = 1));
    second = final_ack(1, WITH(.own_id = 901));
    (void)final_ack(2, WITH(.own_id = 910)); /* sent again */
    (void)final_ack(3, WITH(.own_id = 921));
    (void)final_ack(1, WITH(.own_id = 900)); /* said once */
    CHECK_FOUND("D");
    CHECK_SHOWN(0, shown, first, second);
}

static void test_two_final_acks_without_a_slot(void)
{
    start();
    (void)message(1, 0, WITH(.flags = JN));
    (void)final_ack(1, WITH(.own_id = 900));
    for (uint32_t number = 2; number <= 300; number++) {
        (void)message(number, number - 1, USUAL);
        (void)session_ack(1, USUAL);
        (void)order_ack(number, USUAL);
    }
    (void)final_ack(1, WITH(.own_id = 900));
    (void)final_ack(1, WITH(.own_id = 901));
    CHECK_FOUND("D");
    CHECK_EQ(found[0].packets, 2);
    CHECK_EQ(counts_of(0).final_acked, 1);
}

static void test_order_acks_that_went_back(void)
{
    uint32_t first, back, again, last;

    start();
    for (uint32_t number = 1; number <= 3; number++) {
        (void)message(number, number - 1, USUAL);
    }
    first = order_ack(3, USUAL);
    back = order_ack(1, USUAL);
    again = message(2, 1, USUAL);
    last = order_ack(2, USUAL);
    CHECK_FOUND("D");
    CHECK_SHOWN(0, first, back, again, last);
    CHECK_EQ(found[0].number, 2);
    CHECK_EQ(found[0].a, 3);

    start();
    for (uint32_t number = 1; number <= 4; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)order_ack(3, USUAL);
    (void)order_ack(1, USUAL);
    (void)order_ack(1, USUAL);
    (void)message(1, 0, USUAL); /* had it still */
    (void)message(3, 2, USUAL); /* number 2 is missing */
    (void)message(4, 0, USUAL); /* was not acknowledged before */
    (void)order_ack(4, USUAL);
    CHECK_FOUND("");

    start();
    for (uint32_t number = 1; number <= 4; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)order_ack(4, USUAL);
    (void)order_ack(1, USUAL);
    (void)message(3, 1, USUAL); /* number 2 has expired */
    (void)order_ack(2, USUAL);  /* that is not yet it */
    CHECK_FOUND("");

    start();
    for (uint32_t number = 1; number <= 3; number++) {
        (void)message(number, number - 1, USUAL);
    }
    (void)order_ack(1, WITH(.own_id = 900));
    (void)order_ack(3, WITH(.own_id = 901));
    (void)order_ack(1, WITH(.own_id = 900)); /* sent again */
    (void)message(2, 1, USUAL);
    (void)order_ack(3, WITH(.own_id = 901));
    CHECK_FOUND("");
}

/* ---- whose acknowledgement it is ----------------------------------------------------------------- */

static void test_who_is_meant_is_not_certain(void)
{
    for (uint32_t k = 0; k < 4; k++) {
        setup();
        if (k == 3) {
            free(a.strays);
            a.strays = NULL;
        }
        (void)plain(BEGIN, 0, 0);
        (void)plain(BEGIN, 1, 0);
        (void)message(1, 0, USUAL);
        (void)message(1, 0, WITH(.source = k == 0 ? OTHER : SENDER, .ordinal = k == 0 ? 1 : 2, .queue = 2));
        if (k == 3) {
            for (uint32_t source = 10; source < 15; source++) {
                (void)message(1, 0, WITH(.source = source, .ordinal = source));
            }
        }
        /* 0: two may be meant; 1: one is; 2, 3: another connection of these hosts, which does not name its sender. */
        (void)order_ack(1, WITH(.connection = k >= 2));
        (void)order_ack(1, WITH(.ordinal = 77));
        CHECK_FOUND("");
        CHECK_EQ(counts_of(0).order_acked, k == 1 || k == 2);
        CHECK_EQ(stray_count, k == 3 ? 0 : k == 0 ? 2 : 1);
    }
}

static void test_private_queues_of_two_hosts(void)
{
    start();
    (void)message(1, 0, WITH(.host = RECEIVER));
    (void)message(1, 0, WITH(.host = OTHER, .ordinal = 2));
    (void)order_ack(1, WITH(.host = SENDER));
    CHECK_FOUND("");
    CHECK_EQ(a.flows_used, 2);
    CHECK_EQ(a.flows[0].key.address, RECEIVER);
    CHECK_EQ(counts_of(0).order_acked, 1);
}

static void test_an_id_that_several_queues_share(void)
{
    start();
    (void)message(1, 0, USUAL);
    (void)message(1, 0, WITH(.queue = SECOND_QUEUE));
    (void)message(2, 1, WITH(.flags = 1));
    (void)order_ack(1, USUAL);
    finish();
    CHECK_EQ(a.flows_used, 3);
    CHECK_EQ(counts_of(0).order_acked, 1);
    CHECK_EQ(counts_of(1).order_acked, 1);

    start();
    for (uint32_t queue = 1; queue <= 9; queue++) {
        (void)message(1, 0, WITH(.queue = queue));
    }
    (void)order_ack(1, USUAL);
    finish();
    for (uint32_t flow = 0; flow < 9; flow++) {
        CHECK_EQ(counts_of(flow).order_acked, flow < 8); /* so many at most: more is no traffic of queue managers */
    }
}

/* So many that the index must tell apart ids of which one part or another is the same. */
static void test_ids_that_share_a_part(void)
{
    start();
    for (uint32_t k = 1; k <= 1500; k++) {
        (void)message(1, 0, WITH(.source = 10 + k, .ordinal = 1, .stamp = FIRST, .id = k));
        (void)message(1, 0, WITH(.source = 9, .ordinal = 1, .stamp = FIRST + k, .id = k));
        (void)message(1, 0, WITH(.source = 8, .ordinal = k, .stamp = FIRST, .id = k));
    }
    for (uint32_t k = 1; k <= 1500; k++) {
        (void)order_ack(1, WITH(.host = 10 + k, .ordinal = 1, .stamp = FIRST));
    }
    CHECK_FOUND("");
    CHECK_EQ(a.flows_used, 1502);
    CHECK_EQ(stray_count, 0);
    for (uint32_t flow = 0; flow < a.flows_used; flow++) {
        CHECK_EQ(counts_of_one(flow), a.flows[flow].key.source > 10);
    }
}

static void test_more_classes_than_have_a_place(void)
{
    start();
    for (uint32_t number = 1; number <= MQQB_AUDIT_CLASSES + 2; number++) {
        (void)message(number, number - 1, USUAL);
        (void)final_ack(number, WITH(.class = 0x8000 + number));
    }
    CHECK_FOUND("");
    CHECK_EQ(a.flows[0].class_rest, 2);
    CHECK_EQ(a.flows[0].class_counts[MQQB_AUDIT_CLASSES - 1], 1);
}

static void test_many_order_acks_wait(void)
{
    start();
    for (uint32_t number = 1; number <= 20; number++) {
        (void)message(number, number - 1, USUAL);
        (void)session_ack(1, WITH(.base = number, .bits = 1));
        (void)order_ack(number, USUAL);
        if (number == 12) {
            (void)session_ack(0, USUAL);
        }
    }
    (void)message(8, 7, USUAL);
    (void)session_ack(0, USUAL);
    CHECK_FOUND("T");

    start(); /* those that wait for ever take no place from those of the next connection */
    for (uint32_t number = 1; number <= 6; number++) {
        (void)message(number, number - 1, USUAL);
        (void)order_ack(number, USUAL);
    }
    opened(1, 0, SENDER);
    for (uint32_t number = 7; number <= 10; number++) {
        (void)message(number, number - 1, WITH(.connection = 1));
        (void)session_ack(1, WITH(.connection = 1, .base = number - 6, .bits = 1));
        (void)order_ack(number, WITH(.connection = 1));
    }
    (void)session_ack(0, WITH(.connection = 1, .ack = 0xFFFD)); /* for the first of these four */
    (void)message(7, 6, WITH(.connection = 1));
    CHECK_FOUND("T");
}

static void test_final_acks_without_a_slot_or_a_place(void)
{
    uint32_t unsettled;

    start();
    for (uint32_t number = 1; number <= 2000; number++) {
        (void)message(number, number - 1, USUAL);
        (void)session_ack(1, USUAL);
    }
    give();
    unsettled = counts_of(0).unsettled;
    (void)final_ack(3, USUAL);
    (void)final_ack(3, WITH(.class = 0x8003));
    give();
    CHECK_EQ(counts_of(0).unsettled, unsettled - 2);
    CHECK_FOUND("");
    CHECK_EQ(counts_of(0).final_acked, 2);
    CHECK_EQ(finals_of(0, 0x4000), 1);
    CHECK_EQ(finals_of(0, 0x8003), 1);
}

static void test_a_sequence_without_slots(void)
{
    start_two();
    (void)message(1, 0, USUAL);
    (void)message(4, 3, WITH(.connection = 1));
    (void)plain(HOLE, 0, 0);
    (void)message(8, 7, WITH(.old = 1));   /* relies on what may have been in the hole */
    (void)message(12, 11, WITH(.old = 1)); /* and this on what was not there */
    for (uint32_t number = 4; number <= 12; number += 4) {
        (void)final_ack(number, WITH(.class = 0x8003));
    }
    (void)final_ack(1, WITH(.class = 0x8003));
    for (uint32_t ordinal = 2; ordinal <= 8; ordinal++) {
        (void)message(1, 0, WITH(.ordinal = ordinal, .old = 1));
    }
    (void)order_ack(8, USUAL);
    (void)order_ack(12, USUAL);
    CHECK_FOUND("s");
    CHECK_EQ(found[0].number, 12);
    CHECK_EQ(found[0].packets, 1);
}

static void test_resent_after_the_final_ack(void)
{
    uint32_t shown, final, proof, again;

    start();
    shown = message(1, 0, USUAL);
    final = final_ack(1, WITH(.class = 0xC001));
    proof = session_ack(0, USUAL);
    again = message(1, 0, USUAL);
    CHECK_FOUND("T");
    CHECK_SHOWN(0, shown, final, proof, again);
    CHECK_EQ(found[0].a, 0xC001);
    CHECK_EQ(found[0].packet[1].time - found[0].packet[0].time, MS);

    start();
    (void)message(1, 0, USUAL);
    (void)final_ack(1, USUAL);
    (void)message(1, 0, USUAL); /* crossed */
    CHECK_FOUND("");
}

static void test_messages_without_a_slot(void)
{
    start();
    for (uint32_t number = 1; number <= 3000; number++) {
        (void)message(number, number - 1, WITH(.flags = number % 2 != 0 ? JN : 0));
        if (number % 30 == 0) {
            (void)order_ack(number, USUAL);
            (void)session_ack(1, USUAL);
        }
    }
    (void)message(5, 4, USUAL); /* has lost its slot: that is still a resend */
    (void)final_ack(7, WITH(.class = 0xC001));
    for (uint32_t number = 9; number < 3000; number += 2) {
        (void)final_ack(number, USUAL);
    }
    (void)final_ack(10, USUAL);
    CHECK_FOUND("");
    CHECK_EQ(counts_of(0).messages, 3000);
    CHECK_EQ(counts_of(0).resends, 1);
    CHECK_EQ(counts_of(0).order_acked, 3000);
    CHECK_EQ(counts_of(0).final_acked, 1 + 1496 + 1);
    CHECK_EQ(finals_of(0, 0x4000), 1496 + 1);
    CHECK_EQ(finals_of(0, 0xC001), 1);
}

/* Resends of which the proof cannot be counted, and those that a later SessionHeader covers. */
static void test_resends_and_holes(void)
{
    for (uint32_t side = 0; side < 2; side++) {
        start();
        (void)plain(HOLE, 0, side);
        (void)message(1, 0, USUAL);
        (void)session_ack(1, WITH(.base = 1, .bits = 1));
        (void)order_ack(1, USUAL);
        if (side == 1) {
            (void)final_ack(1, USUAL);
        }
        (void)session_ack(0, USUAL);
        (void)message(1, 0, USUAL);
        CHECK_FOUND("c");
    }

    start();
    (void)message(1, 0, USUAL);
    (void)session_ack(1, WITH(.base = 1, .bits = 1));
    (void)message(2, 1, USUAL);
    (void)order_ack(2, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(2, 1, USUAL); /* no SessionHeader covers it */
    (void)session_ack(1, WITH(.base = 2, .bits = 3));
    (void)message(2, 1, USUAL); /* nothing shows that its sender has that one */
    (void)session_ack(1, WITH(.base = 2, .bits = 7));
    (void)order_ack(2, USUAL);
    (void)session_ack(0, USUAL);
    (void)message(2, 1, USUAL);
    CHECK_FOUND("T");
}

/* A direction has more sources than are remembered: a hole is one of these hosts. */
static void test_many_sources(void)
{
    start();
    for (uint32_t source = SENDER; source < SENDER + 6; source++) {
        (void)message(1, 0, WITH(.source = source, .flags = 1));
    }
    (void)order_ack(2, WITH(.host = SENDER + 5));
    now += 2 * SECOND;
    (void)plain(HOLE, 0, 0);
    (void)order_ack(3, WITH(.host = SENDER + 5));
    CHECK_FOUND("A!!!!a");
}

static void all(void)
{
    RUN("mqqb_audit.h", test_messages_without_a_slot);
    RUN("B-244", test_resent_after_the_final_ack);
    RUN("B-270", test_a_sequence_without_slots);
    RUN("mqqb_audit.h", test_final_acks_without_a_slot_or_a_place);
    RUN("B-236", test_many_order_acks_wait);
    RUN("C-26", test_more_classes_than_have_a_place);
    RUN("mqqb_audit.h", test_ids_that_share_a_part);
    RUN("B-236 B-244", test_resends_and_holes);
    RUN("mqqb_audit.h", test_many_sources);
    RUN("B-104 B-105 B-227", test_count_mismatch);
    RUN("OP-14", test_a_header_in_a_message);
    RUN("B-101 B-102 B-103 B-229", test_session_acks_beyond_receipt);
    RUN("B-235 B-236", test_resent_after_the_order_ack);
    RUN("B-236 B-244", test_proofs_on_several_connections);
    RUN("B-236", test_resends_that_are_legal);
    RUN("B-012", test_a_forwarder_resends);
    RUN("B-224 B-236", test_a_session_ack_without_bits);
    RUN("B-116", test_two_final_acks);
    RUN("B-116", test_two_final_acks_one_of_them_before_its_message);
    RUN("B-116", test_two_final_acks_without_a_slot);
    RUN("A-01 B-271", test_order_acks_that_went_back);
    RUN("B-079 A-21", test_who_is_meant_is_not_certain);
    RUN("wire.md 1.5", test_private_queues_of_two_hosts);
    RUN("B-079", test_an_id_that_several_queues_share);
}

int main(int argc, char **argv)
{
    seed_random(argc, argv, 20261121);
    all();
    setup();
    return summary("test_audit_resends");
}
