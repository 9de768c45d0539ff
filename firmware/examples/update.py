"""main.py of a board whose program, app.py, arrives as a message. The outbox and its messages stay.

    ordack send press-7/update --dead-letter < app.py

app.py has a function main(node, pause). pause(ms) delivers for ms, and restarts the board after a new app.py has come.
If app.py ends or raises, the previous app.py returns.
"""

import os
import sys

import machine
from ordack.node import Node

node = Node("outbox", connect=("192.168.1.20", 1801), name="press-7", capacity=262144)
updates = node.inbox("update", 9)


def write(name, data):
    with open(name + ".new", "wb") as file:
        file.write(data)


def place(name):
    os.rename(name + ".new", name)  # a power cut leaves the old file or the new one


def pause(ms):
    node.wait(lambda: len(updates), ms)
    update = updates.get()
    if update is not None:
        try:
            if "app.py" in os.listdir():  # else this is the first app.py
                with open("app.py", "rb") as file:
                    before = file.read()
                if before != update.body:  # else a power cut came after it was in place
                    write("app_before.py", before)
                    write("app.py", update.body)  # both fit on the flash
                    place("app_before.py")
                    place("app.py")
            else:
                write("app.py", update.body)
                place("app.py")
        except OSError as error:  # the flash is full
            for name in os.listdir():
                if name.endswith(".new"):
                    os.remove(name)
            print("no update:", error)
            updates.reject(update)  # notifies the sender
            return
        updates.take(update)  # only once it is in place: after a power cut it comes again
        node.wait(lambda: not node.inboxes.owed.final_acks, 5000)  # tells the sender that it was received
        machine.reset()


try:
    import app

    app.main(node, pause)
except Exception as error:  # noqa: BLE001 - the board must survive any error of app.py
    sys.print_exception(error)
if "app_before.py" in os.listdir():
    os.rename("app_before.py", "app.py")
    machine.reset()
while True:
    pause(10000)  # the next app.py may be better
