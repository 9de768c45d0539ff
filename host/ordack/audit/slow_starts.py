"""Streams of Spark's that start too slowly: it gives up a Python process of them that takes 10 s, as on a machine that
has other work. Nothing is lost by that, and the stream is begun again.
"""

from __future__ import annotations

STARTS = 6  # of a stream, of which each in vain takes those 10 s


def is_slow_start(error: Exception) -> bool:
    """Has a stream ended with this error for nothing but that?"""
    return "Python worker failed to connect back" in str(error)
