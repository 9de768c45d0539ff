"""The Python API of applications: a client of a queue manager on this machine or elsewhere."""
