"""The constants of the C core (c_core/mqqb.h, without the prefix), and the places of the integers in its structures.

Everybody takes them from core, which has them all; here they are for the implementations of the core.
"""

from mqqb import const

# ---- sizes and values -------------------------------------------------------------------------

VERSION_NUMBER = const(0x10)
SIGNATURE = const(0x524F494C)
PING_SIGNATURE = const(0x5548)
PACKET_SIZE_MAX = const(0x00400000)
PACKET_SIZE_MIN_INTERNAL = const(20)
PACKET_SIZE_MIN_MESSAGE = const(120)
ACK_BITS = const(32)
PT_SESSION_ACK = const(1)
PT_ESTABLISH_CONNECTION = const(2)
PT_CONNECTION_PARAMETERS = const(3)
HOP_COUNT_MAX = const(0x1D)

# ---- bits of the Flags fields -----------------------------------------------------------------

BASE_PR = const(0x0007)
BASE_IN = const(0x0008)
BASE_SH = const(0x0010)
BASE_DH = const(0x0020)
BASE_TR = const(0x0100)
INTERNAL_PT = const(0x000F)
INTERNAL_CS = const(0x0010)
USER_RC = const(0x0000001F)
USER_DM = const(0x00000060)
USER_JN = const(0x00000100)
USER_JP = const(0x00000200)
USER_DQ = const(0x00001C00)
USER_AQ = const(0x0000E000)
USER_RQ = const(0x00070000)
USER_SH = const(0x00080000)
USER_TH = const(0x00100000)
USER_MP = const(0x00200000)
USER_CQ = const(0x00400000)
USER_MQ = const(0x00800000)
USER_AH = const(0x02000000)
USER_HH = const(0x10000000)
TX_CG = const(0x00000001)
TX_FA = const(0x00000002)
TX_FM = const(0x00000004)
TX_LM = const(0x00000008)

# ---- status -----------------------------------------------------------------------------------

OK = const(0)
NEED_MORE = const(1)
ACK_FIRST = const(2)
IGNORED = const(3)
STREAM_FULL = const(4)
BAD_VERSION_NUMBER = const(-1)
BAD_SIGNATURE = const(-2)
BAD_PACKET_SIZE = const(-3)
BAD_PACKET_TYPE = const(-4)
BAD_REFUSED_FLAG = const(-5)
BAD_HOP_COUNT = const(-6)
BAD_DELIVERY_MODE = const(-7)
BAD_DESTINATION_TYPE = const(-8)
BAD_ADMIN_TYPE = const(-9)
BAD_TRANSACTION_MODE = const(-10)
BAD_PROPERTIES_FLAG = const(-11)
BAD_HTTP_FLAG = const(-12)
BAD_TX_SEQUENCE_NUMBER = const(-13)
BAD_PREVIOUS_NUMBER = const(-14)
BAD_SENDER_ID_TYPE = const(-15)
BAD_SECURITY_SIZE = const(-16)
BAD_LABEL_LENGTH = const(-17)
BAD_BODY_SIZE = const(-18)
BAD_RECOVERABLE_ACK_TIMEOUT = const(-19)
BAD_ACK_TIMEOUT = const(-20)
BAD_OPERATING_SYSTEM = const(-21)
BAD_WINDOW_SIZE = const(-22)
BAD_ACK_NUMBER = const(-23)
BAD_PING_SIGNATURE = const(-24)
BAD_QUEUE_TYPE = const(-25)
BAD_ACK_COUNT = const(-26)
BAD_MESSAGE_COUNT = const(-27)

# ---- parts ------------------------------------------------------------------------------------

BASE_HEADER = const(0)
INTERNAL_HEADER = const(1)
SESSION_HEADER = const(2)
TRANSACTION_HEADER = const(3)
CONNECTION_PARAMETERS = const(4)
USER_HEADER = const(5)
MESSAGE_PROPERTIES_HEADER = const(6)
SECURITY_HEADER = const(7)
DEBUG_HEADER = const(8)
ESTABLISH_CONNECTION = const(9)
ORDER_ACK = const(10)
FINAL_ACK = const(11)
PING = const(12)
PARTS = const(13)

# ---- places of the integers, in words ---------------------------------------------------------

