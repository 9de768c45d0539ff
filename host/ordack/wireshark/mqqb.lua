-- Dissector of the MSMQ binary protocol, MS-MQQB, for Wireshark and tshark: sessions on TCP port 1801, pings on UDP port 3527.
--
-- Every field has the name that MS-MQQB and `ordack decode` give it: mqqb.UserHeader.MessageID. What breaks a rule is
-- marked with an expert info that says what `ordack decode` says: field, reason, rule. Where nothing is in doubt about
-- what follows, it is read nevertheless. "Decode As" reads other ports. Written for the Lua of older and newer versions of
-- Wireshark, 5.2 to 5.4.

local mqqb = Proto("mqqb", "Message Queuing Binary Protocol (MS-MQQB)")
local mqqb_ping = Proto("mqqb_ping", "Message Queuing Ping (MS-MQQB)")

local BASE_SIZE, SESSION_SIZE, PING_SIZE, ACK_BODY_SIZE = 16, 16, 24, 36
local PACKET_SIZE_MAX = 0x400000
local SIGNATURE = 0x524F494C -- "LIOR"
local FOREVER = 0xFFFFFFFF
local ELEMENTS_SHOWN = 1000 -- of a list of names: Wireshark ends a dissection that makes a million items

-- ---- what values mean ---------------------------------------------------------------------------

local CLASSES = {
    [0x0000] = "NORMAL", [0x0001] = "REPORT", [0x0002] = "ACK_REACH_QUEUE", [0x00FF] = "ORDER_ACK",
    [0x4000] = "ACK_RECEIVE", [0x8000] = "NACK_BAD_DST_Q", [0x8001] = "NACK_DELETED",
    [0x8002] = "NACK_REACH_QUEUE_TIMEOUT", [0x8003] = "NACK_Q_EXCEED_QUOTA", [0x8004] = "NACK_ACCESS_DENIED",
    [0x8005] = "NACK_HOP_COUNT_EXCEEDED", [0x8006] = "NACK_BAD_SIGNATURE", [0x8007] = "NACK_BAD_ENCRYPTION",
    [0x8009] = "NACK_NOT_TRANSACTIONAL_Q", [0x800A] = "NACK_NOT_TRANSACTIONAL_MSG",
    [0x800B] = "NACK_UNSUPPORTED_CRYPTO_PROVIDER", [0xC000] = "NACK_Q_DELETED", [0xC001] = "NACK_Q_PURGED",
    [0xC002] = "NACK_RECEIVE_TIMEOUT", [0xC004] = "NACK_RECEIVE_REJECTED",
}
local ORDER_ACK, FINAL_ACK = 0x00FF, 0x4000
local BODY_TYPES = {
    [0] = "VT_EMPTY", [1] = "VT_NULL", [2] = "VT_I2", [3] = "VT_I4", [4] = "VT_R4", [5] = "VT_R8", [6] = "VT_CY",
    [7] = "VT_DATE", [8] = "VT_BSTR", [0x0B] = "VT_BOOL", [0x10] = "VT_I1", [0x11] = "VT_UI1", [0x12] = "VT_UI2",
    [0x13] = "VT_UI4", [0x14] = "VT_I8", [0x15] = "VT_UI8", [0x1E] = "VT_LPSTR", [0x1F] = "VT_LPWSTR",
    [0x41] = "VT_BLOB", [0x48] = "VT_CLSID", [0x300] = "BinaryMessageFormatter", [0x1011] = "VT_VECTOR|VT_UI1",
    [0x2011] = "VT_ARRAY|VT_UI1",
}
local PRIVACY_LEVELS = { [0] = "body in clear", [1] = "Base", [3] = "Enhanced", [5] = "Advanced" }
local HASHES = {
    [0x8001] = "MD2", [0x8002] = "MD4", [0x8003] = "MD5", [0x8004] = "SHA-1", [0x800C] = "SHA-256", [0x800E] = "SHA-512",
}
local CIPHERS = { [0x6602] = "RC2", [0x660E] = "AES 128", [0x660F] = "AES 192", [0x6610] = "AES 256", [0x6801] = "RC4" }
local PACKET_TYPES = { [1] = "SessionAck", [2] = "EstablishConnection", [3] = "ConnectionParameters" }
local DELIVERY_MODES = { [0] = "express", [1] = "recoverable" }
local SENDER_ID_TYPES = { [0] = "no sender", [1] = "SID", [2] = "queue manager GUID" }
local QUEUE_TYPES = { [0] = "no queue", [1] = "public queue" }
local DESTINATIONS = { [0] = "none", [3] = "private", [5] = "public", [7] = "direct" }
local ADMINS = {
    [0] = "none", [2] = "private, on the source host", [3] = "private, on the destination host", [5] = "public",
    [6] = "private, on another host", [7] = "direct",
}
local RESPONSES = {
    [0] = "none", [1] = "the AdminQueue", [2] = "private, on the source host", [3] = "private, on the destination host",
    [4] = "private, on the host of the AdminQueue", [5] = "public", [6] = "private, on another host", [7] = "direct",
}
local FORMAT_TYPES = { [1] = "public", [2] = "private", [3] = "direct", [6] = "distribution list" }
local SECTION_IDS = { [0x0320] = "header section", [0x0384] = "body section" }
local LIST_IDS = { [0x0064] = "destination", [0x00C8] = "administration", [0x012C] = "response" }
local NOTES = { -- what is said behind a number
    milliseconds = function() return " ms" end,
    duration = function(seconds) return seconds == FOREVER and " (for ever)" or " s" end,
    time = function(seconds) return os.date("! (%Y-%m-%d %H:%M:%S UTC)", seconds) end,
}
local NAME_KINDS = { [2] = "id", [3] = "id", [4] = "id", [5] = "public", [6] = "private", [7] = "direct" } -- by selector

-- ---- fields -------------------------------------------------------------------------------------

local F = {} -- path -> ProtoField
local ABBREVIATION = { [mqqb] = "mqqb.", [mqqb_ping] = "mqqb_ping." }
local registered = { [mqqb] = {}, [mqqb_ping] = {} }

-- A field of this path, whose last part is the name that is shown; with a meaning behind it, if there is one.
local function field(proto, kind, path, meaning, ...)
    local name = path:match("[^.]+$")
    local made = ProtoField[kind](ABBREVIATION[proto] .. path, meaning and name .. ", " .. meaning or name, ...)
    F[path] = made
    table.insert(registered[proto], made)
end

local WIDTHS = { u8 = 1, u16 = 2, u32 = 4, guid = 16 }
local KINDS = { u8 = "uint8", u16 = "uint16", u32 = "uint32" }

