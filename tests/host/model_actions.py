"""What applications, operators and the network do in model.py."""

from __future__ import annotations

from collections.abc import Callable

from mqqb import confirm
from mqqb.names import DirectQueueFormatName
from ordack.broker.incoming import indispensable
from ordack.broker.links import Hop, PeerLink
from ordack.broker.message import ACKNOWLEDGE, letter_of
from ordack.client import Queue, Reject
from ordack.config.settings import NEVER
from ordack.store import StoreError

from tests.host.model_hosts import ADMIN, QUEUES, Application, Crash, Host, Message, Wire, _between, _crawl, _trap
from tests.host.model_lines import Violation
from tests.host.model_rules import Rules
from tests.support.host_peer import Peer
from tests.support.host_world import check_alarms, wrong_columns

SENT_TO = ("tx", "tx", "tx2", "plain", "tx", "plain", "tx2", "later")  # how often each is chosen
FITTING = 12  # so many of 15 sends are in a delivery mode that the queue had at first
# TTRQ, TTBR in s
TIMES = ((None, None), (None, None), (None, None), (None, None), (2, None), (30, 10), (None, 5), (60, 400))
COUNTS = (1, 1, 1, 5, 9)
AMOUNTS = (1, 16, 40, 200, 700, 3000, 1 << 22)  # bytes delivered at once
STRANGE = "10.9.9.9"
LONG = 1150  # from this size on a body is so many times longer:
LONGER = 10
SPEEDS = (100, 960, 11_500)  # of a slow line, bytes in a second; a packet may come at 50


