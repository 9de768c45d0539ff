"""Fixed-size headers, session counters, acknowledgement bits, transactional order: names, and the choice of the core.

The C core is taken when it is there (``_mqqb``: on CPython made by cffi, on a board a user C module), else its twin
``core_py``. All of them do the same, with the same names: those of c_core/mqqb.h without the prefix. That header says
what each function means. ``implementation`` is "c", "c-module" or "python". A module ``mqqb_force_twin`` that can be
imported, or the environment variable ``ORDACK_CORE=python``, forces the twin.

A C structure is an ``array("I")`` of 32-bit words; constants such as ``BASE_FLAGS`` are the places of its integers.
Byte strings (GUIDs, CorrelationID) take words too, as raw memory: leave those alone, slice the packet instead.

    part_size(part) -> int                              bytes on the wire
    part_words(part) -> int                             words of the structure
    unpack(part, fields, data, offset, end) -> status   data[offset:end] to fields; not OK: fields is untouched
    pack(part, fields, data, offset)                    ValueError if fields would not pass unpack
    packet_total(flags, packet_size) -> int             bytes on the stream (OP-1, A-51)
    frame(data, offset, end, total) -> status           total[0] becomes the size of the packet at offset
    serial_after(a, b) -> bool                          modulo 65536 (B-090)
    is_acked(base, flags, seq) -> bool                  B-103, B-107, B-222, B-223
    session_init(s, window_size)                        s: SESSION_WORDS words
    session_can_send(s) -> bool                         B-118
    session_sent(s, recoverable)                        B-320
    session_received(s, recoverable)                    B-252, B-278
    session_stored(s, recoverable) -> status            OK or ACK_FIRST (B-123, B-280)
    session_unacked_received(s) -> int                  B-037
    session_unacked_sent(s) -> int                      B-038
    session_fill(s, h)                                  h: a SESSION_HEADER (B-101 to B-108)
    session_check(s, h, carried) -> status              B-219, B-227, B-229, OP-14
    tx_compare(ordinal_a, time_stamp_a, ordinal_b, time_stamp_b) -> int     -1, 0, 1 (B-078)
    accept(incoming, h) -> bool                         incoming: INCOMING_WORDS words (B-270 to B-272)
    stamp(outgoing, previous, h) -> status              outgoing: OUTGOING_WORDS words; h: a TRANSACTION_HEADER (B-317)
    order_ack_received(outgoing, ack) -> status         ack: an ORDER_ACK (B-230, B-233)
    roll(outgoing)                                      B-096

What came from the wire is answered with a status. A caller's mistake (array too short, range outside the buffer, number
out of range) raises ValueError and has changed nothing.
"""

import os

# ---- sizes and values -------------------------------------------------------------------------

VERSION_NUMBER = 0x10
SIGNATURE = 0x524F494C
PING_SIGNATURE = 0x5548
PACKET_SIZE_MAX = 0x00400000
PACKET_SIZE_MIN_INTERNAL = 20
PACKET_SIZE_MIN_MESSAGE = 120
ACK_BITS = 32
PT_SESSION_ACK = 1
PT_ESTABLISH_CONNECTION = 2
PT_CONNECTION_PARAMETERS = 3
HOP_COUNT_MAX = 0x1D

# ---- bits of the Flags fields -----------------------------------------------------------------

BASE_PR = 0x0007
BASE_IN = 0x0008
BASE_SH = 0x0010
BASE_DH = 0x0020
BASE_TR = 0x0100
INTERNAL_PT = 0x000F
INTERNAL_CS = 0x0010
USER_RC = 0x0000001F
USER_DM = 0x00000060
USER_JN = 0x00000100
USER_JP = 0x00000200
USER_DQ = 0x00001C00
USER_AQ = 0x0000E000
USER_RQ = 0x00070000
USER_SH = 0x00080000
USER_TH = 0x00100000
USER_MP = 0x00200000
USER_CQ = 0x00400000
USER_MQ = 0x00800000
USER_AH = 0x02000000
USER_HH = 0x10000000
TX_CG = 0x00000001
TX_FA = 0x00000002
TX_FM = 0x00000004
TX_LM = 0x00000008