-- A fixed part. rows: {name, type}, and by name: hex; values: what they mean; says: of NOTES; bits: {name, width, meaning,
-- values}, lowest first. type: u8, u16, u32, guid or a number of bytes. Returns what `read_part` takes.
local function layout(proto, header, rows)
    local part = { header = header, size = 0, proto = proto }
    for _, row in ipairs(rows) do
        local path = header .. "." .. row[1]
        local entry = { name = row[1], path = path, at = part.size, size = WIDTHS[row[2]] or row[2], bits = {}, says = row.says }
        entry.integer = KINDS[row[2]] ~= nil
        if row[2] == "guid" then
            field(proto, "guid", path)
        elseif not entry.integer then
            field(proto, "bytes", path)
        else
            field(proto, KINDS[row[2]], path, nil, (row.bits or row.hex) and base.HEX or base.DEC, row.values)
        end
        local shift = 0
        for _, bit in ipairs(row.bits or {}) do
            local mask = (2 ^ bit[2] - 1) * 2 ^ shift
            local child = path .. "." .. bit[1]
            if bit[2] == 1 and not bit[4] then
                field(proto, "bool", child, bit[3], 8 * entry.size, { "Set", "Not set" }, mask)
            else
                field(proto, KINDS[row[2]], child, bit[3], base.DEC, bit[4], mask)
            end
            table.insert(entry.bits, child)
            shift = shift + bit[2]
        end
        table.insert(part, entry)
        part.size = part.size + entry.size
    end
    return part
end

for _, name in ipairs({
    "BaseHeader", "InternalHeader", "EstablishConnectionHeader", "ConnectionParametersHeader", "SessionHeader",
    "UserHeader", "TransactionHeader", "SecurityHeader", "MessagePropertiesHeader", "OrderAckBody", "FinalAckBody",
    "DebugHeader", "SoapHeader", "MultiQueueFormatHeader",
}) do
    field(mqqb, "none", name)
end
field(mqqb, "string", "Packet", "kind of this packet")
field(mqqb, "bytes", "Trailing", "bytes behind the last known header")
field(mqqb, "bytes", "Unread", "bytes in which no packet begins")

local BASE = layout(mqqb, "BaseHeader", {
    { "VersionNumber", "u8", hex = true },
    { "Reserved", "u8", hex = true },
    { "Flags", "u16", bits = {
        { "PR", 3, "priority" }, { "IN", 1, "internal packet" }, { "SH", 1, "SessionHeader present" },
        { "DH", 1, "DebugHeader present" }, { "X9", 1 }, { "X8", 1 }, { "TR", 1, "tracing" }, { "X6", 1 }, { "X5", 1 },
        { "X4", 1 }, { "X3", 1 }, { "X2", 1 }, { "X1", 1 }, { "X0", 1 },
    } },
    { "Signature", "u32", hex = true, values = { [SIGNATURE] = "LIOR" } },
    { "PacketSize", "u32" },
    { "TimeToReachQueue", "u32", says = "duration" },
})
local INTERNAL = layout(mqqb, "InternalHeader", {
    { "Reserved", "u16", hex = true },
    { "Flags", "u16", bits = { { "PT", 4, "packet type", PACKET_TYPES }, { "CS", 1, "refused" }, { "X5_X15", 11 } } },
})
local ESTABLISH = layout(mqqb, "EstablishConnectionHeader", {
    { "ClientGuid", "guid" },
    { "ServerGuid", "guid" },
    { "TimeStamp", "u32", says = "milliseconds" },
    { "OperatingSystem", "u16", bits = {
        { "RE", 8, "must be 16" }, { "SE", 1, "no ping was sent" }, { "OS", 1, "server" },
        { "QS", 1, "guaranteed quality of service" }, { "X11_X15", 5 },
    } },
    { "Reserved", "u16", hex = true },
    { "Padding", 512 },
})
local PARAMETERS = layout(mqqb, "ConnectionParametersHeader", {
    { "RecoverableAckTimeout", "u32", says = "milliseconds" }, { "AckTimeout", "u32", says = "milliseconds" },
    { "Reserved", "u16", hex = true }, { "WindowSize", "u16" },
})
local SESSION = layout(mqqb, "SessionHeader", {
    { "AckSequenceNumber", "u16" }, { "RecoverableMsgAckSeqNumber", "u16" },
    { "RecoverableMsgAckFlags", "u32", hex = true }, { "UserMsgSequenceNumber", "u16" },
    { "RecoverableMsgSeqNumber", "u16" }, { "WindowSize", "u16" }, { "Reserved", "u16", hex = true },
})
local USER = layout(mqqb, "UserHeader", {
    { "SourceQueueManager", "guid" },
    { "QueueManagerAddress", "guid" },
    { "TimeToBeReceived", "u32", says = "duration" },
    { "SentTime", "u32", says = "time" },
    { "MessageID", "u32" },
    { "Flags", "u32", bits = {
        { "RC", 5, "routing hops" }, { "DM", 2, "delivery mode", DELIVERY_MODES }, { "X1", 1 },
        { "JN", 1, "negative source journaling" }, { "JP", 1, "positive source journaling" },
        { "DQ", 3, "type of DestinationQueue", DESTINATIONS }, { "AQ", 3, "type of AdminQueue", ADMINS },
        { "RQ", 3, "type of ResponseQueue", RESPONSES }, { "SH", 1, "SecurityHeader present" },
        { "TH", 1, "TransactionHeader present" }, { "MP", 1, "MessagePropertiesHeader present" },
        { "CQ", 1, "ConnectorType present" }, { "MQ", 1, "MultiQueueFormatHeader present" }, { "X2", 1 },
        { "AH", 1, "came in over HTTP" }, { "X3", 2 }, { "HH", 1, "SoapHeader present" }, { "X4", 3 },
    } },
})
field(mqqb, "guid", "UserHeader.ConnectorType")
local QUEUES = { "DestinationQueue", "AdminQueue", "ResponseQueue" }
for _, queue in ipairs(QUEUES) do
    local path = "UserHeader." .. queue
    field(mqqb, "string", path)
    field(mqqb, "uint16", path .. ".Count")
    field(mqqb, "string", path .. ".DirectFormatName")
    field(mqqb, "bytes", path .. ".Padding")
    field(mqqb, "guid", path .. ".PublicQueueIdentifier")
    if queue ~= "DestinationQueue" then field(mqqb, "guid", path .. ".SourceQueueManager") end
    field(mqqb, "uint32", path .. ".PrivateQueueIdentifier", nil, base.HEX)
