"""What only a board does: the outbox on flash, the link, the node's loop. Runs unchanged on MicroPython and CPython."""