# ---- status -----------------------------------------------------------------------------------

OK = 0
NEED_MORE = 1
ACK_FIRST = 2
IGNORED = 3
STREAM_FULL = 4
BAD_VERSION_NUMBER = -1
BAD_SIGNATURE = -2
BAD_PACKET_SIZE = -3
BAD_PACKET_TYPE = -4
BAD_REFUSED_FLAG = -5
BAD_HOP_COUNT = -6
BAD_DELIVERY_MODE = -7
BAD_DESTINATION_TYPE = -8
BAD_ADMIN_TYPE = -9
BAD_TRANSACTION_MODE = -10
BAD_PROPERTIES_FLAG = -11
BAD_HTTP_FLAG = -12
BAD_TX_SEQUENCE_NUMBER = -13
BAD_PREVIOUS_NUMBER = -14
BAD_SENDER_ID_TYPE = -15
BAD_SECURITY_SIZE = -16
BAD_LABEL_LENGTH = -17
BAD_BODY_SIZE = -18
BAD_RECOVERABLE_ACK_TIMEOUT = -19
BAD_ACK_TIMEOUT = -20
BAD_OPERATING_SYSTEM = -21
BAD_WINDOW_SIZE = -22
BAD_ACK_NUMBER = -23
BAD_PING_SIGNATURE = -24
BAD_QUEUE_TYPE = -25
BAD_ACK_COUNT = -26
BAD_MESSAGE_COUNT = -27

# ---- parts ------------------------------------------------------------------------------------

BASE_HEADER = 0
INTERNAL_HEADER = 1
SESSION_HEADER = 2
TRANSACTION_HEADER = 3
CONNECTION_PARAMETERS = 4
USER_HEADER = 5
MESSAGE_PROPERTIES_HEADER = 6
SECURITY_HEADER = 7
DEBUG_HEADER = 8
ESTABLISH_CONNECTION = 9
ORDER_ACK = 10
FINAL_ACK = 11
PING = 12
PARTS = 13

# ---- places of the integers, in words ---------------------------------------------------------

BASE_VERSION_NUMBER = 0
BASE_RESERVED = 1
BASE_FLAGS = 2
BASE_SIGNATURE = 3
BASE_PACKET_SIZE = 4
BASE_TIME_TO_REACH_QUEUE = 5

INTERNAL_RESERVED = 0
INTERNAL_FLAGS = 1

ACKS_SEQUENCE_NUMBER = 0  # SessionHeader.AckSequenceNumber
ACKS_BASE = 1  # RecoverableMsgAckSeqNumber
ACKS_FLAGS = 2  # RecoverableMsgAckFlags
ACKS_SENT = 3  # UserMsgSequenceNumber
ACKS_RECOVERABLE_SENT = 4  # RecoverableMsgSeqNumber
ACKS_WINDOW_SIZE = 5
ACKS_RESERVED = 6

TX_FLAGS = 0
TX_ORDINAL = 1
TX_TIME_STAMP = 2
TX_NUMBER = 3
TX_PREVIOUS = 4

PARAMETERS_RECOVERABLE_ACK_TIMEOUT = 0
PARAMETERS_ACK_TIMEOUT = 1
PARAMETERS_RESERVED = 2
PARAMETERS_WINDOW_SIZE = 3

USER_TIME_TO_BE_RECEIVED = 8
USER_SENT_TIME = 9
USER_MESSAGE_ID = 10
USER_FLAGS = 11