end
local SEQUENCE_ID = { { "Ordinal", "u32" }, { "TimeStamp", "u32" } }
local TRANSACTION = layout(mqqb, "TransactionHeader", {
    { "Flags", "u32", bits = {
        { "CG", 1, "ConnectorQMGuid present" }, { "FA", 1, "FinalAck wanted" }, { "FM", 1, "first of its transaction" },
        { "LM", 1, "last of its transaction" }, { "ID", 20, "transaction" }, { "X1_X8", 8 },
    } },
    { "TxSequenceID", 8 }, { "TxSequenceNumber", "u32" }, { "PreviousTxSequenceNumber", "u32" },
})
field(mqqb, "guid", "TransactionHeader.ConnectorQMGuid")
local SECURITY = layout(mqqb, "SecurityHeader", {
    { "Flags", "u16", bits = {
        { "ST", 4, "sender id type", SENDER_ID_TYPES }, { "AU", 1, "authenticated" }, { "EB", 1, "body is encrypted" },
        { "DE", 1, "default cryptographic provider" }, { "AI", 1, "SecurityData present" },
        { "AS", 4, "authentication signature" }, { "X12_X15", 4 },
    } },
    { "SenderIdSize", "u16" }, { "EncryptionKeySize", "u16" }, { "SignatureSize", "u16" }, { "SenderCertSize", "u32" },
    { "ProviderInfoSize", "u32" },
})
local DATA = "SecurityHeader.SecurityData"
field(mqqb, "none", DATA)
field(mqqb, "bytes", DATA .. ".SecurityID")
field(mqqb, "string", DATA .. ".SecurityID_text")
local SID = layout(mqqb, DATA .. ".SecurityID", {
    { "Revision", "u8" }, { "SubAuthorityCount", "u8" }, { "IdentifierAuthority", 6 },
})
field(mqqb, "uint32", DATA .. ".SecurityID.SubAuthority")
field(mqqb, "bytes", DATA .. ".EncryptionKey")
field(mqqb, "uint32", DATA .. ".EncryptionKey.SessionKeyAlgorithm", nil, base.HEX, CIPHERS)
field(mqqb, "bytes", DATA .. ".EncryptionKey.SessionKey")
field(mqqb, "bytes", DATA .. ".Signature")
field(mqqb, "bytes", DATA .. ".SenderCert")
field(mqqb, "none", DATA .. ".ProviderInfo")
field(mqqb, "uint32", DATA .. ".ProviderInfo.ProviderType")
field(mqqb, "string", DATA .. ".ProviderInfo.ProviderName")
local PROPERTIES = layout(mqqb, "MessagePropertiesHeader", {
    { "Flags", "u8", bits = {
        { "PA", 1, "tell that it reached the queue" }, { "PR", 1, "tell that an application took it" },
        { "NA", 1, "tell that it did not reach the queue" }, { "NR", 1, "tell that no application took it" }, { "X", 4 },
    } },
    { "LabelLength", "u8" },
    { "MessageClass", "u16", hex = true, values = CLASSES },
    { "CorrelationID", 20 },
    { "BodyType", "u32", hex = true, values = BODY_TYPES },
    { "ApplicationTag", "u32" },
    { "MessageSize", "u32" },
    { "AllocationBodySize", "u32" },
    { "PrivacyLevel", "u32", values = PRIVACY_LEVELS },
    { "HashAlgorithm", "u32", hex = true, values = HASHES },
    { "EncryptionAlgorithm", "u32", hex = true, values = CIPHERS },
    { "ExtensionSize", "u32" },
})
local IDENTIFIER = layout(mqqb, "MessagePropertiesHeader.CorrelationID", {
    { "QueueManagerGuid", "guid" }, { "Ordinal", "u32" },
})
field(mqqb, "string", "MessagePropertiesHeader.Label")
field(mqqb, "bytes", "MessagePropertiesHeader.ExtensionData")
field(mqqb, "bytes", "MessagePropertiesHeader.MessageBody")
field(mqqb, "bytes", "MessagePropertiesHeader.Padding")
local ORDER_ACK_BODY = layout(mqqb, "OrderAckBody", {
    { "TxSequenceID", 8 }, { "TxSequenceNumber", "u32" }, { "TxPreviousSequenceNumber", "u32" }, { "Reserved", 20 },
})
local FINAL_ACK_BODY = layout(mqqb, "FinalAckBody", {
    { "TxSequenceID", 8 }, { "TxSequenceNumber", "u32" }, { "PreviousTxSequenceNumber", "u32" },
    { "SourceGUID", "guid" }, { "MessageID", "u32" },
})
local SEQUENCE_IDS = {} -- the TxSequenceID of each of the three
for _, part in ipairs({ TRANSACTION, ORDER_ACK_BODY, FINAL_ACK_BODY }) do
    SEQUENCE_IDS[part.header .. ".TxSequenceID"] = layout(mqqb, part.header .. ".TxSequenceID", SEQUENCE_ID)
end
local DEBUG = layout(mqqb, "DebugHeader", {
    { "Flags", "u16", bits = { { "QT", 2, "type of queue", QUEUE_TYPES }, { "X2_X15", 14 } } },
    { "Reserved", "u16", hex = true },
})
field(mqqb, "guid", "DebugHeader.QueueIdentifier")
for _, half in ipairs({
    { "HeaderSectionID", "Reserved", "HeaderDataLength", "Header" },
    { "BodySectionID", "Reserved1", "BodyDataLength", "Body" },
}) do
    field(mqqb, "uint16", "SoapHeader." .. half[1], nil, base.HEX, SECTION_IDS)
    field(mqqb, "uint16", "SoapHeader." .. half[2], nil, base.HEX)
    field(mqqb, "uint32", "SoapHeader." .. half[3])
    field(mqqb, "string", "SoapHeader." .. half[4])
end
local LISTS = { { "Destination", 0x0064 }, { "Administration", 0x00C8 }, { "Response", 0x012C } }
for _, list in ipairs(LISTS) do
    local path = "MultiQueueFormatHeader." .. list[1]
    field(mqqb, "none", path)
    list.part = layout(mqqb, path, {
        { "HeaderSize", "u32" }, { "HeaderID", "u16", hex = true, values = LIST_IDS }, { "Reserved", "u16", hex = true },
        { "ElementCount", "u32" },
    })
    path = path .. ".FormatNameList"
    field(mqqb, "none", path)
    field(mqqb, "uint16", path .. ".FormatType", nil, base.DEC, FORMAT_TYPES)
    field(mqqb, "guid", path .. ".PublicQueueIdentifier")
    field(mqqb, "guid", path .. ".SourceQueueManager")
    field(mqqb, "uint32", path .. ".PrivateQueueIdentifier", nil, base.HEX)
    field(mqqb, "string", path .. ".DirectFormatName")
    field(mqqb, "guid", path .. ".DistributionList")
end
field(mqqb, "none", "MultiQueueFormatHeader.Signature")
local LIST_SIGNATURE = layout(mqqb, "MultiQueueFormatHeader.Signature", {
    { "ID", "u16", hex = true }, { "Reserved", "u16", hex = true }, { "Size", "u32" },
})
field(mqqb, "bytes", "MultiQueueFormatHeader.Signature.Signature")
local PING = layout(mqqb_ping, "PingPacket", {
    { "Flags", "u16", bits = { { "RC", 1, "no server" }, { "RF", 1, "would refuse a session" }, { "X", 14 } } },
    { "Signature", "u16", hex = true, values = { [0x5548] = "HU" } },
    { "Cookie", "u32" },
    { "QMGuid", "guid" },
})
mqqb.fields = registered[mqqb]
mqqb_ping.fields = registered[mqqb_ping]

