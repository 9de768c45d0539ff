"""The names of confirm, reached through it: a board that does not ask for one has no memory for them."""

UNSET = 0xFFFFFFFF  # of TTRQ: the machine's default; of TTBR: infinite
LONG_LIVE_TIME = 345600  # B-401

# States of the copy (confirmation.md section 1).
Q = "Q"  # committed, never transmitted
S = "S"  # transmitted, not order-acknowledged
O = "O"  # noqa: E741 - order-acknowledged, or in a queue of this machine: it is stored at its destination
J = "J"  # confirmed, copy in the journal
X = "X"  # dead-lettered
GONE = "-"

# Words of a record.
STATE = 0  # the character code of the state
MARKS = 1
SENT_TIME = 2  # T0
TTRQ = 3
TTBR = 4
CLASS = 5  # 0 until the end; then what ended it
RECORD_WORDS = 6

# What the owner has to do, bits. 0: nothing.
STORE = 0x01  # the record has changed
JOURNAL = 0x02  # move the message to the journal, its class unchanged (C-25)
DEAD_LETTER = 0x04  # move the message, with message_class, to a dead-letter queue (C-36)
DELETE = 0x08  # delete the message
NACK = 0x10  # send an administration acknowledgement of class NACK_REACH_QUEUE_TIMEOUT
LOG = 0x20  # say that a positive FinalAck came too late (C-34)

# Answers of `conclusion`.
WAITING = "waiting"
STORED = "stored at destination"
RECEIVED = "received"
DEAD_LETTERED = "dead-lettered"
DISCARDED = "discarded"

# Message classes (B-365 to B-387). 0x8000: negative; 0x4000: about receiving rather than arriving. Not here, because
# only packets needs it: ORDER_ACK.
REPORT = 0x0001
ACK_REACH_QUEUE = 0x0002
ACK_RECEIVE = 0x4000
NACK_BAD_DST_Q = 0x8000
NACK_DELETED = 0x8001
NACK_REACH_QUEUE_TIMEOUT = 0x8002
NACK_Q_EXCEED_QUOTA = 0x8003
NACK_ACCESS_DENIED = 0x8004
NACK_HOP_COUNT_EXCEEDED = 0x8005
NACK_BAD_SIGNATURE = 0x8006
NACK_BAD_ENCRYPTION = 0x8007
NACK_COULD_NOT_ENCRYPT = 0x8008
NACK_NOT_TRANSACTIONAL_Q = 0x8009
NACK_NOT_TRANSACTIONAL_MSG = 0x800A
NACK_UNSUPPORTED_CRYPTO_PROVIDER = 0x800B
NACK_SOURCE_COMPUTER_GUID_CHANGED = 0x800C
NACK_Q_DELETED = 0xC000
NACK_Q_PURGED = 0xC001
NACK_RECEIVE_TIMEOUT = 0xC002
NACK_RECEIVE_TIMEOUT_AT_SENDER = 0xC003
NACK_RECEIVE_REJECTED = 0xC004
