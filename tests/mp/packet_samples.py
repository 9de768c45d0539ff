"""Packets that the tests on CPython and on MicroPython share: the captured frames, a message with everything in it."""

import json

import packet_build
from mqqb import build, core, guids, handshake, headers, names, parse, rare

SENDER = bytes(range(16))
RECEIVER = bytes(range(100, 116))
DIRECT = names.parse_format_name("DIRECT=TCP:10.0.0.5\\private$\\line1")
SID = bytes([1, 5, 0, 0, 0, 0, 0, 5, 21, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 232, 3, 0, 0])


def frames(path="tests/vectors.json"):
    """The eight captured frames: number -> bytes.

    The dump of frame 7 ends after 1650 of 2224 bytes. The 574 bytes behind are not from the document: the pattern that
    its body shows, and zeros as padding (vectors.md, rule 4).
    """
    with open(path) as file:
        document = json.load(file)
    result = {}
    for frame in document["frames"]:
        raw = bytes.fromhex(frame["raw_hex"])
        result[frame["frame"]] = raw if frame["raw_complete"] else raw + b"\x61\x00" * 286 + bytes(2)
    return result


def reparse(raw):
    """Read a packet or a ping and write it again."""
    return handshake.build_ping(handshake.parse_ping(raw)) if len(raw) == 24 else packet_build.build(parse.parse(raw))


def full_message():
    """A UserMessage with all optional headers, kinds of names, texts of odd length and bytes behind the last header."""
    raw = build.user_message(
        SENDER,
        77,
        DIRECT,
        b"reading 12.5",
        label="Tank 3",
        delivery="transactional",
        admin=headers.PrivateQueueFormatNameId(3),
        response=headers.PrivateQueueFormatName(RECEIVER, 5),
        extension=b"ext",
        journal=core.USER_JN,
        acknowledge=0x0F,
    )
    message = parse.parse(raw)
    message.user.connector_type = RECEIVER
    message.transaction.connector_qm_guid = SENDER
    message.transaction.fields[core.TX_ORDINAL] = 3
    message.transaction.fields[core.TX_TIME_STAMP] = 1700000000
    message.transaction.fields[core.TX_NUMBER] = 5
    message.transaction.fields[core.TX_PREVIOUS] = 4
    message.security = headers.SecurityHeader()
    message.security.fields[core.SECURITY_FLAGS] = 0x0001
    message.security.security_id = SID
    message.security.encryption_key = b"key"
    message.security.signature = b"signature"
    message.security.sender_cert = b"certificate"
    message.security.provider_info = b"\x01\0\0\0P\0\0\0"
    message.debug = rare.DebugHeader()
    message.debug.queue_identifier = RECEIVER
    message.soap = rare.SoapHeader("<head/>", "<body/>!")
    message.multi_queue_format = rare.MultiQueueFormatHeader(
        rare.MQFAddressHeader(
            [
                DIRECT,
                headers.PublicQueueFormatName(RECEIVER),
                headers.PrivateQueueFormatName(SENDER, 9),
                guids.DistributionListFormatName(SENDER),
            ]
        ),
        rare.MQFAddressHeader(),
        rare.MQFAddressHeader([DIRECT]),
        b"sig",
    )
    message.session = headers.SessionHeader()
    message.session.fields[core.ACKS_SENT] = 1
    message.session.fields[core.ACKS_WINDOW_SIZE] = 64
    message.trailing = b"newer peers add headers."
    return message


def outcome(raw):
    """What parse makes of bytes: "packet", "malformed", "more". Anything else it does is an error."""
    try:
        parse.parse(raw)
    except core.Malformed as error:
        return "malformed" if error.rule and error.field and error.reason else "malformed, but why?"
    except parse.NeedMore as more:
        return "more" if len(raw) < more.total <= core.PACKET_SIZE_MAX + 16 else "more, but how much?"
    return "packet"
