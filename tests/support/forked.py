"""What a process may do that was forked from that of the test."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence


def said_in_fork(uses: Sequence[Callable[[], object]], *errors: type[Exception]) -> list[str]:
    """What a process that is forked now is told by each of these: the text of the error, or "done"."""
    reads, writes = os.pipe()
    if not os.fork():
        said = []
        for use in uses:
            try:
                use()
                said.append("done")
            except errors as error:
                said.append(str(error))
        os.write(writes, "\n".join(said).encode())
        os._exit(0)
    os.close(writes)
    with os.fdopen(reads) as pipe:
        return pipe.read().splitlines()
