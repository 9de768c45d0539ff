"""Packet captures: packets one by one or as columns, and packets as text and JSON."""
