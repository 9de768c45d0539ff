"""Boards with MicroPython on a serial port: deploy, doctor, rescue."""
