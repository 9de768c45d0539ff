"""Sends a message to another queue manager, and says what became of it.

    python3 send.py STORE 'DIRECT=TCP:10.0.0.5\\private$\\line1' BODY

`ordack serve --store STORE` must run: it is what delivers the message.
"""

import sys
import time

from ordack.client import Client
from ordack.config import classes

if len(sys.argv) != 4:
    sys.exit(__doc__)
store, destination, body = sys.argv[1:]
with Client(store) as client:
    sent = client.send(destination, body.encode(), label="from send.py", ttrq=60, dead_letter=True)
    state = client.state(sent.message_id)
    while state is not None and state.answer in ("waiting", "stored at destination"):  # until somebody receives it
        time.sleep(0.1)
        state = client.state(sent.message_id)
    assert state is not None
    print(state.answer + (f": {classes.words(state.message_class, destination)}" if state.message_class else ""))
