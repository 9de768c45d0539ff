"""Problems of packets as text. Programs without this file show the numbers."""

from mqqb import const, constants

# Problems found outside the core, which has the negative numbers and NEED_MORE.
NOT_TERMINATED = const(2)
EMPTY_NAME = const(3)
NO_SESSION_HEADER = const(4)
SESSION_ACK_LENGTH = const(5)
PARAMETERS_LENGTH = const(6)
ESTABLISH_LENGTH = const(7)
TRACE_ALONE = const(8)
NOT_ALIGNED = const(9)
ACK_LENGTH = const(10)
BODY_TOO_LONG = const(11)
SECURITY_TOO_LONG = const(12)

# Places beyond the parts, which have the smaller numbers.
DESTINATION_QUEUE = const(13)
ADMIN_QUEUE = const(14)
RESPONSE_QUEUE = const(15)
CONNECTOR_TYPE = const(16)
CONNECTOR_QM_GUID = const(17)
LABEL = const(18)
EXTENSION_DATA = const(19)
PADDING = const(20)

# Problem -> rule, field, reason. Without a field the caller gives one of PLACES.
PROBLEMS = {
    constants.BAD_VERSION_NUMBER: ("B-168", "BaseHeader.VersionNumber", "not 0x10"),
    constants.BAD_SIGNATURE: ("B-168", "BaseHeader.Signature", "not LIOR"),
    constants.BAD_PACKET_SIZE: ("B-429", "BaseHeader.PacketSize", "too small for the kind of packet, or above 4 MiB"),
    constants.BAD_PACKET_TYPE: ("B-170", "InternalHeader.Flags", "PT is not 1, 2 or 3"),
    constants.BAD_REFUSED_FLAG: ("wire.md 5.4", "InternalHeader.Flags", "CS is set in a SessionAck"),
    constants.BAD_HOP_COUNT: ("wire.md 2.2", "UserHeader.Flags", "RC is above 0x1D"),
    constants.BAD_DELIVERY_MODE: ("wire.md 2.2", "UserHeader.Flags", "DM is neither 0 nor 1"),
    constants.BAD_DESTINATION_TYPE: ("B-171", "UserHeader.Flags", "DQ is not 0, 3, 5 or 7"),
    constants.BAD_ADMIN_TYPE: ("B-171", "UserHeader.Flags", "AQ is 1 or 4"),
    constants.BAD_TRANSACTION_MODE: ("B-173", "UserHeader.Flags", "TH is set in an express message"),
    constants.BAD_PROPERTIES_FLAG: ("wire.md 2.5", "UserHeader.Flags", "MP is 0"),
    constants.BAD_HTTP_FLAG: ("behaviour.md 26", "UserHeader.Flags", "AH is set: it never is on the wire"),
    constants.BAD_TX_SEQUENCE_NUMBER: ("wire.md 2.3", "TransactionHeader.TxSequenceNumber", "0 is not a number"),
    constants.BAD_PREVIOUS_NUMBER: (
        "wire.md 2.3",
        "TransactionHeader.PreviousTxSequenceNumber",
        "nothing can follow 0xFFFFFFFF",
    ),
    constants.BAD_SENDER_ID_TYPE: ("wire.md 2.4", "SecurityHeader.Flags", "ST is not 0, 1 or 2"),
    constants.BAD_SECURITY_SIZE: (
        "wire.md 2.4",
        "SecurityHeader.SenderCertSize",
        "above 0xFFFF, or all five sizes are 0",
    ),
    constants.BAD_LABEL_LENGTH: ("B-431", "MessagePropertiesHeader.LabelLength", "above 250"),
    constants.BAD_BODY_SIZE: ("B-432", "MessagePropertiesHeader.MessageSize", "above AllocationBodySize"),
    constants.BAD_RECOVERABLE_ACK_TIMEOUT: (
        "B-213",
        "ConnectionParametersHeader.RecoverableAckTimeout",
        "outside 500 to 120000 ms",
    ),
    constants.BAD_ACK_TIMEOUT: ("B-213", "ConnectionParametersHeader.AckTimeout", "outside 20000 to 120000 ms"),
    constants.BAD_OPERATING_SYSTEM: ("wire.md 5.2", "EstablishConnectionHeader.OperatingSystem", "RE is not 0x10"),
    constants.BAD_WINDOW_SIZE: ("B-106", "SessionHeader.WindowSize", "0 lets nothing through"),
    constants.BAD_ACK_NUMBER: ("wire.md 6", "OrderAckBody.TxSequenceNumber", "0 is not a number"),
    constants.BAD_PING_SIGNATURE: ("B-202", "PingPacket.Signature", "not 0x5548"),
    constants.BAD_QUEUE_TYPE: ("wire.md 2.6", "DebugHeader.Flags", "QT is neither 0 nor 1"),
    constants.BAD_ACK_COUNT: ("B-229", "SessionHeader.AckSequenceNumber", "acknowledges what was never sent"),
    constants.BAD_MESSAGE_COUNT: ("B-227", "SessionHeader.UserMsgSequenceNumber", "differs from what was received"),
    constants.NEED_MORE: ("B-429", "", "PacketSize ends inside it"),
    NOT_TERMINATED: ("B-431", "", "the text does not end at its one and only NUL"),
    EMPTY_NAME: ("B-431", "", "Count is below 4"),
    NO_SESSION_HEADER: ("B-174", "BaseHeader.Flags", "SH is not set in a SessionAck"),
    SESSION_ACK_LENGTH: ("B-433", "BaseHeader.PacketSize", "a SessionAck has 36 bytes"),
    PARAMETERS_LENGTH: ("B-433", "BaseHeader.PacketSize", "a ConnectionParameters packet has 32 bytes"),
    ESTABLISH_LENGTH: ("B-433", "BaseHeader.PacketSize", "an EstablishConnection packet has 572 bytes"),
    TRACE_ALONE: ("wire.md 2.1", "BaseHeader.Flags", "TR is set without DH"),
    NOT_ALIGNED: ("B-430", "BaseHeader.PacketSize", "the SessionHeader does not begin on a 4-byte boundary"),
    ACK_LENGTH: ("B-179", "MessagePropertiesHeader.MessageSize", "an acknowledgment's body has 36 bytes"),
    BODY_TOO_LONG: ("B-432", "MessagePropertiesHeader.AllocationBodySize", "goes beyond PacketSize"),
    SECURITY_TOO_LONG: ("B-432", "SecurityHeader.SecurityData", "the five sizes go beyond PacketSize"),
}

PLACES = (
    "BaseHeader", "InternalHeader", "SessionHeader", "TransactionHeader", "ConnectionParametersHeader", "UserHeader",
    "MessagePropertiesHeader", "SecurityHeader", "DebugHeader", "EstablishConnectionHeader", "OrderAckBody",
    "FinalAckBody", "PingPacket", "UserHeader.DestinationQueue", "UserHeader.AdminQueue", "UserHeader.ResponseQueue",
    "UserHeader.ConnectorType", "TransactionHeader.ConnectorQMGuid", "MessagePropertiesHeader.Label",
    "MessagePropertiesHeader.ExtensionData", "MessagePropertiesHeader.Padding",
)  # fmt: skip


def words(problem: int, place: "int | str") -> "tuple[str, str, str]":
    """Rule, field and reason. place: of PLACES, or its name; some problems need it."""
    rule, field, reason = PROBLEMS[problem]
    if not field:
        field = place if isinstance(place, str) else PLACES[place]
    return rule, field, reason
