"""The beginning of a program on a board that stands still at a step, so that a test can kill it there."""

STANDS_STILL = """
# Its last arguments: which kind of step, and at which one of these it stands still.
import sys
from ordack.node.storage import log
moment, left = sys.argv[-2], int(sys.argv[-1])

def reach(kind):
    global left
    if kind == moment:
        left -= 1
        if not left:
            print("stands still")
            sys.stdin.readline()

def watch(name):
    operation = getattr(log.Files, name)
    def watched(self, *arguments):
        reach("step")
        result = operation(self, *arguments)
        reach("step")
        return result
    setattr(log.Files, name, watched)

for name in ("begin", "append", "sync", "remove"):
    watch(name)
"""
