"""The queue manager: queues, sessions and streams tied to the store. No sockets, no clock, no threads.

The network passes the bytes of all connections as one batch (`receive`). One transaction decides and stores the batch.
The sessions acknowledge messages only after the transaction is durable (B-098). Then `output` gives the bytes to write.

If a transaction fails, it changes nothing, and the manager reads its state from the store again. If the store failed,
the manager first closes every session without an acknowledgement, and the peers keep their messages. If a session met
a defect, the manager closes that session only.

Times: `now` monotonic milliseconds, `wall` seconds since 1970.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from mqqb import connection, core, headers, names, parse
from mqqb.connection import Acknowledged, Closed, MessageReceived, Noted, Opened
from mqqb.streams import Entry

from ordack.broker.acceptance import NOT_NOW, Acceptance, Batch, Duplicates
from ordack.broker.announced import Announced
from ordack.broker.applications import Applications, Question
from ordack.broker.commits import carry_out
from ordack.broker.deadlines import ConfirmationDeadlines
from ordack.broker.fast import FastPath
from ordack.broker.incoming import IncomingStreams, OrderAcks
from ordack.broker.links import Arrived, Hop, Links, PeerLink
from ordack.broker.message import Request
from ordack.broker.outcome import Settlements
from ordack.broker.outgoing import OutgoingQueue, OutgoingQueues
from ordack.broker.serve_log import ERROR, Operator
from ordack.broker.settling import Settling
from ordack.broker.streams import key_of
from ordack.config.config import Config
from ordack.store import Store, StoreError, packet_fields
from ordack.store.at_hand import AtHand, Row
from ordack.store.database import Handled
from ordack.store.messages import ANY

READ_AHEAD = 63  # rows per statement; with the row before them a window,
READ_AHEAD_BYTES = 16 << 10  # unless they are larger
TRACED = core.BASE_TR >> 8  # BaseHeader.Flags.TR, in its second byte


class Reading:
    """Reads rows of outgoing messages ahead, several in one statement.

    Messages usually leave a queue in order of arrival. In another order, and with large packets and runs, nothing is
    read ahead. rows: OutgoingQueues.rows. at_hand: needs no reading.
    """

    def __init__(self, rows: Callable[[int, int, int], list[Row]], at_hand: AtHand) -> None:
        self._rows = rows
        self._at_hand = at_hand
        self._ahead: dict[int, deque[Row]] = {}  # by outgoing queue

    def packet(self, outgoing: int, key: int) -> tuple[bytearray, int]:
        """See OutgoingQueues.packet. outgoing: the message's queue."""
        row = self.row(outgoing, key)
        return row.packets(key, 1), row.until

    def row(self, outgoing: int, key: int) -> Row:
        """The row of a message. outgoing: the message's queue. Raises StoreError if the message is gone."""
        if kept := self._at_hand.find(outgoing, key):
            return kept
        ahead = self._ahead.get(outgoing, deque())
        last: Row | None = None
        while ahead and ahead[0].key < key:
            last = ahead.popleft()
        if not ahead or key <= ahead[0].key - ahead[0].messages:
            follows = last and not ahead and len(last.packet) <= READ_AHEAD_BYTES
            ahead = deque(self._rows(outgoing, key, READ_AHEAD if follows else 1))
        if not ahead or key <= ahead[0].key - ahead[0].messages:
            raise StoreError(f"outgoing message {key} is gone")
        self._ahead[outgoing] = ahead
        return ahead[0]


