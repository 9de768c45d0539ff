"""The test cases of confirmation.md section 9, for CPython and MicroPython: a table, and a clock that runs through it.

Times are seconds after T0, whole: an event that the specification puts at 3.1 happens at 3.
"""

from mqqb import build, confirm, core, names, parse

JN = core.USER_JN
JP = core.USER_JP
T0 = 1700000000
UNSET = confirm.UNSET
YEAR = 365 * 86400


class Source:
    """One message at its source: a clock, the events it gets, and the log of what became of it.

    log: (time, action, state, class) for every action that was not 0.
    """

    def __init__(self, settings=None, **properties):
        self.settings = settings or confirm.Settings()
        self.confirmation = confirm.Confirmation(confirm.new(T0, self.settings, **properties), self.settings)
        self.log = []
        self.time = 0

    def note(self, action):
        if action:
            confirmation = self.confirmation
            self.log.append((self.time, action, chr(confirmation.state), confirmation.record[confirm.CLASS]))
        return action

    def run(self, time):
        """Let the clock pass to `time`, and act on every deadline before it; what is due at `time` itself waits."""
        while True:
            due = self.confirmation.next_deadline()
            if due is None or due - T0 >= time:
                break
            self.time = max(self.time, due - T0)
            assert self.note(self.confirmation.handle_deadline(due)), "what is due acts"
        self.time = time

    def settle(self):
        """Act on what is due now."""
        return self.note(self.confirmation.handle_deadline(T0 + self.time))

    def restart(self):
        """Power goes and comes back: only the record is left of it."""
        record = type(self.confirmation.record)("I", bytes(self.confirmation.record))
        self.confirmation = confirm.Confirmation(record, self.settings)

    def event(self, name, *arguments):
        if name == "restart":
            return self.restart()
        return self.note(getattr(self.confirmation, name)(*arguments))


def play(case):
    """Run one case: each event at its time, then to the end. Returns the Source."""
    _, settings, properties, events, end = case[:5]
    source = Source(confirm.Settings(**settings), **properties)
    for event in events:
        source.run(event[0])
        source.event(*event[1:])
    source.run(end)
    source.settle()
    return source


GONE = confirm.STORE | confirm.DELETE
DEAD = confirm.STORE | confirm.DEAD_LETTER
SENT = (1, confirm.STORE, "S", 0)
STORED = (1, confirm.STORE, "O", 0)
WENT = ((1, "sent"), (1, "order_ack"))

LIMITED = {"journal": JN, "ttbr": 10}
LONGEST = {"journal": JN, "ttbr": 0xFFFFFFFE}
FOR_EVER = {"xact_delay_receive_nack": 0xFFFFFFFE}


def went(name, later, log, answer, in_doubt, properties=LIMITED, end=30, settings=None):
    """A case of a message that is sent and has its OrderAck; later and log: what comes behind."""
    return name, settings or {}, properties, WENT + later, end, [SENT, STORED] + log, answer, in_doubt


def final(time, message_class):
    return ((time, "final_ack", message_class),)