local malformed = ProtoExpert.new("mqqb.malformed", "Malformed packet", expert.group.MALFORMED, expert.severity.ERROR)
local incomplete = ProtoExpert.new("mqqb.incomplete", "Incomplete packet", expert.group.UNDECODED, expert.severity.WARN)
local refused = ProtoExpert.new("mqqb.refused", "Refused", expert.group.RESPONSE_CODE, expert.severity.WARN)
mqqb.experts = { malformed, incomplete, refused }
local malformed_ping =
    ProtoExpert.new("mqqb_ping.malformed", "Malformed ping", expert.group.MALFORMED, expert.severity.ERROR)
mqqb_ping.experts = { malformed_ping }

-- ---- the rules of a fixed part: {field, reason, rule, is it broken?, does that end the reading?} -------------------

local function bits_of(value, shift, width) return math.floor(value / 2 ^ shift) % 2 ^ width end

local function has(value, bit) return bits_of(value, bit, 1) == 1 end

local RULES = {
    [BASE] = {
        { "VersionNumber", "not 0x10", "B-168", function(v) return v.VersionNumber ~= 0x10 end, true },
        { "Signature", "not LIOR", "B-168", function(v) return v.Signature ~= SIGNATURE end, true },
        { "PacketSize", "too small for the kind of packet, or above 4 MiB", "B-429", function(v)
            return v.PacketSize < (has(v.Flags, 3) and 20 or 120) or v.PacketSize > PACKET_SIZE_MAX
        end, true },
    },
    [INTERNAL] = {
        { "Flags", "PT is not 1, 2 or 3", "B-170", function(v) return not PACKET_TYPES[v.Flags % 16] end, true },
        { "Flags", "CS is set in a SessionAck", "wire.md 5.4", function(v) return v.Flags % 32 == 17 end },
    },
    [ESTABLISH] = {
        { "OperatingSystem", "RE is not 0x10", "wire.md 5.2", function(v) return v.OperatingSystem % 256 ~= 16 end },
    },
    [PARAMETERS] = {
        { "RecoverableAckTimeout", "outside 500 to 120000 ms", "B-213", function(v)
            return v.RecoverableAckTimeout < 500 or v.RecoverableAckTimeout > 120000
        end },
        { "AckTimeout", "outside 20000 to 120000 ms", "B-213", function(v)
            return v.AckTimeout < 20000 or v.AckTimeout > 120000
        end },
    },
    [SESSION] = {
        { "WindowSize", "0 lets nothing through", "B-106", function(v) return v.WindowSize == 0 end },
    },
    [USER] = {
        { "Flags", "RC is above 0x1D", "wire.md 2.2", function(v) return bits_of(v.Flags, 0, 5) > 0x1D end },
        { "Flags", "DM is neither 0 nor 1", "wire.md 2.2", function(v) return bits_of(v.Flags, 5, 2) > 1 end },
        { "Flags", "DQ is not 0, 3, 5 or 7", "B-171", function(v) return not DESTINATIONS[bits_of(v.Flags, 10, 3)] end, true },
        { "Flags", "AQ is 1 or 4", "B-171", function(v) return not ADMINS[bits_of(v.Flags, 13, 3)] end, true },
        { "Flags", "TH is set in an express message", "B-173", function(v)
            return has(v.Flags, 20) and bits_of(v.Flags, 5, 2) == 0
        end },
        { "Flags", "MP is 0", "wire.md 2.5", function(v) return not has(v.Flags, 21) end, true },
        { "Flags", "AH is set: it never is on the wire", "behaviour.md 26", function(v) return has(v.Flags, 25) end },
    },
    [TRANSACTION] = {
        { "TxSequenceNumber", "0 is not a number", "wire.md 2.3", function(v) return v.TxSequenceNumber == 0 end },
        { "PreviousTxSequenceNumber", "nothing can follow 0xFFFFFFFF", "wire.md 2.3", function(v)
            return v.PreviousTxSequenceNumber == 0xFFFFFFFF
        end },
    },
    [SECURITY] = {
        { "Flags", "ST is not 0, 1 or 2", "wire.md 2.4", function(v) return not SENDER_ID_TYPES[v.Flags % 16] end, true },
        { "SenderCertSize", "above 0xFFFF, or all five sizes are 0", "wire.md 2.4", function(v)
            local sum = v.SenderIdSize + v.EncryptionKeySize + v.SignatureSize + v.SenderCertSize + v.ProviderInfoSize
            return v.SenderCertSize > 0xFFFF or sum == 0
        end },
    },
    [PROPERTIES] = {
        { "LabelLength", "above 250", "B-431", function(v) return v.LabelLength > 250 end },
        { "MessageSize", "above AllocationBodySize", "B-432", function(v) return v.MessageSize > v.AllocationBodySize end },
    },
    [DEBUG] = {
        { "Flags", "QT is neither 0 nor 1", "wire.md 2.6", function(v) return not QUEUE_TYPES[v.Flags % 4] end, true },
    },
    [ORDER_ACK_BODY] = {
        { "TxSequenceNumber", "0 is not a number", "wire.md 6", function(v) return v.TxSequenceNumber == 0 end },
    },
    [FINAL_ACK_BODY] = {
        { "TxSequenceNumber", "0 is not a number", "wire.md 6", function(v) return v.TxSequenceNumber == 0 end,
            says = "OrderAckBody" },
    },
    [PING] = {
        { "Signature", "not 0x5548", "B-202", function(v) return v.Signature ~= 0x5548 end },
    },
}

-- ---- reading ------------------------------------------------------------------------------------

local STOP = {} -- thrown where nothing tells how to go on
local ENDS_INSIDE = "PacketSize ends inside it"

-- What is read: tvb, at, limit (where PacketSize ends it), there (where the captured bytes end), item (of the packet),
-- tree (where items go; nil: nothing is shown, this is a trial), problem (the first rule that was broken).
local function told(p, item, where, reason, rule, ends)
    local text = where .. ": " .. reason .. " (" .. rule .. ")"
    p.problem = p.problem or text
    if p.tree then (item or p.item):add_proto_expert_info(p.expert, text) end
    if ends then error(STOP, 0) end
end

-- The same bytes from `at` on, of which nothing is shown.
local function trial(p, at) return { tvb = p.tvb, at = at, limit = p.limit, there = p.there } end

-- So many bytes are needed from p.at on.
local function need(p, size, where)
    if p.at + size > p.limit then told(p, p.tree, where, ENDS_INSIDE, "B-429", true) end
    if p.at + size > p.there then error(STOP, 0) end -- which has been told of the whole packet
end

local function align4(size) return size + -size % 4 end

local function add(p, path, at, size)
    return p.tree and p.tree:add_le(F[path], p.tvb:range(at, size))
end

local function add_text(p, path, at, size, text)
    return p.tree and p.tree:add(F[path], p.tvb:range(at, size), text)
end

-- Bytes from p.at on; none are no item.
local function take_bytes(p, path, size, where)
    if size == 0 then return nil end
    need(p, size, where or path)
    local item = add(p, path, p.at, size)
    p.at = p.at + size
    return item
end

local function take_word(p, path, size)
    local value = p.tvb:range(p.at, size):le_uint()
    add(p, path, p.at, size)
    p.at = p.at + size
    return value
end