class Dispatcher:
    """Gives sessions the packets for their peers: FinalAcks, overdue OrderAcks, messages. transact: runs one decision
    in a transaction of Manager."""

    def __init__(
        self,
        store: Store,
        config: Config,
        links: Links,
        outgoing: OutgoingQueues,
        settling: Settling,
        order_acks: OrderAcks,
        fast: FastPath,
        transact: Callable[[int, int, Callable[[Batch], object]], object],
    ) -> None:
        self._fast = fast
        self._store = store
        self._config = config
        self._links = links
        self._outgoing = outgoing
        self._settling = settling
        self._order_acks = order_acks
        self._transact = transact

    def dispatch(self, link: PeerLink, now: int, wall: int) -> None:
        """Send on an open link: first FinalAcks, then overdue OrderAcks, then messages."""
        with self._links.isolated(link):
            queues = [queue for queue in self._outgoing.served_by(link) if queue.stream not in link.pace.overdue]
            self._send_from(link, [queue for queue in queues if queue.holds_acks], now, wall)
            self._order_acks.send_overdue(link, now, wall)
            self._send_from(link, [queue for queue in queues if not queue.holds_acks and not queue.on_hold], now, wall)

    def _send_from(self, link: PeerLink, queues: list[OutgoingQueue], now: int, wall: int) -> None:
        session = link.session
        if not queues or not session.can_send():
            return
        at_hand = self._outgoing.at_hand
        reading = Reading(self._store.outgoing.rows, at_hand)
        for queue, entry in link.schedule.among(queues):
            if not session.can_send() or not (queue.holds_acks or (link.writable and link.pace.room > 0)):
                break
            if entry.tx_sequence_number:
                self._outgoing.may_transmit(queue, key_of(entry))
            row = reading.row(queue.identifier, key_of(entry))
            self._fast.hold(link)
            are_alike = row.messages > 1 and wall <= row.until and link.schedule.is_highest
            if are_alike and self._send_run(link, queue, entry, row, now):
                continue
            packet, until = reading.packet(queue.identifier, key_of(entry))
            if wall > until:
                due = self._store.outgoing.waiting([key_of(entry)])
                self._transact(now, wall, partial(self._settling.due, wall=wall, due=due))  # B-311, C-29
                reading = Reading(self._store.outgoing.rows, at_hand)
                continue
            if entry.tx_sequence_number:
                link.counts.resent += queue.leave([key_of(entry)])
                queue.stream.prepare(entry, packet, parse.transaction_offset(packet))
            session.send(entry, packet, entry.recoverable, now)
            at_hand.sent(queue.identifier, key_of(entry))
            link.counts.sent += 1
            stream = queue.stream if entry.tx_sequence_number else None
            link.pace.sends(len(packet), stream, stream is not None and entry is stream.table[0])
            self._links.touch(link)
            if packet[core.BASE_FLAGS_AT + 1] & TRACED and self._config.report_messages:
                self._report_leaving(link, packet_fields.parse(packet), now, wall)

    def _send_run(self, link: PeerLink, queue: OutgoingQueue, entry: Entry, row: Row, now: int) -> bool:
        """Send the messages of a row together, from the next one on, as far as possible. They differ in their bodies
        only, and each names the one before it already. False: send the next one alone."""
        entries = queue.stream.following(entry, row.key - key_of(entry) + 1)
        self._outgoing.may_transmit(queue, key_of(entries[-1]))
        count = link.session.begin_run(len(entries), now)
        if not count:
            return False
        del entries[count:]
        packets = row.packets(key_of(entry), count)
        link.counts.resent += queue.leave([key_of(sent) for sent in entries])
        link.counts.sent += count
        queue.stream.prepare(entry, packets, parse.transaction_offset(packets))
        link.session.send_run(entries, packets, now)
        queue.stream.pass_over(entries)
        self._outgoing.at_hand.sent(queue.identifier, key_of(entries[-1]))
        link.pace.sends(len(packets), queue.stream, entry is queue.stream.table[0])
        self._links.touch(link)
        return True

    def _report_leaving(self, link: PeerLink, message: headers.UserMessage, now: int, wall: int) -> None:
        self._transact(now, wall, lambda batch: batch.outcomes.report(message, link.address))  # B-294


MESSAGE_IDS_AHEAD = 4096
REPORT_MS = 10_000  # between two reports for operators, at most
CLOCK_MS = 2000  # change of the clock that shown times tolerate
FAILURE_MS = 60_000  # after which a store failure is old if nothing was committed since
PUT_OFF_MAX = 64  # OrderAcks, until the next poll
ANSWERS_KEPT_S = 86400  # of a killed application, which cannot ask again