RECEIVED, ENDED = confirm.RECEIVED, confirm.DEAD_LETTERED
LATE = [(20, DEAD, "X", 0xC002)]
# name, Settings, properties of the message, events, end, log, answer, in doubt
CASES = (
    went("1 received in time", final(3, 0x4000), [(3, GONE, "-", 0x4000)], RECEIVED, False, end=20),
    went(
        "2 the FinalAck is lost and comes after C",
        final(25, 0x4000),
        LATE + [(25, confirm.LOG, "X", 0xC002)],
        ENDED,
        True,
    ),
    went("3 the FinalAck comes after TTBR, before C", final(15, 0x4000), [(15, GONE, "-", 0x4000)], RECEIVED, False),
    went(
        "4 XactDelayReceiveNack is 2, the FinalAck comes after C",
        final(15, 0x4000),
        [(12, DEAD, "X", 0xC002), (15, confirm.LOG, "X", 0xC002)],
        ENDED,
        True,
        settings={"xact_delay_receive_nack": 2},
    ),
    (
        "5 unreachable, TTRQ before TTBR",
        {},
        {"journal": JN, "ttrq": 5, "ttbr": 10},
        (),
        30,
        [(5, DEAD, "X", 0x8002)],
        ENDED,
        False,
    ),
    (
        "6 unreachable, TTBR before TTRQ",
        {},
        {"journal": JN, "ttrq": 60, "ttbr": 10},
        (),
        11,
        [(10, DEAD, "X", 0xC003)],
        ENDED,
        False,
    ),
    (
        "7 the OrderAck is lost",
        {},
        {"journal": JN, "ttrq": 5, "ttbr": 10},
        ((1, "sent"),),
        30,
        [SENT, (5, DEAD, "X", 0x8002)],
        ENDED,
        True,
    ),
    went("8 the queue is full", final(2, 0x8003), [(2, DEAD, "X", 0x8003)], ENDED, False),
    went("9 the queue is purged", final(5, 0xC001), [(5, DEAD, "X", 0xC001)], ENDED, False),
    went("10 a receive across TTBR commits", final(12, 0x4000), [(12, GONE, "-", 0x4000)], RECEIVED, False),
    went("10 a receive across TTBR aborts", final(12, 0xC002), [(12, DEAD, "X", 0xC002)], ENDED, False),
    went("11 XactDeadLetterAlways", (), LATE, ENDED, True, {"ttbr": 10}, settings={"xact_dead_letter_always": True}),
    went(
        "12 JP only, received",
        final(3, 0x4000),
        [(3, confirm.STORE | confirm.JOURNAL, "J", 0x4000)],
        RECEIVED,
        False,
        {"journal": JP, "ttbr": 10},
    ),
    went(
        "12 JP only, not received by C",
        (),
        [(20, GONE, "-", 0xC002)],
        confirm.DISCARDED,
        True,
        {"journal": JP, "ttbr": 10},
    ),
    went("13 no timers, no FinalAck", (), [], confirm.STORED, False, {"journal": JN}, YEAR),
    went(
        "13 no timers, a FinalAck after a year",
        final(YEAR, 0x4000),
        [(YEAR, GONE, "-", 0x4000)],
        RECEIVED,
        False,
        {"journal": JN},
        YEAR,
    ),
    went(
        "13 no timers, an administrator after a year",
        ((YEAR, "failed", 0x8001),),
        [(YEAR, DEAD, "X", 0x8001)],
        ENDED,
        True,
        {"journal": JN},
        YEAR,
    ),
    went("15 the longest times", (), [], confirm.STORED, False, LONGEST, 0x1FFFFFFFB, FOR_EVER),
    went(
        "15 the longest times, their end",
        (),
        [(0x1FFFFFFFC, DEAD, "X", 0xC002)],
        ENDED,
        True,
        LONGEST,
        0x1FFFFFFFC,
        FOR_EVER,
    ),
)


def check(case):
    source = play(case)
    assert source.log == case[5], source.log
    conclusion = source.confirmation.conclusion()
    assert (conclusion.answer, conclusion.in_doubt) == case[6:], (conclusion.answer, conclusion.in_doubt)


def not_sent_when_the_link_comes_up():
    """Case 6, its other half."""
    source = Source(journal=JN, ttrq=60, ttbr=10)
    assert source.confirmation.may_send(T0 + 10)
    assert not source.confirmation.may_send(T0 + 11)
    source.event("sent")
    assert not source.confirmation.may_send(T0 + 11), "nor what was sent before"


def jn_is_in_the_packet():
    """Case 11, its other half."""
    journal = confirm.journal_of(0, confirm.Settings(xact_dead_letter_always=True))
    name = names.parse_format_name("DIRECT=TCP:127.0.0.1\\private$\\line1")
    packet = parse.parse(build.user_message(bytes(16), 1, name, b"", delivery="transactional", journal=journal))
    assert packet.user.fields[core.USER_FLAGS] & core.USER_JN
    assert confirm.journal_of(JP, confirm.Settings(xact_dead_letter_always=True)) == JN | JP
    assert confirm.journal_of(JP, confirm.Settings()) == JP


def dead_lettered_at_start_up():
    """Case 14."""
    source = Source(journal=JN, ttbr=10)
    source.event("sent")
    source.event("order_ack")
    source.restart()
    source.time = 3600
    source.settle()
    assert source.log[2:] == [(3600, DEAD, "X", 0xC002)], source.log
    assert source.confirmation.conclusion().in_doubt


def one_transaction_takes_the_times_of_its_first_message():
    """Case 16: the owner gives both the first one's; two records share nothing else."""
    settings = confirm.Settings()
    first = confirm.new(T0, settings, JN, ttbr=5)
    times = first[confirm.SENT_TIME], first[confirm.TTRQ], first[confirm.TTBR]
    second = confirm.new(times[0], settings, JP, times[1], times[2])
    third = confirm.new(T0 + 1, settings, JN, ttbr=500)
    ends = [confirm.Confirmation(record, settings).next_deadline() for record in (first, second, third)]
    assert ends == [T0 + 5, T0 + 5, T0 + 501], ends


OTHERS = (
    not_sent_when_the_link_comes_up,
    jn_is_in_the_packet,
    dead_lettered_at_start_up,
    one_transaction_takes_the_times_of_its_first_message,
)