BASE_VERSION_NUMBER = const(0)
BASE_RESERVED = const(1)
BASE_FLAGS = const(2)
BASE_SIGNATURE = const(3)
BASE_PACKET_SIZE = const(4)
BASE_TIME_TO_REACH_QUEUE = const(5)

INTERNAL_RESERVED = const(0)
INTERNAL_FLAGS = const(1)

ACKS_SEQUENCE_NUMBER = const(0)  # SessionHeader.AckSequenceNumber
ACKS_BASE = const(1)  # RecoverableMsgAckSeqNumber
ACKS_FLAGS = const(2)  # RecoverableMsgAckFlags
ACKS_SENT = const(3)  # UserMsgSequenceNumber
ACKS_RECOVERABLE_SENT = const(4)  # RecoverableMsgSeqNumber
ACKS_WINDOW_SIZE = const(5)
ACKS_RESERVED = const(6)

TX_FLAGS = const(0)
TX_ORDINAL = const(1)
TX_TIME_STAMP = const(2)
TX_NUMBER = const(3)
TX_PREVIOUS = const(4)

PARAMETERS_RECOVERABLE_ACK_TIMEOUT = const(0)
PARAMETERS_ACK_TIMEOUT = const(1)
PARAMETERS_RESERVED = const(2)
PARAMETERS_WINDOW_SIZE = const(3)

USER_TIME_TO_BE_RECEIVED = const(8)
USER_SENT_TIME = const(9)
USER_MESSAGE_ID = const(10)
USER_FLAGS = const(11)

PROPERTIES_FLAGS = const(0)
PROPERTIES_LABEL_LENGTH = const(1)
PROPERTIES_MESSAGE_CLASS = const(2)
PROPERTIES_BODY_TYPE = const(8)
PROPERTIES_APPLICATION_TAG = const(9)
PROPERTIES_MESSAGE_SIZE = const(10)
PROPERTIES_ALLOCATION_BODY_SIZE = const(11)
PROPERTIES_PRIVACY_LEVEL = const(12)
PROPERTIES_HASH_ALGORITHM = const(13)
PROPERTIES_ENCRYPTION_ALGORITHM = const(14)
PROPERTIES_EXTENSION_SIZE = const(15)

SECURITY_FLAGS = const(0)
SECURITY_SENDER_ID_SIZE = const(1)
SECURITY_ENCRYPTION_KEY_SIZE = const(2)
SECURITY_SIGNATURE_SIZE = const(3)
SECURITY_SENDER_CERT_SIZE = const(4)
SECURITY_PROVIDER_INFO_SIZE = const(5)

DEBUG_FLAGS = const(0)
DEBUG_RESERVED = const(1)

ESTABLISH_TIME_STAMP = const(8)
ESTABLISH_OPERATING_SYSTEM = const(9)
ESTABLISH_RESERVED = const(10)

ACK_ORDINAL = const(0)  # OrderAck and FinalAck begin alike
ACK_TIME_STAMP = const(1)
ACK_NUMBER = const(2)
ACK_PREVIOUS = const(3)
ACK_MESSAGE_ID = const(8)  # FinalAck only

PING_FLAGS = const(0)  # word 1 is the signature, always PING_SIGNATURE
PING_COOKIE = const(2)

SESSION_SENT = const(0)
SESSION_RECOVERABLE_SENT = const(1)
SESSION_RECEIVED = const(2)
SESSION_RECOVERABLE_RECEIVED = const(3)
SESSION_STORED = const(4)
SESSION_RECOVERABLE_STORED = const(5)
SESSION_ACKED = const(6)
SESSION_RECOVERABLE_ACKED = const(7)  # LastAckedRecoverableMsgSeqNumber
SESSION_ACK_FLAGS = const(8)
SESSION_PEER_ACKED = const(9)
SESSION_WINDOW_SIZE = const(10)
SESSION_RECEIVED_WINDOW_SIZE = const(11)
SESSION_WORDS = const(12)

INCOMING_ORDINAL = const(0)
INCOMING_TIME_STAMP = const(1)
INCOMING_NUMBER = const(2)
INCOMING_REJECT_COUNT = const(3)
INCOMING_WORDS = const(4)

OUTGOING_ORDINAL = const(0)
OUTGOING_TIME_STAMP = const(1)
OUTGOING_NUMBER = const(2)  # the next one's, at least 1
OUTGOING_LAST_ACK = const(3)
OUTGOING_WORDS = const(4)