-- Items that are made by `read` go below `item`.
local function below(p, item, read)
    local tree = p.tree
    p.tree = tree and item
    local ok, result = pcall(read)
    p.tree = tree
    if not ok then error(result, 0) end
    return result
end

-- From `begin` to the end of what is there; nothing if padding that is missing should come before `begin`.
local function range_within(p, begin)
    local stop = math.min(p.limit, p.there)
    begin = math.min(begin, stop)
    return p.tvb:range(begin, stop - begin)
end

-- A header as an item of its own, which ends where reading ends. Returns what read does.
local function section(p, path, read)
    local begin = p.at
    if not p.tree then return read() end
    local item = p.tree:add(F[path], range_within(p, begin))
    return below(p, item, function()
        local result = read(item)
        item:set_len(math.max(0, math.min(p.at, p.limit, p.there) - begin))
        return result
    end)
end

-- The fields of a fixed part, and which of its rules are broken. where: what is said to be cut short.
local function read_part(p, part, where)
    need(p, part.size, where or part.header)
    local values, items = {}, {}
    for _, entry in ipairs(part) do
        local at = p.at + entry.at
        local item = add(p, entry.path, at, entry.size)
        items[entry.name] = item
        if entry.integer then values[entry.name] = p.tvb:range(at, entry.size):le_uint() end
        if item and entry.says then item:append_text(NOTES[entry.says](values[entry.name])) end
        for _, child in ipairs(item and entry.bits or {}) do
            item:add_le(F[child], p.tvb:range(at, entry.size))
        end
        local inner = SEQUENCE_IDS[entry.path]
        if inner then
            local after = p.at
            p.at = at
            below(p, item, function() read_part(p, inner) end)
            p.at = after
        end
    end
    for _, rule in ipairs(RULES[part] or {}) do
        if rule[4](values) then
            told(p, items[rule[1]], (rule.says or part.header) .. "." .. rule[1], rule[2], rule[3], rule[5])
        end
    end
    p.at = p.at + part.size
    return values, items
end

-- Where the first WCHAR 0 of a text is, from place `from` (even) on; nil: there is none.
local function find_nul(raw, from)
    local found = raw:find("\0\0", from + 1, true)
    while found and found % 2 == 0 do -- places of strings begin with 1
        found = raw:find("\0\0", found + 1, true)
    end
    return found and found - 1
end

-- The text of these WCHARs, which should have one NUL, at the end.
local function take_text(p, path, size, where)
    need(p, size, where)
    local range = p.tvb:range(p.at, size)
    local nul = find_nul(range:raw(), 0)
    local whole = size % 2 == 0 and nul == size - 2
    local length = nul or size - size % 2
    local text = length > 0 and p.tvb:range(p.at, length):le_ustring() or ""
    local item = add_text(p, path, p.at, size, text)
    p.at = p.at + size
    if not whole then told(p, item, where, "the text does not end at its one and only NUL", "B-431") end
    return text
end

local function guid_text(tvb, at)
    local raw = tvb:range(at + 8, 8):bytes():tohex()
    local head = tvb:range(at, 8)
    return string.format("%08X-%04X-%04X-%s-%s", head:range(0, 4):le_uint(), head:range(4, 2):le_uint(),
        head:range(6, 2):le_uint(), raw:sub(1, 4), raw:sub(5))
end

-- ---- UserHeader ---------------------------------------------------------------------------------

-- The parts of a queue name. host: GUID of the queue manager that an identifier alone belongs to. Returns its text, and
-- whether it is the order queue.
local function read_name_parts(p, path, kind, host)
    local begin = p.at
    if kind == "direct" then
        need(p, 2, path)
        local count = take_word(p, path .. ".Count", 2)
        if count < 4 then told(p, nil, path, "Count is below 4", "B-431", true) end
        local name = take_text(p, path .. ".DirectFormatName", count, path)
        take_bytes(p, path .. ".Padding", math.min(-(2 + count) % 4, p.limit - p.at, p.there - p.at))
        p.at = begin + align4(2 + count)
        local protocol, rest = name:upper():match("^(%u%u%u:)[^\\]+(.*)$")
        local is_order = (protocol == "TCP:" or protocol == "SPX:") and rest == "\\PRIVATE$\\ORDER_QUEUE$"
        return "DIRECT=" .. name, is_order
    end
    need(p, kind == "id" and 4 or kind == "private" and 20 or 16, path)
    if kind == "public" then
        take_bytes(p, path .. ".PublicQueueIdentifier", 16)
        return "PUBLIC=" .. guid_text(p.tvb, begin), false
    end
    if kind == "private" then
        host = guid_text(p.tvb, begin)
        take_bytes(p, path .. ".SourceQueueManager", 16)
    end
    local number = take_word(p, path .. ".PrivateQueueIdentifier", 4)
    return string.format("PRIVATE=%s\\%08X", host, number), kind == "id" and number == 4
end

-- A queue name of a UserHeader, as an item that has its text.
local function read_name(p, queue, kind, host)
    local path, begin = "UserHeader." .. queue, p.at
    local ok, text, is_order = pcall(read_name_parts, trial(p, begin), path, kind, host)
    if not ok and text ~= STOP then error(text, 0) end
    local item = p.tree and p.tree:add(F[path], range_within(p, begin), ok and text or "")
    below(p, item, function() read_name_parts(p, path, kind, host) end)
    if item then item:set_len(math.max(0, math.min(p.at, p.limit, p.there) - begin)) end
    return text, is_order
end

local function read_user(p, message)
    local begin = p.at
    local values = read_part(p, USER)
    message.user = values
    local source, address = guid_text(p.tvb, begin), guid_text(p.tvb, begin + 16)
    local hosts = { [2] = source, [3] = address, [4] = "00000000-0000-0000-0000-000000000000" }
    for index, queue in ipairs(QUEUES) do
        local selector = bits_of(values.Flags, 7 + 3 * index, 3)
        local kind = NAME_KINDS[selector]
        if kind then
            local text, order = read_name(p, queue, kind, hosts[selector])
            if index == 1 then message.destination, message.order = text, order end
        end
    end
    if has(values.Flags, 22) then take_bytes(p, "UserHeader.ConnectorType", 16) end
end

-- ---- TransactionHeader, SecurityHeader ----------------------------------------------------------

local function read_transaction(p, message)
    message.transaction = read_part(p, TRANSACTION)
    if has(message.transaction.Flags, 0) then take_bytes(p, "TransactionHeader.ConnectorQMGuid", 16) end
end

local function read_sid(p, item, size)
    local begin = p.at
    local text = string.format("S-%d-%d", p.tvb:range(begin, 1):uint(), p.tvb:range(begin + 2, 6):uint64():tonumber())
    below(p, item, function()
        read_part(p, SID)
        while p.at < begin + size do
            text = text .. string.format("-%d", take_word(p, DATA .. ".SecurityID.SubAuthority", 4))
        end
    end)
    return text
end

