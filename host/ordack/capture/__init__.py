"""Packet captures: packets one at a time, packets as columns, and packets as text and JSON."""