class Actions(Rules):
    """What applications and the network do: methods with integer arguments, listed in model.ACTIONS."""

    # ---- applications

    def send(self, source: int, target: int, name: int, delivery: int, count: int, options: int, dies: int) -> None:
        """An application sends some messages, one by one or, if `dies` is odd, in one commit. `name` chooses the queue
        and one of its names, `options` the times, the journal and the size. It dies in the middle, at statement `dies`,
        if that many are needed."""
        host = self.hosts[source % self.size]
        other = self.hosts[target % self.size]
        queue = SENT_TO[name % 8]
        if other is host:
            destination, stream = queue, f"direct=os:.\\private$\\{queue}"
        else:
            address = (f"TCP:{other.address}", f"OS:host{other.index}", f"OS:HOST{other.index}")[name // 8 % 3]
            destination = f"DIRECT={address}\\private$\\{queue}"
            stream = destination.lower()
        application = host.applications[dies % 2]
        _trap(application.client.store, dies, Crash, 1)
        messages = []
        for number in range(delivery, delivery + COUNTS[count]):
            kind = ("transactional", "recoverable", "express")[number % 3]
            if delivery < FITTING:
                kind = "transactional" if queue != "plain" else ("recoverable", "express")[number % 2]
            if other is not host or host.kinds[queue][-1][1] is (kind == "transactional"):
                messages.append(self._message(host, other, stream, queue, kind, options))
        try:
            for some in [messages] if dies % 2 else [[message] for message in messages]:
                self._send(application, host, some, options, destination)
        except Crash:
            host.kill(application)
        except StoreError:
            application.client.store._database.connection.exec_trace = None
        else:
            application.client.store._database.connection.exec_trace = None

    def _message(self, host: Host, target: Host, stream: str, queue: str, kind: str, options: int) -> Message:
        ttrq, ttbr = TIMES[options % len(TIMES)]
        journal = options // len(TIMES) % 8 if options // len(TIMES) % 8 < 4 else 0
        message = Message(
            len(self.messages) + 1,
            host,
            target,
            stream,
            queue,
            kind,
            0 if kind == "transactional" else (3, 3, 5)[options % 3],
            confirm.LONG_LIVE_TIME if ttrq is None else ttrq,
            NEVER if ttbr is None else ttbr,
            journal,
        )
        self.messages[message.tag] = message  # also if it is not accepted: then it must not arrive
        message.acknowledge = options % 5 == 0
        message.step = self.step
        message.sent_time = self.wall
        return message

    def _send(
        self, application: Application, host: Host, messages: list[Message], options: int, destination: str
    ) -> None:
        """Send them in one commit."""
        ttrq, ttbr = TIMES[options % len(TIMES)]
        letters = [
            letter_of(
                destination,
                b"<%d>" % message.tag + bytes(options * (LONGER if options >= LONG else 1)),
                delivery=message.delivery,
                priority=message.priority,
                ttrq=ttrq,
                ttbr=ttbr,
                dead_letter=bool(message.journal & 1),
                journal=bool(message.journal & 2),
                acknowledge=ACKNOWLEDGE if message.acknowledge else (),
                administration_queue=ADMIN if message.acknowledge else None,
                correlation_id=bytes([options % 3]) * 20,
            )
            for message in messages
        ]
        for message, sent in zip(messages, application.client.send_many(letters), strict=True):
            self.figures["sent"] += 1
            message.message_id = sent.message_id
            if (host.guid, sent.message_id) in self.by_id:
                raise Violation(f"two messages have the MessageID: {message}")
            self.by_id[host.guid, sent.message_id] = message
            if sent.tx_sequence_id is not None and sent.tx_sequence_number is not None:
                self._number(message, (sent.tx_sequence_id, sent.tx_sequence_number))

    def _queue(self, host: Host, application: Application, number: int) -> Queue | None:
        name = QUEUES[number % 4]
        return application.client.queue(name) if host.kinds[name][-1][1] is not None else None

    def receive(self, where: int, queue_number: int, application_number: int, count: int) -> None:
        """An application begins a receive of up to `count` messages."""
        host = self.hosts[where % self.size]
        application = host.applications[application_number % 2]
        queue = self._queue(host, application, queue_number)
        if application.open or not queue:
            return
        expected = host.contents(queue.identifier)[:count]
        opened = queue.receive_batch(count)
        found = [message.lookup_id for message in opened.__enter__()]
        leaves_a_row = 8 * len(found) >= count and found == expected[: len(found)]  # see store.messages
        if found != expected and not leaves_a_row:
            raise Violation(f"host {host.index} hands out {found} from {queue.name}, not {expected}")
        if found:
            application.open = opened
            application.keys = found
            host.locked.update(dict.fromkeys(found, application))
        else:
            opened.__exit__(None, None, None)

    def finish(self, where: int, application_number: int, how: int) -> None:
        """An application's receive ends: 0 to 4 it commits, 5 it rejects the messages, 6 it aborts, 7 it dies."""
        host = self.hosts[where % self.size]
        application = host.applications[application_number % 2]
        if not application.open:
            return
        if how == 7:
            host.kill(application)
            return
        messages = [host.content[key][3] for key in application.keys if key in host.content]
        for key in application.keys:
            del host.locked[key]
        opened, application.open = application.open, None
        if how == 6 or (how == 5 and not messages[0].transactional):
            opened.__exit__(Crash, Crash(), None)
            return
        opened.__exit__(*((Reject, Reject(), None) if how == 5 else (None, None, None)))
        host.leaving.update(application.keys)
        for message in messages:
            if (message.received or message.refused) and not message.blurred:
                raise Violation(f"it was received twice: {message}")
            message.received = how != 5
            message.refused = how == 5
            self.figures["received" if message.received else "refused"] += 1

    def peek(self, where: int, queue_number: int) -> None:
        """An application looks at a queue."""
        host = self.hosts[where % self.size]
        queue = self._queue(host, host.applications[0], queue_number)
        if queue:
            found = [message.lookup_id for message in queue.peek()]
            expected = host.contents(queue.identifier)
            if found != expected:
                raise Violation(f"host {host.index} shows {found} in {queue.name}, not {expected}")

    def _clear(self, host: Host, name: str) -> None:
        for queue, _, _, message in host.content.values():
            if host.queues[queue] == name:
                message.removed = True

    def purge(self, where: int, queue_number: int) -> None:
        """An operator purges a queue."""
        host = self.hosts[where % self.size]
        name = QUEUES[queue_number % 4]
        if host.kinds[name][-1][1] is not None:
            self._clear(host, name)
            host.applications[0].client.purge_queue(name)

    def withdraw(self, where: int, number: int, when: int) -> None:
        """An operator purges an outgoing queue. 0: now; 1, 2: and the queue manager dies before it has heard of it;
        from 3 on: before so many more of its statements have run, between two of its transactions."""
        host = self.hosts[where % self.size]
        if when < 3:
            self._withdraw(host, number)
            if when:
                self.crash(where, when == 1)
        else:
            _between(host.store, when - 3, lambda: self._withdraw(host, number))

    def _withdraw(self, host: Host, number: int) -> None:
        store = host.applications[0].client.store
        queue = self._pick(sorted(store.outgoing.queues(), key=lambda queue: queue.format_name), number)
        if queue is None:
            return
        host.look()
        self.figures["withdrawn"] += 1
        for key in store.outgoing.request_purge(queue.identifier, keep=indispensable(store, queue.identifier)):
            host.withdrawn.add(key)
            if key not in host.outgoing:
                continue
            message = host.outgoing[key]
            if message is None:
                host.given_up = self.limited = True
            else:
                message.withdrawn = True
                host.recalled.append(message)
        if not host.is_busy:
            host.recall()

    def pause(self, where: int, number: int) -> None:
        """An operator puts an outgoing queue on hold, or takes it off."""
        host = self.hosts[where % self.size]
        store = host.applications[0].client.store
        queue = self._pick(sorted(store.outgoing.queues(), key=lambda queue: queue.format_name), number)
        if queue is not None:
            store.outgoing.set_on_hold(queue.format_name, not queue.on_hold)

    def change_queue(self, where: int, queue_number: int, transactional: int) -> None:
        """An operator deletes a queue, or makes one that is not there."""
        host = self.hosts[where % self.size]
        name = QUEUES[queue_number % 4]
        client = host.applications[0].client
        kinds = host.kinds[name]
        if kinds[-1][1] is None:
            client.create_queue(name, bool(transactional))
            kinds.append((self.step, bool(transactional)))
        else:
            try:
                client.delete_queue(name)
            except StoreError:
                return  # messages are being received
            self._clear(host, name)
            kinds.append((self.step, None))

    # ---- the network

    def connect(self, where: int) -> None:
        """A queue manager makes the connections that it wants."""
        host = self.hosts[where % self.size]
        for hop in self._hops(host):
            other = next(other for other in self.hosts if other.address == hop[0])
            theirs = other.manager.accept(host.address, other.now)
            if theirs is not None:
                self.figures["connections"] += 1
                ours = host.manager.connect(hop, other.address, host.now)
                self.wires.append(Wire(self, (host, other), (ours, theirs), self.wrap))
        for other in self.hosts:
            self._collect(other)

    def _hops(self, host: Host) -> list[Hop]:
        """Where it wants to connect to; strangers are not there any more."""
        return sorted(hop for hop in host.manager.wanted_hops() if hop[0] != STRANGE)

    def is_stranger(self, guid: bytes) -> bool:
        """Is this none of the queue managers here?"""
        return all(host.guid != guid for host in self.hosts)

    def _collect(self, host: Host) -> None:
        host.look()
        for link, data, shut in host.manager.output():
            if host.stranger and link is host.stranger[0]:
                host.stranger[1].receive(data, self.now)
            if link not in host.links:
                continue
            wire, end = host.links[link]
            if data:
                self._leaves(host, wire, end, data)
                wire.inbox[1 - end].extend(wire.sending[end].writes(data, not wire.severed))
            if shut:
                del host.links[link]
                wire.sever(end, tell=not wire.severed)
        check_alarms(host.manager)

    def _act(self, host: Host, act: Callable[[], object]) -> None:
        """The queue manager does something; it may die of it."""
        host.is_busy = True
        try:
            act()
        except Crash:
            host.restart(reboot=self.step % 2 == 0)
        except StoreError:
            host.restart(reboot=False)
        self._collect(host)
        host.is_busy = False
        if wrong := wrong_columns(host.monitor):
            raise Violation(f"the counts of a store are wrong: {wrong}")
        host.recall()

    def deliver(self, where: int, amount: int, only: int) -> None:
        """Bytes reach a host: up to so many on each of its connections, or on one of them, in one batch."""
        host = self.hosts[where % self.size]
        self._deliver(
            host, AMOUNTS[amount], list(host.links.items())[only : only + 1] if only < 4 else list(host.links.items())
        )

    def _deliver(self, host: Host, most: int, links: list[tuple[PeerLink, tuple[Wire, int]]]) -> bool:
        batch = []
        lost = []
        for link, (wire, end) in links:
            inbox = wire.inbox[end]
            if inbox:
                batch.append((link, bytes(inbox[:most])))
                del inbox[:most]
            if not inbox and wire.over[end]:
                lost.append(link)
        if batch:
            self._act(host, lambda: host.manager.receive(batch, host.now, self.wall, lazily=True))
        for link in lost:
            if link in host.links:
                wire, end = host.links.pop(link)
                self._act(host, lambda link=link: host.manager.lost(link))
                wire.links[end] = None
                wire.forget()
        return bool(batch or lost)

    def flow(self, rounds: int) -> None:
        """All that is on the way arrives everywhere, a few times."""
        for _ in range(rounds):
            for host in self.hosts:
                self._deliver(host, 1 << 22, list(host.links.items()))

    def cut(self, number: int, keep: int, keep_back: int, tell: int) -> None:
        """A connection breaks: of what is on the way only the first part arrives. An end that is not told does not
        learn of it."""
        wire = self._pick(self.wires, number)
        if wire is None:
            return
        self.figures["cuts"] += 1
        wire.severed = True
        for end, kept in ((0, keep), (1, keep_back)):
            inbox = wire.inbox[end]
            del inbox[len(inbox) * kept // 16 :]
            wire.over[end] |= bool(tell >> end & 1)

    def stranger(self, where: int, count: int) -> None:
        """Somebody that nobody will see again connects, sends messages to a queue that is not there, and is gone before
        it is answered."""
        host = self.hosts[where % self.size]
        self.strangers += 1
        self.figures["strangers"] += 1
        nowhere = DirectQueueFormatName(f"TCP:{host.address}\\private$\\none")
        peer = Peer(self.strangers.to_bytes(16, "big"), nowhere)
        link = host.manager.accept(STRANGE, host.now)
        if link is None:
            return
        host.stranger = link, peer
        peer.connect(self.now)
        for _ in range(8):
            if link.is_open:
                break
            self._collect(host)
            data = peer.output(self.now)
            self._act(host, lambda data=data: host.manager.receive([(link, data)], host.now, self.wall))
        for _ in range(count):
            peer.send(b"strange", sent_time=self.wall)
        if link in host.manager.links:
            data = peer.output(self.now)
            self._act(host, lambda: host.manager.receive([(link, data)], host.now, self.wall))
        host.stranger = None
        if link in host.manager.links:
            self._act(host, lambda: host.manager.lost(link))

    def block(self, number: int, end: int) -> None:
        """A connection takes no more bytes, or takes them again."""
        wire = self._pick(self.wires, number)
        link = wire.links[end] if wire else None
        if link is None or link not in wire.hosts[end].links:
            return
        if link.writable:
            link.writable = False
        else:
            host = wire.hosts[end]
            self._act(host, lambda: host.manager.resume(link, host.now, self.wall))

    def slow(self, number: int, end: int, speed: int, options: int) -> None:
        """A connection takes its bytes slowly, while an application sends something, until all has left: neither end
        may give it up."""
        wire = self._pick([wire for wire in self.wires if None not in wire.links and not wire.severed], number)
        if wire is not None:
            self.figures["slow"] += 1
            self.send(wire.hosts[end].index, wire.hosts[1 - end].index, options, options, 0, LONG + options, 400)
            wire.hosts[end].look()
            _crawl(self, wire, end, SPEEDS[speed])