local function read_sender(p, kind, size)
    local begin = p.at
    local item = take_bytes(p, DATA .. ".SecurityID", size)
    local fits, text
    if kind == 1 then
        fits = size >= 8 and p.tvb:range(begin, 1):uint() == 1 and p.tvb:range(begin + 1, 1):uint() <= 15
        fits = fits and size == 8 + 4 * p.tvb:range(begin + 1, 1):uint()
        p.at = begin
        text = fits and read_sid(p, item, size)
    else
        fits = size == (kind == 2 and 16 or 0)
        text = fits and kind == 2 and "{" .. guid_text(p.tvb, begin) .. "}"
    end
    p.at = begin + size
    if not fits then told(p, item, "SecurityHeader.SecurityID", "not what ST announces", "wire.md 2.4") end
    if text then
        local shown = add_text(p, DATA .. ".SecurityID_text", begin, size, text)
        if shown then shown:set_generated() end
    end
end

local function read_key(p, size)
    local begin = p.at
    local item = take_bytes(p, DATA .. ".EncryptionKey", size)
    if size > 12 and p.tvb:range(begin, 4):le_uint() == 0x0201 then -- a SIMPLEBLOB
        p.at = begin + 4
        below(p, item, function()
            take_word(p, DATA .. ".EncryptionKey.SessionKeyAlgorithm", 4)
            p.at = begin + 12
            take_bytes(p, DATA .. ".EncryptionKey.SessionKey", size - 12)
        end)
    end
end

local function read_provider(p, size)
    local path = DATA .. ".ProviderInfo"
    local where = "SecurityHeader.ProviderInfo"
    local item = add(p, path, p.at, size)
    if size < 6 then
        told(p, item, where, "too short for a type and a name", "wire.md 2.4")
        p.at = p.at + size
        return
    end
    below(p, item, function()
        take_word(p, path .. ".ProviderType", 4)
        take_text(p, path .. ".ProviderName", size - 4, where)
    end)
end

local function read_security(p)
    local values, items = read_part(p, SECURITY)
    local sizes = { values.SenderIdSize, values.EncryptionKeySize, values.SignatureSize, values.SenderCertSize,
        values.ProviderInfoSize }
    local total = 0
    for _, size in ipairs(sizes) do total = total + align4(size) end
    if p.at + total > p.limit then
        told(p, items.Flags, "SecurityHeader.SecurityData", "the five sizes go beyond PacketSize", "B-432", true)
    end
    need(p, total, "SecurityHeader.SecurityData")
    local readers = {
        function(size) read_sender(p, values.Flags % 16, size) end,
        function(size) read_key(p, size) end,
        function(size) take_bytes(p, DATA .. ".Signature", size) end,
        function(size) take_bytes(p, DATA .. ".SenderCert", size) end,
        function(size) read_provider(p, size) end,
    }
    section(p, DATA, function()
        for index, size in ipairs(sizes) do
            local begin = p.at
            if size > 0 or index == 1 then readers[index](size) end
            p.at = begin + align4(size)
        end
    end)
end

-- ---- behind the body: DebugHeader, SoapHeader, MultiQueueFormatHeader ---------------------------------------------

local function read_debug(p)
    local values = read_part(p, DEBUG)
    if values.Flags % 4 ~= 0 then take_bytes(p, "DebugHeader.QueueIdentifier", 16) end
end

local function is_section(p, at, id)
    return at + 2 <= math.min(p.limit, p.there) and p.tvb:range(at, 2):le_uint() == id
end

local function read_soap_half(p, names)
    local where = "SoapHeader." .. names[4]
    need(p, 8, where)
    take_word(p, "SoapHeader." .. names[1], 2)
    take_word(p, "SoapHeader." .. names[2], 2)
    local size = 2 * take_word(p, "SoapHeader." .. names[3], 4)
    if size == 0 then told(p, nil, where, "the text does not end at its one and only NUL", "B-431", true) end
    take_text(p, where, size, where)
end

local function read_soap(p)
    local begin = p.at
    if not is_section(p, begin, 0x0320) then
        told(p, p.tree, "SoapHeader.HeaderSectionID", "not 0x0320", "wire.md 2.7", true)
    end
    read_soap_half(p, { "HeaderSectionID", "Reserved", "HeaderDataLength", "Header" })
    local second = begin + align4(p.at - begin) -- or not aligned: that is not stated (OP-8)
    if not is_section(p, second, 0x0384) then
        second = p.at
        if not is_section(p, second, 0x0384) then
            told(p, p.tree, "SoapHeader.BodySectionID", "not 0x0384", "wire.md 2.7", true)
        end
    end
    p.at = second
    read_soap_half(p, { "BodySectionID", "Reserved1", "BodyDataLength", "Body" })
    p.at = math.min(begin + align4(p.at - begin), p.limit)
end

-- The element of a FormatNameList at place `at` of raw: FormatType, begin, end; or nil and what is wrong with it.
local function element(raw, at, aligned)
    if at + 2 > #raw then return nil, { "ElementCount", "more elements than HeaderSize has room for", "B-431" } end
    local low, high = raw:byte(at + 1, at + 2)
    local kind = low + 256 * high
    at = at + 2
    if kind == 3 then
        local nul = find_nul(raw, at)
        if not nul or nul < at + 2 then
            return nil, { "FormatNameList", "a direct name is empty or has no NUL", "B-431" }
        end
        return kind, at, nul + 2
    end
    if not FORMAT_TYPES[kind] then return nil, { "FormatType", "not 1, 2, 3 or 6", "wire.md 1.6" } end
    if aligned or kind ~= 1 then at = align4(at) end
    local stop = at + (kind == 2 and 20 or 16)
    if stop > #raw then return nil, { "HeaderSize", "ends inside an element", "B-431" } end
    return kind, at, stop
end

-- Is a public name's GUID aligned? That is not stated (OP-9): the reading that makes the elements end at HeaderSize, with
-- or without its padding (OP-10). nil and what is wrong if neither does.
local function alignment(raw, count)
    local problem = { "HeaderSize", "not what the elements take", "B-431" }
    for _, aligned in ipairs({ true, false }) do
        local stop, fits = 0, true
        for _ = 1, count do
            local kind, found, after = element(raw, stop, aligned)
            if not kind then
                problem, fits = found, false
                break
            end
            stop = after
        end
        if fits and stop <= #raw and #raw <= align4(stop) then return aligned end
    end
    return nil, problem
end

local function read_elements(p, path, raw, count, aligned)
    local begin, stop = p.at, 0
    for number = 1, count do
        local kind, at, after = element(raw, stop, aligned)
        if number > ELEMENTS_SHOWN then
            if p.tree then p.tree:append_text(": " .. ELEMENTS_SHOWN .. " of " .. count .. " are shown") end
            break
        end
        add(p, path .. ".FormatType", begin + stop, 2)
        if kind == 1 then
            add(p, path .. ".PublicQueueIdentifier", begin + at, 16)
        elseif kind == 2 then
            add(p, path .. ".SourceQueueManager", begin + at, 16)
            add(p, path .. ".PrivateQueueIdentifier", begin + at + 16, 4)
        elseif kind == 3 then
            local text = p.tvb:range(begin + at, after - at - 2):le_ustring()
            add_text(p, path .. ".DirectFormatName", begin + at, after - at, text)
        else
            add(p, path .. ".DistributionList", begin + at, 16)
        end
        stop = after
    end
