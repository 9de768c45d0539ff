"""The node in asyncio tasks, called only when there is work.

One task calls Node.poll. It sleeps for the time that poll returned, or until `wake`: the program changed something, or
a link is ready. On MicroPython, one more task waits for each open link.
"""

import asyncio

from mqqb import MICROPYTHON, const

TYPE_CHECKING = const(0)
if TYPE_CHECKING:
    from typing import Any

    from ordack.node.node import Node
    from ordack.node.talk.link import Waitable


class Tasks:
    """Runs a node in the running event loop."""

    def __init__(self, node: "Node") -> None:
        self._node = node
        self.sleeping: "Any" = None  # set while there is no work
        self._is_woken = False
        self._watched: "list[tuple[Any, ...]]" = []  # (link, its stream, also for writing, watcher)
        self.ended = asyncio.Event()
        self._task: "Any" = asyncio.create_task(self._serve())

    async def close(self) -> None:
        """End the task; the node may be called directly afterwards."""
        task = self._task
        if MICROPYTHON:
            self.sleeping = None  # a `wake` before the task runs would undo the cancellation
        task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        for watched in self._watched:
            _unwatch(watched)
        self._watched = []
        self.ended.set()

    def leave(self, link: "Waitable") -> None:
        """Stop watching a link that is about to be closed."""
        for watched in self._watched:
            if watched[0] is link:
                self._watched.remove(watched)
                _unwatch(watched)
                return

    async def _serve(self) -> None:
        try:
            while True:
                wait = self._node.work()
                notices = self._node.notices
                if notices.deliver():
                    wait = 0
                notices.report()
                if wait and not self._is_woken:
                    try:
                        for link in self._node.links:
                            self._watch(link)
                    except MemoryError:
                        pass  # poll runs often enough without it
                    await self._sleep(wait)
                else:
                    await asyncio.sleep(0)
                self._is_woken = False
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001 - it is in Node.error
            self.ended.set()

    def _watch(self, link: "Waitable") -> None:
        for watched in self._watched:
            if watched[0] is link:
                if watched[1] is link.stream and watched[2] == link.wants_write:
                    return
                self._watched.remove(watched)
                _unwatch(watched)
                break
        if link.stream is not None:
            self._watched.append((link, link.stream, link.wants_write, self._start_watching(link)))

    def wake(self) -> None:
        """Call the node soon."""
        self._is_woken = True
        if MICROPYTHON:
            if self.sleeping:
                self.sleeping = None
                # As Task.cancel without a cancellation: the task is in this queue, for a later time.
                queue = asyncio.core._task_queue  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001
                queue.remove(self._task)
                queue.push(self._task)
        elif self.sleeping is not None and not self.sleeping.done():
            self.sleeping.set_result(None)

    if MICROPYTHON:

        async def _sleep(self, wait: int) -> None:
            self.sleeping = True
            await asyncio.sleep_ms(wait)  # type: ignore[attr-defined,unused-ignore]
            self.sleeping = None

        def _start_watching(self, link: "Waitable") -> "Any":
            kinds = (False, True) if link.wants_write else (False,)
            return [asyncio.create_task(self._wait_for(link.stream, kind)) for kind in kinds]

        async def _wait_for(self, stream: "Any", to_write: bool) -> None:
            while True:
                await _ready(stream, to_write)
                self.wake()
                await asyncio.sleep(0)  # let the node read first

    else:

        async def _sleep(self, wait: int) -> None:
            loop = asyncio.get_running_loop()
            self.sleeping = loop.create_future()
            timer = loop.call_later(wait / 1000, self.wake)
            try:
                await self.sleeping
            finally:
                timer.cancel()
                self.sleeping = None

        def _start_watching(self, link: "Waitable") -> "Any":
            loop = asyncio.get_running_loop()
            loop.add_reader(link.stream, self.wake)
            if link.wants_write:
                loop.add_writer(link.stream, self.wake)
            return loop


if MICROPYTHON:

    def _ready(stream: "Any", to_write: bool) -> "Any":
        queue = asyncio.core._io_queue  # type: ignore[attr-defined,unused-ignore]  # noqa: SLF001
        yield queue.queue_write(stream) if to_write else queue.queue_read(stream)

    def _unwatch(watched: "tuple[Any, ...]") -> None:
        for task in watched[3]:
            task.cancel()

else:

    def _unwatch(watched: "tuple[Any, ...]") -> None:
        watched[3].remove_reader(watched[1])
        watched[3].remove_writer(watched[1])