PROPERTIES_FLAGS = 0
PROPERTIES_LABEL_LENGTH = 1
PROPERTIES_MESSAGE_CLASS = 2
PROPERTIES_BODY_TYPE = 8
PROPERTIES_APPLICATION_TAG = 9
PROPERTIES_MESSAGE_SIZE = 10
PROPERTIES_ALLOCATION_BODY_SIZE = 11
PROPERTIES_PRIVACY_LEVEL = 12
PROPERTIES_HASH_ALGORITHM = 13
PROPERTIES_ENCRYPTION_ALGORITHM = 14
PROPERTIES_EXTENSION_SIZE = 15

SECURITY_FLAGS = 0
SECURITY_SENDER_ID_SIZE = 1
SECURITY_ENCRYPTION_KEY_SIZE = 2
SECURITY_SIGNATURE_SIZE = 3
SECURITY_SENDER_CERT_SIZE = 4
SECURITY_PROVIDER_INFO_SIZE = 5

DEBUG_FLAGS = 0
DEBUG_RESERVED = 1

ESTABLISH_TIME_STAMP = 8
ESTABLISH_OPERATING_SYSTEM = 9
ESTABLISH_RESERVED = 10

ACK_ORDINAL = 0  # OrderAck and FinalAck begin alike
ACK_TIME_STAMP = 1
ACK_NUMBER = 2
ACK_PREVIOUS = 3
ACK_MESSAGE_ID = 8  # FinalAck only

PING_FLAGS = 0  # word 1 is the signature, always PING_SIGNATURE
PING_COOKIE = 2

SESSION_SENT = 0
SESSION_RECOVERABLE_SENT = 1
SESSION_RECEIVED = 2
SESSION_RECOVERABLE_RECEIVED = 3
SESSION_STORED = 4
SESSION_RECOVERABLE_STORED = 5
SESSION_ACKED = 6
SESSION_RECOVERABLE_ACKED = 7  # LastAckedRecoverableMsgSeqNumber
SESSION_ACK_FLAGS = 8
SESSION_PEER_ACKED = 9
SESSION_WINDOW_SIZE = 10
SESSION_RECEIVED_WINDOW_SIZE = 11
SESSION_WORDS = 12

INCOMING_ORDINAL = 0
INCOMING_TIME_STAMP = 1
INCOMING_NUMBER = 2
INCOMING_REJECT_COUNT = 3
INCOMING_WORDS = 4

OUTGOING_ORDINAL = 0
OUTGOING_TIME_STAMP = 1
OUTGOING_NUMBER = 2  # the next one's, at least 1
OUTGOING_LAST_ACK = 3
OUTGOING_WORDS = 4

# ---- the functions ----------------------------------------------------------------------------


def _choose() -> str:
    if hasattr(os, "getenv") and os.getenv("ORDACK_CORE") == "python":  # boards have no environment
        return "python"
    try:
        __import__("mqqb_force_twin")
        return "python"
    except ImportError:
        pass
    try:
        import _mqqb
    except ImportError:
        return "python"
    return "c" if hasattr(_mqqb, "lib") else "c-module"


implementation = _choose()
TYPE_CHECKING = False
if TYPE_CHECKING or implementation == "python":
    from mqqb import core_py as _core  # it imports the constants above from here
elif implementation == "c":
    from mqqb import core_cffi as _core
else:
    import _mqqb as _core

part_size = _core.part_size
part_words = _core.part_words
unpack = _core.unpack
pack = _core.pack
packet_total = _core.packet_total
frame = _core.frame
serial_after = _core.serial_after
is_acked = _core.is_acked
session_init = _core.session_init
session_can_send = _core.session_can_send
session_sent = _core.session_sent
session_received = _core.session_received
session_stored = _core.session_stored
session_unacked_received = _core.session_unacked_received
session_unacked_sent = _core.session_unacked_sent
session_fill = _core.session_fill
session_check = _core.session_check
tx_compare = _core.tx_compare
accept = _core.accept
stamp = _core.stamp
order_ack_received = _core.order_ack_received
roll = _core.roll