end

local function read_list(p, list)
    local begin = p.at
    local values, items = read_part(p, list.part, "MQFAddressHeader")
    local size, count = values.HeaderSize, values.ElementCount
    local function wrong(name, reason, rule) told(p, items[name], "MQFAddressHeader." .. name, reason, rule, true) end
    if values.HeaderID ~= list[2] then wrong("HeaderID", string.format("not 0x%04X", list[2]), "wire.md 2.8") end
    if size < 12 or size > p.limit - begin then wrong("HeaderSize", "below 12 or beyond PacketSize", "B-431") end
    if count > math.floor((size - 12) / 6) then
        wrong("ElementCount", "more elements than HeaderSize has room for", "B-431")
    end
    if size > 12 then
        need(p, size - 12, "MQFAddressHeader")
        local raw = p.tvb:range(p.at, size - 12):raw()
        local aligned, problem = alignment(raw, count)
        if problem then wrong(problem[1], problem[2], problem[3]) end
        section(p, "MultiQueueFormatHeader." .. list[1] .. ".FormatNameList", function()
            read_elements(p, "MultiQueueFormatHeader." .. list[1] .. ".FormatNameList", raw, count, aligned)
            p.at = begin + size
        end)
    end
    p.at = math.min(begin + align4(size), p.limit)
end

local function read_lists(p)
    for _, list in ipairs(LISTS) do
        section(p, "MultiQueueFormatHeader." .. list[1], function() read_list(p, list) end)
    end
    section(p, "MultiQueueFormatHeader.Signature", function()
        local begin = p.at
        local values, items = read_part(p, LIST_SIGNATURE, "MQFSignatureHeader")
        if values.ID ~= 0x015E then told(p, items.ID, "MQFSignatureHeader.ID", "not 0x015E", "wire.md 2.8", true) end
        take_bytes(p, "MultiQueueFormatHeader.Signature.Signature", values.Size, "MQFSignatureHeader.Signature")
        p.at = math.min(begin + align4(8 + values.Size), p.limit)
    end)
end

-- The headers behind the body.
local function read_tail(p, message)
    if has(message.base.Flags, 5) then section(p, "DebugHeader", function() read_debug(p) end) end
    if has(message.user.Flags, 28) then section(p, "SoapHeader", function() read_soap(p) end) end
    if has(message.user.Flags, 23) then section(p, "MultiQueueFormatHeader", function() read_lists(p) end) end
end

-- Where the headers behind the body would end, if they began at `at`; nil if they do not fit.
local function tail_end(p, message, at)
    if at > p.limit then return nil end
    local tried = trial(p, at)
    local ok, problem = pcall(read_tail, tried, message)
    if not ok and problem ~= STOP then error(problem, 0) end
    return ok and not tried.problem and tried.at or nil
end

-- ---- MessagePropertiesHeader, with the body -----------------------------------------------------

local function read_properties(p, message)
    local begin = p.at
    local values, items = read_part(p, PROPERTIES)
    message.properties = values
    local message_class = values.MessageClass
    if message_class == 0x0002 or message_class >= FINAL_ACK then -- it acknowledges the message of this MessageIdentifier
        local after = p.at
        p.at = begin + 4
        below(p, items.CorrelationID, function() read_part(p, IDENTIFIER) end)
        p.at = after
    end
    if values.LabelLength > 0 then
        local where = "MessagePropertiesHeader.Label"
        message.label = take_text(p, where, 2 * values.LabelLength, where)
    end
    take_bytes(p, "MessagePropertiesHeader.ExtensionData", values.ExtensionSize)
    local size, allocated = values.MessageSize, values.AllocationBodySize
    if allocated > p.limit - p.at then
        told(p, items.AllocationBodySize, "MessagePropertiesHeader.AllocationBodySize", "goes beyond PacketSize", "B-432")
        allocated = size
    end
    message.body = p.at
    take_bytes(p, "MessagePropertiesHeader.MessageBody", size)
    local tail = begin + align4(p.at - begin)
    if allocated > size and tail_end(p, message, tail) ~= p.limit then -- is what is allocated there, too (OP-4)?
        local other = begin + align4(message.body + allocated - begin)
        if tail_end(p, message, other) == p.limit then tail = other end
    end
    local where = "MessagePropertiesHeader.Padding"
    if tail > p.limit then told(p, p.tree, where, ENDS_INSIDE, "B-429", true) end
    take_bytes(p, where, tail - p.at)
end

-- ---- packets ------------------------------------------------------------------------------------

local function read_acknowledgment(p, message, kind, part)
    local values = message.properties
    if values.MessageSize ~= ACK_BODY_SIZE then
        local where = "MessagePropertiesHeader.MessageSize"
        told(p, p.tree, where, "an acknowledgment's body has 36 bytes", "B-179", true)
    end
    local after = p.at
    p.at = message.body
    section(p, part.header, function() message.acknowledged = read_part(p, part) end)
    p.at = after
    if kind == "FinalAck" then
        local reason = CLASSES[values.MessageClass] or string.format("class 0x%04X", values.MessageClass)
        if values.MessageClass >= 0x8000 and p.tree then
            p.tree:add_proto_expert_info(refused, "the message is refused: " .. reason)
        end
        return string.format("FinalAck %d %s", message.acknowledged.TxSequenceNumber, reason)
    end
    return string.format("OrderAck %d", message.acknowledged.TxSequenceNumber)
end

local function message_info(message)
    local values = message.properties
    local text = string.format("UserMessage %d", message.user.MessageID)
    if values.MessageClass ~= 0 then
        text = text .. " " .. (CLASSES[values.MessageClass] or string.format("class 0x%04X", values.MessageClass))
    end
    if message.destination then text = text .. " to " .. message.destination end
    if message.transaction then text = text .. string.format(" number %d", message.transaction.TxSequenceNumber) end
    if message.label and message.label ~= "" then text = text .. " '" .. message.label .. "'" end
    return text .. string.format(" %d bytes", values.MessageSize)
end

-- Everything behind the BaseHeader of a message. Returns its kind, and a line about it.
local function read_message(p, message, total)
    section(p, "UserHeader", function() read_user(p, message) end)
    if has(message.user.Flags, 20) then
        section(p, "TransactionHeader", function() read_transaction(p, message) end)
    end
    if has(message.user.Flags, 19) then section(p, "SecurityHeader", function() read_security(p) end) end
    section(p, "MessagePropertiesHeader", function() read_properties(p, message) end)
    read_tail(p, message)
    if p.at < p.limit then take_bytes(p, "Trailing", p.limit - p.at) end
    if has(message.base.Flags, 4) then
        p.at, p.limit = p.limit, total
        if message.base.PacketSize % 4 ~= 0 then
            local reason = "the SessionHeader does not begin on a 4-byte boundary"
            told(p, p.tree, "BaseHeader.PacketSize", reason, "B-430")
        end
        section(p, "SessionHeader", function() read_part(p, SESSION) end)
    end
    local message_class = message.properties.MessageClass
    local acknowledges = message_class == ORDER_ACK or message_class >= FINAL_ACK
    if acknowledges and message.order and message.label == "QM Ordering Ack" then
        if message_class == ORDER_ACK then
            return "OrderAck", read_acknowledgment(p, message, "OrderAck", ORDER_ACK_BODY)
        end
        return "FinalAck", read_acknowledgment(p, message, "FinalAck", FINAL_ACK_BODY)
    end
    return "UserMessage", message_info(message)
