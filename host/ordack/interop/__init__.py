"""A trial of another queue manager from this side of the wire. host/docs/windows.md tells people how to use it."""