class Manager:
    """One queue manager on an open store. The caller holds the manager lock (`Store.lock_manager`).

    log: takes the lines of the log; a defect has several. about: values of the caller to show in the report.
    connections: gives the network's state of each hop. answered: called when `applications.answers` cannot wait.
    fast.is_on: may be set False before the first connection.
    """

    def __init__(
        self, store: Store, now: int, config: Config | None = None, log: Callable[[str], None] = lambda _line: None
    ) -> None:
        self.store = store
        self.config = config = config or Config()
        self.operator = Operator(log, lambda text: self.announced.names.added(text))
        self.announced = Announced(store, config, self.operator)
        self.about: dict[str, Any] = {}
        self.connections: Callable[[], dict[Hop, dict[str, Any]]] = dict
        self.answered: Callable[[], None] = lambda: None
        self.links = Links(store.guid, config, self.operator, self.announced, self._ended)
        self.incoming = IncomingStreams(store, config)
        self.fast = FastPath(store, self.links, self.incoming, config)
        self.outgoing = OutgoingQueues(store, self.links, config)
        self.applications = Applications(store, self.outgoing, self.operator, carry_out)
        self._duplicates = Duplicates(store, config)
        self._order_acks = OrderAcks(store, self.links, self.incoming, self.outgoing)
        self._acceptance = Acceptance(store, config, self.incoming, self.outgoing, self._duplicates, self.operator)
        self._settling = Settling(store, config, self.incoming, self.outgoing, self.operator)
        self._deadlines = ConfirmationDeadlines(
            store, self.incoming, self.outgoing, self._settling, self._duplicates, self._transact
        )
        self._dispatcher = Dispatcher(
            store, config, self.links, self.outgoing, self._settling, self._order_acks, self.fast, self._transact
        )
        self._history_due = now + 1000 * config.history_lifetime
        self._looked_at = -1  # second of the last search for due messages
        self._report_at = now  # time of the next report for operators, ms
        self.shown: dict[str, Any] = {}  # the last published report
        self._zero = 0  # time of `now` = 0, in milliseconds since 1970
        self._put_off: list[Arrived] = []  # OrderAcks for later, see `receive`
        self.failure: StoreError | None = None  # why the state is unreadable; no session is served then
        store.keep_names(config.to_keep())
        store.numbers.ahead = MESSAGE_IDS_AHEAD
        self._load(now)

    # ---- state from the store

    def _load(self, now: int) -> None:
        """Read the state from the store."""
        self._put_off.clear()  # peers resend these OrderAcks
        self.fast.give_up(now)
        self.outgoing.load()
        self._deadlines.load()
        self._duplicates.load()
        self.incoming.load(now)
        self._refresh()
        self._order_acks.load()
        self.outgoing.delete_drained(self.outgoing.ack_queues)

    def _refresh(self) -> None:
        with self.store.snapshot():
            self.incoming.refresh()
            self.outgoing.refresh()
        self.fast.forget_all()

    def _guard(self, now: int) -> contextlib.AbstractContextManager[None]:
        """If the store fails, close all sessions and read the state from the store again."""
        return Handled(partial(self._store_failed, now), StoreError)

    def _store_failed(self, now: int, error: BaseException) -> bool:
        self.operator.tell(f"all sessions are closed: {error}", ERROR)
        self.links.counters.store_failed(str(error), now)
        self.links.close_all("B-285", "the store failed")
        self._recover(now)
        return True

    def _recover(self, now: int) -> bool:
        """Read the state again. If the store fails again, serve no session until `poll` can read it."""
        self._looked_at = -1
        self._report_at = now
        try:
            self._load(now)
            self.failure = None
        except StoreError as error:
            self.failure = error
        return self.failure is None

    # ---- connections

    def accept(self, address: str, now: int, hop: Hop | None = None) -> PeerLink | None:
        """Accept a connection from this IP address, or over the serial line of this hop. None: too many connections;
        shut this one (B-435)."""
        link = self.links.accept(address, now, hop)
        return self._begun(link) if link else None

    def connect(self, hop: Hop, address: str, now: int, pinged: bool = False) -> PeerLink:
        """Take a connection that this side opened to a hop at this IP address. pinged: the hop had answered a ping."""
        return self._begun(self.links.connect(hop, address, now, pinged))

    def _begun(self, link: PeerLink) -> PeerLink:
        link.session.is_needed = lambda: any(queue.is_needed for queue in self.outgoing.served_by(link))
        return link

    def _ended(self, link: PeerLink) -> None:
        self.fast.close(link)
        self.outgoing.ended(link)
        self.incoming.ended(link)

    def lost(self, link: PeerLink) -> None:
        """The transport of this link is gone (B-298)."""
        self.links.lost(link)

    def wanted_hops(self) -> set[Hop]:
        """Return the hops of messages without a connection (B-302)."""
        return self.outgoing.wanted_hops()

    def output(self) -> list[tuple[PeerLink, bytes, bool]]:
        """Return links with data or an end: link, bytes to write, and whether to shut its transport afterwards."""
        return self.links.output()

    # ---- a batch

    def receive(
        self,
        arrivals: Iterable[tuple[PeerLink, bytes]],
        now: int,
        wall: int,
        questions: Sequence[Question] = (),
        lazily: bool = False,
    ) -> None:
        """Process bytes from any number of links, and requests of applications: one transaction, then acknowledgements,
        answers and messages.

        lazily: defer a batch of OrderAcks alone to the next arrival of other packets or `poll`. If a power cut loses
        OrderAcks, their messages are resent and acknowledged again (B-152)."""
        if self.failure:  # the bytes are lost, so these sessions cannot continue
            for link, _ in arrivals:
                self.links.close(link, "B-285", "the store fails")
            self.applications.failed(questions, StoreError("`ordack serve` cannot read its store"))
            return
        with self._guard(now):
            work: list[Arrived] = []
            links: dict[PeerLink, None] = {}
            for link, data in arrivals:
                if rest := self.fast.take(link, data, now, wall):
                    links[link] = None
                    work += [(link, event, now) for event in self.links.receive(link, rest, now)]
            has_other_work = questions or self.applications.has_work or self.fast.pending
            if lazily and work and not has_other_work and all(map(_can_wait, work)):
                self._put_off += work
            else:
                self._handle_all(work, questions, now, wall)
            self.links.limit_half_received()
            self.outgoing.obey(now)  # before messages are sent
            links.update((queue.link, None) for queue in self.outgoing.take_news() if queue.link)
            for link in links:
                self._dispatch(link, now, wall)
            self._order_acks.send_due(now, wall)
            self.fast.go_on(links)

    def _handle_all(self, work: list[Arrived], questions: Sequence[Question], now: int, wall: int) -> None:
        """Decide about the whole batch. If that fails, decide about its parts, so that no part spoils another."""
        work = self.fast.given_back() + work
        if work or len(self._put_off) > PUT_OFF_MAX or not _only_commits(questions):
            work, self._put_off = self._put_off + work, []
        try:
            self._handle(work, now, wall, questions)
        except StoreError as error:
            if not questions:
                raise
            self.links.counters.store_failed(str(error), now)
            self._load(now)  # the requests may be the cause; their applications got the error
            self._handle(self.fast.given_back() + work, now, wall)
        except Exception as error:  # noqa: BLE001 - a defect ends one link only
            self.operator.tell(f"a batch is handled again, link by link, after {error!r}")
            work = self.fast.given_back() + work
            if questions:
                self._handle([], now, wall, questions)
            for link in dict.fromkeys(link for link, _, _ in work):
                with self.links.isolated(link):
                    self._handle([arrived for arrived in work if arrived[0] is link], now, wall)

    def _handle(self, work: list[Arrived], now: int, wall: int, questions: Sequence[Question] = ()) -> None:
        """Decide about events and store the outcome. An exception leaves everything undecided and nothing stored."""

        def decide(batch: Batch) -> None:
            for link, event, came in [*self.fast.put(batch, now, wall), *work]:
                if link not in batch.refused:
                    self._decide(batch, link, event, came, wall)

        pending = self.fast.pending
        if (
            questions
            or pending
            or self.applications.has_work
            or any(isinstance(event, (MessageReceived, Acknowledged)) for _, event, _ in work)
        ):
            writes = bool(work or pending) or self.applications.writes(questions)
            lasts = pending or not all(map(_can_wait, work)) or self.applications.must_last(questions)
            batch = self._transact(now, wall, decide, questions, bool(lasts) or not writes, writes)
            self.fast.acknowledge(now, wall)
            self.links.stored(batch.stored, now)
            self.fast.learn_all(batch.learned)
        else:
            decide(Batch(Settlements(self.store, wall, self.config)))

    def _transact(
        self,
        now: int,
        wall: int,
        decide: Callable[[Batch], object],
        questions: Sequence[Question] = (),
        durable: bool = True,
        writes: bool = True,
    ) -> Batch:
        """Run requests of applications and `decide` on a new batch, and write its decisions, in one transaction
        (`durable`, `writes`: see Store.transaction). An exception leaves nothing decided or stored."""
        batch = Batch(Settlements(self.store, wall, self.config))
        try:
            with self.store.transaction(durable, writes):
                self.applications.decide(batch.outcomes, questions, now)
                if self.applications.has_obeyed:
                    self._refresh()
                decide(batch)
                self._write(batch, wall)
        except StoreError as error:
            self.applications.failed(questions, error)
            raise
        except Exception:
            self.applications.undone()
            self._load(now)
            raise
        self.applications.committed()
        if not self.outgoing.has_news:  # messages for peers go first, because they have the longer way
            self.answered()
        for queue in set(batch.queue_of.values()):
            queue.transmitted.difference_update(batch.queue_of)  # the store has them now
        batch.count(self.links.counters)
        return batch

    def _decide(self, batch: Batch, link: PeerLink, event: object, now: int, wall: int) -> None:
        if isinstance(event, MessageReceived):
            refusal = self._packet(batch, link, event, now, wall)
            if refusal:
                batch.refusals.append((link, 0))
            if refusal == NOT_NOW:
                text = f"{link.address}: a message was not rejected, {refusal}"
                self.operator.tell_seldom(link.address, wall, text, peer=link.address)
            elif refusal:
                batch.refused.add(link)
                self.links.close(link, "B-285", refusal)
                return
            batch.stored.append((link, event.recoverable))
        elif isinstance(event, Acknowledged):
            for queue in self.outgoing.served_by(link):
                entries = [entry for entry in event.entries if entry.stream is queue.stream]
                if entries:
                    batch.passed(queue, entries)
        elif isinstance(event, Opened):
            if self.links.opened(link, wall):
                self.outgoing.opened(link)
                if link.session.initiator and link.peer == self.store.guid and not self.outgoing.served_by(link):
                    self.links.close(link, "B-413", "this queue manager itself answers there; correct the next hop")
        elif isinstance(event, Noted):
            text = f"{link.address}: {event.reason} ({event.rule}); let through"
            self.operator.tell(text, peer=link.address, rule=event.rule)
        elif isinstance(event, Closed):
            self.links.end(link)

    def _packet(self, batch: Batch, link: PeerLink, event: MessageReceived, now: int, wall: int) -> str:
        """Decide about one packet. Return why there is no room for it, else ""."""
        packet = event.packet
        if isinstance(packet, headers.UserMessage):
            return self._acceptance.message(batch, link, packet, event.raw, now, wall)
        if bytes(packet.message.user.queue_manager_address) not in (names.NULL_GUID, self.store.guid):
            return self._acceptance.acknowledgement(batch, link, packet, event.raw, now, wall)
        if isinstance(packet, connection.OrderAck):
            self._settling.order_ack(batch, link, packet, now)
        else:
            self._settling.final_ack(batch, packet, now)
        return ""

    def _write(self, batch: Batch, wall: int) -> None:
        self.fast.write()
        if batch.messages:
            self.store.messages.add(batch.messages)
        if batch.incoming or batch.forgotten:
            self.incoming.save(batch.incoming, batch.forgotten)
        if batch.answers or batch.passed_on or batch.journaled:
            self._settling.write(batch)
        if batch.forwarded:
            self.outgoing.forward(batch.forwarded, wall)
            batch.outcomes.sent = True
        if batch.outcomes.sent:
            self.outgoing.take_up()
            self._order_acks.wait_behind(batch.rejected)
        if batch.moved:
            self.outgoing.save(batch.moved)
        if batch.noted:
            self._duplicates.save(batch.noted)
        self.outgoing.delete_drained(batch.touched)
        self.applications.serve_waiting(wall)

    # ---- output

    def acknowledge(self, now: int, wall: int) -> None:
        """Send due OrderAcks. Call it when `incoming.order_acks_due` has passed."""
        with self._guard(now):
            self._order_acks.send_due(now, wall)

    def resume(self, link: PeerLink, now: int, wall: int) -> None:
        """Send again on a link whose transport accepts bytes again."""
        link.writable = True
        if not self.failure:
            with self._guard(now):
                self._dispatch(link, now, wall)

    def _dispatch(self, link: PeerLink, now: int, wall: int) -> None:
        if link.is_open and self._looked_at >= 0:
            self._dispatcher.dispatch(link, now, wall)

    # ---- time

    def poll(self, now: int, wall: int) -> None:
        """Run due timers. Call it every few tens of milliseconds; nothing is sent before the first call."""
        counters = self.links.counters
        if counters.failure and now - counters.failed_at > FAILURE_MS:
            counters.failure = ""
        if self.failure and not self._recover(now):
            return
        with self._guard(now):
            self.fast.tell(now)
            self.links.run_timers(now)
            self._order_acks.send_due(now, wall)
            for queue, link in self.outgoing.busy():
                link.pace.run_timer(queue.stream, now)
            if now >= self._history_due:
                self._history_due = now + 1000 * self.config.history_lifetime
                self._duplicates.forget_before(wall - self.config.history_lifetime)
                self._deadlines.forget_outcomes(self.config.outcomes_kept)
                self.store.answers.forget_before(wall - ANSWERS_KEPT_S)
            self.applications.end_waiting(now)
            if wall != self._looked_at:
                self.store.messages.news.add(ANY)  # messages held by processes that have died
            if self._put_off or self.fast.waiting or self.applications.has_work:
                self._handle_all([], (), now, wall)
            self.outgoing.obey(now)
            if self._looked_at < 0 and self._deadlines.end_foreign(now, wall):  # nothing is sent before this ends
                self._looked_at = 0
            self.outgoing.take_news()
            owing = sorted(self.links.peers & self.incoming.overdue_peers)
            with_acks = (link for peer in owing for link in self.links.with_peer(peer))
            for link in dict.fromkeys([*(link for _, link in self.outgoing.busy()), *with_acks]):
                self._dispatch(link, now, wall)
            if self._looked_at < 0:
                return
            if wall != self._looked_at:
                self._every_second(now, wall)
            elif self._deadlines.is_behind:
                self._deadlines.end(now, wall)

    def _every_second(self, now: int, wall: int) -> None:
        """Once a second, end expired messages, and publish the report for operators."""
        self._looked_at = wall
        if abs(1000 * wall - now - self._zero) > CLOCK_MS:
            self._zero = 1000 * wall - now
        self._deadlines.end(now, wall)
        self.outgoing.note_closed()
        self.announced.save()
        if now < self._report_at:
            return
        self._report_at = now + min(5 * (len(self.links) + len(self.outgoing)), REPORT_MS)  # 20 ms for 1,000 sessions
        shown = self.report()
        if shown != self.shown:
            self.shown = shown
            with contextlib.suppress(StoreError):  # disk full: nothing depends on the report
                self.store.write_status(shown)

    @property
    def is_behind(self) -> bool:
        """Are expired messages left? Then poll again soon."""
        return self._deadlines.is_behind

    def report(self) -> dict[str, Any]:
        """Return the state of the queue manager for operators."""
        connections = self.connections()
        return {
            **self.about,
            **self.links.report(self._zero),
            "disputes": [text for guid, text in self.announced.disputes.items() if guid in self.links.peers],
            "refusing": self.incoming.refusing(),
            "serial": [connection for connection in connections.values() if "serial" in connection],
            "outgoing": self.outgoing.report(connections, self._zero),
        }

    def close(self) -> None:
        """End all sessions (B-163), also in the store: messages added before the next start count as untransmitted."""
        self.links.close_all("B-163", "the queue manager stops")
        self.announced.save()
        with contextlib.suppress(StoreError):  # then the next start recovers as after a crash
            self.outgoing.note_closed()


def _only_commits(questions: Sequence[Question]) -> bool:
    """Are there requests of applications, and none of an operator? They need not wait for OrderAcks to be settled."""
    return bool(questions) and not any(isinstance(asked, Request) and asked.commit.order for _, asked in questions)


def _can_wait(arrived: Arrived) -> bool:
    """Is the event an OrderAck that a power cut may undo? Then the peer repeats it."""
    event = arrived[1]
    return (
        isinstance(event, MessageReceived) and not event.recoverable and isinstance(event.packet, connection.OrderAck)
    )
