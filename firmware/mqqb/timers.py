"""The timers of a session: what it does although nothing comes."""

from mqqb import const

# In the order in which those are handled that are over at the same time.
ACK_SEND = const(0)  # Session Ack Send Timer: received messages are acknowledged (B-127)
ACK_WAIT = const(1)  # Session Ack Wait Timer: the peer owes an acknowledgement (B-148)
WINDOW_GROWTH = const(2)  # a window that the peer made small is doubled (B-129)
CLEANUP = const(3)  # Session Cleanup Timer: nothing has been sent or received (B-147)
INITIALIZATION = const(4)  # Session Initialization Timer: the handshake (B-155)
COUNT = const(5)