end

local INTERNAL_PACKETS = { -- by PT
    { "SessionAck", SESSION, 36, "a SessionAck has 36 bytes" },
    { "EstablishConnection", ESTABLISH, 572, "an EstablishConnection packet has 572 bytes" },
    { "ConnectionParameters", PARAMETERS, 32, "a ConnectionParameters packet has 32 bytes" },
}

local function read_internal(p, message)
    local flags
    section(p, "InternalHeader", function() flags = read_part(p, INTERNAL).Flags end)
    local packet = INTERNAL_PACKETS[flags % 16]
    local kind = packet[1]
    if kind == "SessionAck" and not has(message.base.Flags, 4) then
        told(p, p.tree, "BaseHeader.Flags", "SH is not set in a SessionAck", "B-174")
    end
    if message.base.PacketSize ~= packet[3] then
        told(p, p.tree, "BaseHeader.PacketSize", packet[4], "B-433")
    end
    local values
    section(p, packet[2].header, function() values = read_part(p, packet[2]) end)
    if has(flags, 4) and kind ~= "SessionAck" then
        if p.tree then p.tree:add_proto_expert_info(refused, "the session is refused: CS is set") end
        return kind, kind .. " refused"
    end
    if kind == "SessionAck" then
        return kind, string.format("SessionAck %d window %d", values.AckSequenceNumber, values.WindowSize)
    end
    return kind, kind
end

-- How many bytes the packet has whose BaseHeader is at `at`, with a SessionHeader that PacketSize does not count (OP-1);
-- nil if that is no BaseHeader.
local function packet_total(tvb, at)
    local values = {}
    for _, entry in ipairs(BASE) do values[entry.name] = tvb:range(at + entry.at, entry.size):le_uint() end
    for _, rule in ipairs(RULES[BASE]) do
        if rule[4](values) then return nil end
    end
    local behind = has(values.Flags, 4) and not has(values.Flags, 3)
    return values.PacketSize + (behind and SESSION_SIZE or 0)
end

-- The packet of `total` bytes at `at`, or its BaseHeader alone if that is wrong (total: nil). Returns a line about it.
local function dissect_packet(tvb, at, total, root)
    local there = math.min(tvb:captured_len(), at + (total or BASE_SIZE))
    local item = root:add(mqqb, tvb:range(at, there - at))
    local p = { tvb = tvb, at = at, limit = at + (total or BASE_SIZE), there = there, item = item, tree = item,
        expert = malformed }
    local message = {}
    local kind, info
    if total and at + total > there then
        local text = string.format("%d of %d bytes of the packet are there", there - at, total)
        item:add_proto_expert_info(incomplete, text)
        info = text
    end
    local ok, problem = pcall(function()
        section(p, "BaseHeader", function()
            local items
            message.base, items = read_part(p, BASE)
            if not has(message.base.Flags, 3) and has(message.base.Flags, 8) and not has(message.base.Flags, 5) then
                told(p, items.Flags, "BaseHeader.Flags", "TR is set without DH", "wire.md 2.1")
            end
        end)
        p.limit = has(message.base.Flags, 3) and p.limit or at + message.base.PacketSize
        if has(message.base.Flags, 3) then
            kind, info = read_internal(p, message)
        else
            kind, info = read_message(p, message, at + total)
        end
    end)
    if not ok and problem ~= STOP then error(problem, 0) end
    if p.problem then kind, info = "malformed", "malformed, " .. p.problem end
    if kind then
        item:add(F.Packet, tvb:range(at, there - at), kind):set_generated()
        item:append_text(", " .. info)
    end
    return info or "packet"
end

-- Where the next BaseHeader is, from `at` on; nil: nowhere in these bytes.
local function next_packet(tvb, at)
    local raw = tvb:range(at, tvb:captured_len() - at):raw()
    local found = 1
    while true do
        found = raw:find("LIOR", found, true)
        if not found then return nil end
        local begin = at + found - 5
        if found > 4 and begin + BASE_SIZE <= tvb:captured_len() and packet_total(tvb, begin) then return begin end
        found = found + 1
    end
end

-- TCP gives what has come, and again with more if it is told so.
function mqqb.dissector(tvb, pinfo, root)
    local size, captured = tvb:reported_len(), tvb:captured_len()
    local at = 0
    local lines = {}
    pinfo.cols.protocol = "MQQB"
    while at < captured do
        local total
        local left = size - at
        local wanted = BASE_SIZE
        if captured - at >= BASE_SIZE then
            total = packet_total(tvb, at)
            wanted = total or 0
        end
        if left < wanted and pinfo.can_desegment > 0 then
            pinfo.desegment_offset = at
            pinfo.desegment_len = total and total - left or DESEGMENT_ONE_MORE_SEGMENT
            break
        end
        if captured - at < BASE_SIZE then
            local item = root:add(mqqb, tvb:range(at, captured - at), "MQQB")
            item:add_proto_expert_info(incomplete, string.format("%d of 16 bytes of a BaseHeader are there", captured - at))
            break
        end
        table.insert(lines, dissect_packet(tvb, at, total, root))
        if total then
            at = at + total
        else
            local behind = next_packet(tvb, at + 1) or captured
            if behind > at + BASE_SIZE then
                root:add(F.Unread, tvb:range(at + BASE_SIZE, behind - at - BASE_SIZE))
            end
            at = behind
        end
    end
    if #lines > 0 then
        pinfo.cols.info:clear()
        pinfo.cols.info:append(table.concat(lines, "; "))
        pinfo.cols.info:fence()
    end
    return captured
end

function mqqb_ping.dissector(tvb, pinfo, root)
    local captured = tvb:captured_len()
    pinfo.cols.protocol = "MQQB Ping"
    local item = root:add(mqqb_ping, tvb:range(0, captured))
    local p = { tvb = tvb, at = 0, limit = captured, there = captured, item = item, tree = item, expert = malformed_ping }
    local info = "Ping"
    if tvb:reported_len() ~= PING_SIZE then
        item:add_proto_expert_info(malformed_ping, "PingPacket: a ping has 24 bytes (wire.md 7)")
        info = "malformed ping"
    end
    if captured >= PING_SIZE then
        local values = read_part(p, PING)
        info = string.format("%s, cookie %d%s", info, values.Cookie, has(values.Flags, 1) and ", would refuse" or "")
    end
    pinfo.cols.info = info
    return captured
end

DissectorTable.get("tcp.port"):add(1801, mqqb)
DissectorTable.get("udp.port"):add(3527, mqqb_ping)
