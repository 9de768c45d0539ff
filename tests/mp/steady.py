"""What a steady session takes of a board's memory: 1,000 messages in batches, each batch acknowledged when the next one
has gone. Then batches of which each is acknowledged before the next one, so that each begins a new sequence (B-096).

The garbage collection is off while one of the measured calls runs, so that `gc.mem_alloc` grows by what the call took.
Prints `NAME BYTES`: bytes per message of each step, or per sequence (`sequence`), and the live heap after 200 messages
and towards the end: each the least of three looks, for a look may find old words on the stack. The other end is in the
same heap, unmeasured.
"""

import gc

from mqqb import acks, compose, core, names, session, streams

SENDER = bytes(range(16))
RECEIVER = bytes(range(100, 116))
ORDER_QUEUE = names.parse_format_name("DIRECT=TCP:127.0.0.1\\PRIVATE$\\order_queue$")
DESTINATION = names.parse_format_name("DIRECT=TCP:127.0.0.1\\private$\\line1")
MESSAGES = 1000
WARM_UP = 200
BATCH = 10
SEQUENCES = 20
SAMPLE = 50  # messages from one look at the live heap to the next
BODY = bytes(64)


class Board:
    """The sending end: the packets of a batch lie in one buffer, and are sent from there."""

    def __init__(self):
        self.stream = streams.OutgoingStream(streams.OutgoingStream.new(1700000000))
        self.session = session.Session(True, SENDER, 0)
        self.draft = compose.Draft(SENDER, DESTINATION)
        self.size = self.draft.size(len(BODY))
        self.stride = self.size + 16  # a SessionHeader may follow
        self.buffer = bytearray(2 * BATCH * self.stride)  # a batch, and the one before it
        self.spare = [streams.Entry(None, 0) for _ in range(2 * BATCH)]  # a list that grows again would count
        self.out = bytearray(600)
        self.begin = 0  # what is to be written
        self.sent = 0

    def make(self, first, half):
        for place in range(half * BATCH, (half + 1) * BATCH):
            at = place * self.stride
            self.draft.write_into(self.buffer, at, first, BODY)
            entry = self.spare[place]
            self.stream.number(self.buffer, at + self.draft.transaction_at, place, first, False, entry)
            first += 1

    def send(self, now):
        """Make the next packet ready to be written; False: there is none."""
        entry = self.stream.next_to_send()
        if entry is None or not self.session.can_send():
            return False
        at = entry.key * self.stride
        self.stream.prepare(entry, self.buffer, at + self.draft.transaction_at)
        self.sent = self.session.send_in(entry, self.buffer, at, self.size, True, now)
        self.begin = at
        return True

    def hear(self, now):
        event = self.session.next_event(now)
        while event is not None:
            for entry in self.stream.order_ack(event.packet.body, now):
                self.spare[entry.key] = entry
            self.session.stored(event.recoverable, now)
            event = self.session.next_event(now)

    def time(self, now):
        due = self.session.next_timeout()
        if due is not None and due <= now:
            self.session.handle_timeout(now)
        due = self.stream.next_timeout()

    def say(self):
        self.sent = self.session.take_output(self.out, 0)
        return self.sent > 0


TAKEN = {}


def taken(name, step, *arguments):
    """Make the call; note what it took."""
    gc.disable()
    before = gc.mem_alloc()
    result = step(*arguments)
    after = gc.mem_alloc()
    gc.enable()
    TAKEN[name] = TAKEN.get(name, 0) + after - before
    return result


class Other:
    """The other end, which is not measured."""

    def __init__(self):
        self.session = session.Session(False, RECEIVER, 0)
        self.last = None  # the transaction of the last message

    def hear(self, board, now):
        """All that the board has to send."""
        while taken("send", board.send, now):
            wire = board.buffer[board.begin : board.begin + board.sent]
            for event in self.session.receive_data(wire, now):
                self.session.stored(event.recoverable, now)
                self.last = event.packet.transaction.fields

    def acknowledge(self, board, transaction, message_id, now):
        """All that came up to this transaction."""
        ack = acks.order_ack(ORDER_QUEUE, RECEIVER, message_id, now, transaction[1], transaction[2], transaction[3])
        self.session.send(None, ack, False, now)
        data = self.session.data_to_send()
        place = 0
        while place < len(data):
            room = taken("room", board.session.reader.room)
            count = min(len(room), len(data) - place)
            room[:count] = data[place : place + count]
            place += count
            board.session.reader.took(count)
            taken("hear", board.hear, now)


def main():
    board = Board()
    other = Other()
    board.session.connected(0)
    for _ in range(3):
        other.session.receive_data(board.session.data_to_send(), 0)
        board.session.receive_data(other.session.data_to_send(), 0)
    now = 0
    live = [0] * (MESSAGES // SAMPLE)
    looks = half = 0
    message_id = 1
    before = None
    while message_id <= MESSAGES:
        if message_id == WARM_UP + 1:
            for name in TAKEN:
                TAKEN[name] = 0
        if message_id > WARM_UP and message_id % SAMPLE == 1:
            gc.collect()
            live[looks] = gc.mem_alloc()
            looks += 1
        taken("number", board.make, message_id, half)
        other.hear(board, now)
        if before is not None:
            other.acknowledge(board, before, message_id, now)
            assert len(board.stream.table) == BATCH
        before = other.last
        now += 600
        taken("time", board.time, now)
        while taken("say", board.say):
            other.session.receive_data(board.out[: board.sent], now)
        half = 1 - half
        message_id += BATCH
    figures = sorted((name, TAKEN[name] / (MESSAGES - WARM_UP)) for name in TAKEN)
    other.acknowledge(board, before, message_id, now)
    for _ in range(SEQUENCES):
        assert not board.stream.table
        taken("sequence", board.make, message_id, 0)
        other.hear(board, now)
        other.acknowledge(board, other.last, message_id, now)
        message_id += BATCH
    print("core", core.implementation)
    print("warm", min(live[:3]))
    print("live", min(live[looks - 3 : looks]))
    for name, value in figures:
        print(name, "%.1f" % value)
    print("sequence", "%.1f" % (TAKEN["sequence"] / SEQUENCES))
    print("done", 1)


if __name__ == "__main__":
    main()
