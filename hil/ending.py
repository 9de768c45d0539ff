"""The end of the rig's commands: message, exit status and kept artefacts, however the command ends."""

import asyncio
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from hil.boards import BoardMissing, RigFailed
from hil.report import RIG_FAILED

T = TypeVar("T")


def ending(console: Console, do: Callable[[], int]) -> int:
    """The exit status of a command: the result of `do`; 2 if the work is impossible, RIG_FAILED if the rig fails, 130
    if interrupted."""
    try:
        return do()
    except (BoardMissing, OSError) as error:
        console.print(str(error), markup=False)
        return RIG_FAILED if isinstance(error, RigFailed) else 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted")
        return 130


def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Run this work to its end. SIGTERM acts as SIGINT: everything ends, nothing is left behind."""

    async def until_terminated() -> T:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    return asyncio.run(until_terminated())


@contextmanager
def new_folder(below: Path, name: str) -> Iterator[tuple[Path, Callable[[], object]]]:
    """A folder for a run, with `name` as prefix, and a function that keeps it; otherwise it is removed at the end."""
    below.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=below))
    with ExitStack() as removal:
        removal.callback(shutil.rmtree, folder)
        yield folder, removal.pop_all
