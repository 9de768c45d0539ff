-- Dissector of the MSMQ binary protocol (MS-MQQB) for Wireshark and tshark: sessions on TCP port 1801, pings on UDP port 3527.
--
-- Fields have the names of MS-MQQB and `ordack capture decode`: mqqb.UserHeader.MessageID. An expert info explains why a packet is
-- unreadable. `ordack capture decode` checks all rules, and decodes SecurityData and the headers behind a body, which are bytes here.
-- "Decode As" applies to other ports. Runs on Lua 5.2 to 5.4, for older and newer versions of Wireshark.

local mqqb = Proto("mqqb", "Message Queuing Binary Protocol (MS-MQQB)")
local mqqb_ping = Proto("mqqb_ping", "Message Queuing Ping (MS-MQQB)")

-- Fields in wire order: name, and type or bytes. Made by c_core/layout.py from mqqb.h:
local LAYOUTS = {
    BaseHeader = { { "VersionNumber", "u8" }, { "Reserved", "u8" }, { "Flags", "u16" }, { "Signature", "u32" },
        { "PacketSize", "u32" }, { "TimeToReachQueue", "u32" } },
    InternalHeader = { { "Reserved", "u16" }, { "Flags", "u16" } },
    SessionHeader = { { "AckSequenceNumber", "u16" }, { "RecoverableMsgAckSeqNumber", "u16" },
        { "RecoverableMsgAckFlags", "u32" }, { "UserMsgSequenceNumber", "u16" }, { "RecoverableMsgSeqNumber", "u16" },
        { "WindowSize", "u16" }, { "Reserved", "u16" } },
    TransactionHeader = { { "Flags", "u32" }, { "TxSequenceID.Ordinal", "u32" }, { "TxSequenceID.TimeStamp", "u32" },
        { "TxSequenceNumber", "u32" }, { "PreviousTxSequenceNumber", "u32" } },
    ConnectionParametersHeader = { { "RecoverableAckTimeout", "u32" }, { "AckTimeout", "u32" }, { "Reserved", "u16" },
        { "WindowSize", "u16" } },
    UserHeader = { { "SourceQueueManager", "guid" }, { "QueueManagerAddress", "guid" }, { "TimeToBeReceived", "u32" },
        { "SentTime", "u32" }, { "MessageID", "u32" }, { "Flags", "u32" } },
    MessagePropertiesHeader = { { "Flags", "u8" }, { "LabelLength", "u8" }, { "MessageClass", "u16" },
        { "CorrelationID", 20 }, { "BodyType", "u32" }, { "ApplicationTag", "u32" }, { "MessageSize", "u32" },
        { "AllocationBodySize", "u32" }, { "PrivacyLevel", "u32" }, { "HashAlgorithm", "u32" },
        { "EncryptionAlgorithm", "u32" }, { "ExtensionSize", "u32" } },
    SecurityHeader = { { "Flags", "u16" }, { "SenderIdSize", "u16" }, { "EncryptionKeySize", "u16" },
        { "SignatureSize", "u16" }, { "SenderCertSize", "u32" }, { "ProviderInfoSize", "u32" } },
    DebugHeader = { { "Flags", "u16" }, { "Reserved", "u16" } },
    EstablishConnectionHeader = { { "ClientGuid", "guid" }, { "ServerGuid", "guid" }, { "TimeStamp", "u32" },
        { "OperatingSystem", "u16" }, { "Reserved", "u16" } },
    OrderAckBody = { { "TxSequenceID.Ordinal", "u32" }, { "TxSequenceID.TimeStamp", "u32" },
        { "TxSequenceNumber", "u32" }, { "TxPreviousSequenceNumber", "u32" }, { "Reserved", 20 } },
    FinalAckBody = { { "TxSequenceID.Ordinal", "u32" }, { "TxSequenceID.TimeStamp", "u32" },
        { "TxSequenceNumber", "u32" }, { "PreviousTxSequenceNumber", "u32" }, { "SourceGUID", "guid" },
        { "MessageID", "u32" } },
    PingPacket = { { "Flags", "u16" }, { "Signature", "u16" }, { "Cookie", "u32" }, { "QMGuid", "guid" } },
}
local FLAGS = {
    BASE_PR = 0x0007, BASE_IN = 0x0008, BASE_SH = 0x0010, BASE_DH = 0x0020, BASE_TR = 0x0100, INTERNAL_PT = 0x000F,
        INTERNAL_CS = 0x0010, USER_RC = 0x0000001F, USER_DM = 0x00000060, USER_JN = 0x00000100, USER_JP = 0x00000200,
        USER_DQ = 0x00001C00, USER_AQ = 0x0000E000, USER_RQ = 0x00070000, USER_SH = 0x00080000, USER_TH = 0x00100000,
        USER_MP = 0x00200000, USER_CQ = 0x00400000, USER_MQ = 0x00800000, USER_AH = 0x02000000, USER_HH = 0x10000000,
        TX_CG = 0x00000001, TX_FA = 0x00000002, TX_FM = 0x00000004, TX_LM = 0x00000008,
}
-- end of what was made

local PACKET_SIZE_MAX = 0x400000
local SIGNATURE = 0x524F494C -- "LIOR"
local FOREVER = 0xFFFFFFFF

-- ---- meanings of values -------------------------------------------------------------------------

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
local DESTINATIONS = { [0] = "none", [3] = "private", [5] = "public", [7] = "direct" }
local ADMINS = {
    [0] = "none", [2] = "private, on the source host", [3] = "private, on the destination host", [5] = "public",
    [6] = "private, on another host", [7] = "direct",
}
local RESPONSES = {
    [0] = "none", [1] = "the AdminQueue", [2] = "private, on the source host", [3] = "private, on the destination host",
    [4] = "private, on the host of the AdminQueue", [5] = "public", [6] = "private, on another host", [7] = "direct",
}
local NOTES = { -- text behind a number
    milliseconds = function() return " ms" end,
    duration = function(seconds) return seconds == FOREVER and " (for ever)" or " s" end,
    time = function(seconds) return os.date("! (%Y-%m-%d %H:%M:%S UTC)", seconds) end,
}
local NAME_KINDS = { [2] = "id", [3] = "id", [4] = "id", [5] = "public", [6] = "private", [7] = "direct" } -- by selector

-- ---- fields -------------------------------------------------------------------------------------

local F = {} -- path -> ProtoField
local ABBREVIATION = { [mqqb] = "mqqb.", [mqqb_ping] = "mqqb_ping." }
local registered = { [mqqb] = {}, [mqqb_ping] = {} }

-- Register a field. The last part of the path is its displayed name, followed by the meaning if there is one.
local function field(proto, kind, path, meaning, ...)
    local name = path:match("[^.]+$")
    local made = ProtoField[kind](ABBREVIATION[proto] .. path, meaning and name .. ", " .. meaning or name, ...)
    F[path] = made
    table.insert(registered[proto], made)
end

local WIDTHS = { u8 = 1, u16 = 2, u32 = 4, guid = 16 }
local KINDS = { u8 = "uint8", u16 = "uint16", u32 = "uint32" }

-- Register the fields of a header of LAYOUTS. notes: {field: options}. hex: display in hex; values: meanings; says: key of
-- NOTES; bits: {name, width, meaning, values}, lowest first. Returns the argument of `read_part`.
local function layout(proto, header, notes)
    local part = { header = header, size = 0, proto = proto, by_name = {} }
    for _, row in ipairs(LAYOUTS[header]) do
        local name, kind = row[1], row[2]
        local note, path = notes[name] or {}, header .. "." .. name
        local entry = { name = name, path = path, at = part.size, size = WIDTHS[kind] or kind, bits = {}, says = note.says }
        entry.integer = KINDS[kind] ~= nil
        if entry.integer then
            field(proto, KINDS[kind], path, nil, (note.bits or note.hex) and base.HEX or base.DEC, note.values)
        else
            field(proto, kind == "guid" and "guid" or "bytes", path)
        end
        local shift = 0
        for _, bit in ipairs(note.bits or {}) do
            local mask = (2 ^ bit[2] - 1) * 2 ^ shift
            local child = path .. "." .. bit[1]
            if bit[2] == 1 and not bit[4] then
                field(proto, "bool", child, bit[3], 8 * entry.size, { "Set", "Not set" }, mask)
            else
                field(proto, KINDS[kind], child, bit[3], base.DEC, bit[4], mask)
            end
            table.insert(entry.bits, child)
            shift = shift + bit[2]
        end
        table.insert(part, entry)
        part.by_name[name] = entry
        part.size = part.size + entry.size
    end
    return part
end

for _, name in ipairs({
    "BaseHeader", "InternalHeader", "EstablishConnectionHeader", "ConnectionParametersHeader", "SessionHeader",
    "UserHeader", "TransactionHeader", "SecurityHeader", "MessagePropertiesHeader", "OrderAckBody", "FinalAckBody",
}) do
    field(mqqb, "none", name)
end
field(mqqb, "string", "Packet", "kind of this packet")
field(mqqb, "bytes", "Trailing", "headers and bytes behind the body")
field(mqqb, "bytes", "Unread", "bytes in which no packet begins")

local BASE = layout(mqqb, "BaseHeader", {
    VersionNumber = { hex = true },
    Reserved = { hex = true },
    Flags = { bits = {
        { "PR", 3, "priority" }, { "IN", 1, "internal packet" }, { "SH", 1, "SessionHeader present" },
        { "DH", 1, "DebugHeader present" }, { "X9", 1 }, { "X8", 1 }, { "TR", 1, "tracing" }, { "X6", 1 }, { "X5", 1 },
        { "X4", 1 }, { "X3", 1 }, { "X2", 1 }, { "X1", 1 }, { "X0", 1 },
    } },
    Signature = { hex = true, values = { [SIGNATURE] = "LIOR" } },
    TimeToReachQueue = { says = "duration" },
})
local INTERNAL = layout(mqqb, "InternalHeader", {
    Reserved = { hex = true },
    Flags = { bits = { { "PT", 4, "packet type", PACKET_TYPES }, { "CS", 1, "refused" }, { "X5_X15", 11 } } },
})
table.insert(LAYOUTS.EstablishConnectionHeader, { "Padding", 512 })
local ESTABLISH = layout(mqqb, "EstablishConnectionHeader", {
    TimeStamp = { says = "milliseconds" },
    OperatingSystem = { bits = {
        { "RE", 8, "must be 16" }, { "SE", 1, "no ping was sent" }, { "OS", 1, "server" },
        { "QS", 1, "guaranteed quality of service" }, { "X11_X15", 5 },
    } },
    Reserved = { hex = true },
})
local PARAMETERS = layout(mqqb, "ConnectionParametersHeader", {
    RecoverableAckTimeout = { says = "milliseconds" }, AckTimeout = { says = "milliseconds" },
    Reserved = { hex = true },
})
local SESSION = layout(mqqb, "SessionHeader", {
    RecoverableMsgAckFlags = { hex = true },
    Reserved = { hex = true },
})
local USER = layout(mqqb, "UserHeader", {
    TimeToBeReceived = { says = "duration" },
    SentTime = { says = "time" },
    Flags = { bits = {
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
local TRANSACTION = layout(mqqb, "TransactionHeader", {
    Flags = { bits = {
        { "CG", 1, "ConnectorQMGuid present" }, { "FA", 1, "FinalAck wanted" }, { "FM", 1, "first of its transaction" },
        { "LM", 1, "last of its transaction" }, { "ID", 20, "transaction" }, { "X1_X8", 8 },
    } },
})
field(mqqb, "guid", "TransactionHeader.ConnectorQMGuid")
local SECURITY = layout(mqqb, "SecurityHeader", {
    Flags = { bits = {
        { "ST", 4, "sender id type", SENDER_ID_TYPES }, { "AU", 1, "authenticated" }, { "EB", 1, "body is encrypted" },
        { "DE", 1, "default cryptographic provider" }, { "AI", 1, "SecurityData present" },
        { "AS", 4, "authentication signature" }, { "X12_X15", 4 },
    } },
})
field(mqqb, "bytes", "SecurityHeader.SecurityData")
local PROPERTIES = layout(mqqb, "MessagePropertiesHeader", {
    Flags = { bits = {
        { "PA", 1, "tell that it reached the queue" }, { "PR", 1, "tell that an application took it" },
        { "NA", 1, "tell that it did not reach the queue" }, { "NR", 1, "tell that no application took it" }, { "X", 4 },
    } },
    MessageClass = { hex = true, values = CLASSES },
    BodyType = { hex = true, values = BODY_TYPES },
    PrivacyLevel = { values = PRIVACY_LEVELS },
    HashAlgorithm = { hex = true, values = HASHES },
    EncryptionAlgorithm = { hex = true, values = CIPHERS },
})
field(mqqb, "string", "MessagePropertiesHeader.Label")
field(mqqb, "bytes", "MessagePropertiesHeader.ExtensionData")
field(mqqb, "bytes", "MessagePropertiesHeader.MessageBody")
field(mqqb, "bytes", "MessagePropertiesHeader.Padding")
local ORDER_ACK_BODY = layout(mqqb, "OrderAckBody", {})
local FINAL_ACK_BODY = layout(mqqb, "FinalAckBody", {})
local PING = layout(mqqb_ping, "PingPacket", {
    Flags = { bits = { { "RC", 1, "no server" }, { "RF", 1, "would refuse a session" }, { "X", 14 } } },
    Signature = { hex = true, values = { [0x5548] = "HU" } },
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

-- ---- reading ------------------------------------------------------------------------------------

local STOP = {} -- thrown where the rest is unreadable

local function bits_of(value, shift, width) return math.floor(value / 2 ^ shift) % 2 ^ width end

local function has(value, flag) return math.floor(value / flag) % 2 == 1 end

local function align4(size) return size + -size % 4 end

-- Return a field's value in the part that begins at `at`.
local function field_at(tvb, at, part, name)
    local entry = part.by_name[name]
    return tvb:range(at + entry.at, entry.size):le_uint()
end

-- Fail with an expert info. p, the state of reading: tvb, at, limit (end by PacketSize), there (end of the captured bytes),
-- item (of the packet), tree (parent of new items; nil in a trial without display), problem.
local function wrong(p, where, reason, rule)
    p.problem = where .. ": " .. reason .. " (" .. rule .. ")"
    if p.tree then p.item:add_proto_expert_info(p.expert, p.problem) end
    error(STOP, 0)
end

-- Require `size` bytes from p.at on.
local function need(p, size, where)
    if p.at + size > p.limit then wrong(p, where, "PacketSize ends inside it", "B-429") end
    if p.at + size > p.there then error(STOP, 0) end -- an expert info of the packet already says it
end

-- Add an item of `size` bytes and step over them; 0 bytes add no item. text: displayed value.
local function take(p, path, size, text)
    if size == 0 then return nil end
    need(p, size, path)
    local range = p.tvb:range(p.at, size)
    p.at = p.at + size
    if not p.tree then return nil end
    return text and p.tree:add(F[path], range, text) or p.tree:add_le(F[path], range)
end

-- Call `read` with its items placed below `item`.
local function below(p, item, read)
    local tree = p.tree
    p.tree = tree and item
    read()
    p.tree = tree
end

-- Return the range from `begin` to the end of the readable bytes.
local function range_within(p, begin)
    local stop = math.min(p.limit, p.there)
    begin = math.min(begin, stop)
    return p.tvb:range(begin, stop - begin)
end

-- Read a header as an item that ends where reading ends.
local function section(p, path, read)
    local begin = p.at
    local item = p.tree and p.tree:add(F[path], range_within(p, begin))
    below(p, item, read)
    if item then item:set_len(math.max(0, math.min(p.at, p.limit, p.there) - begin)) end
end

-- Read the fields of a fixed part. Return values by name.
local function read_part(p, part)
    need(p, part.size, part.header)
    local values = {}
    for _, entry in ipairs(part) do
        local range = p.tvb:range(p.at, entry.size)
        if entry.integer then values[entry.name] = range:le_uint() end
        local item = take(p, entry.path, entry.size)
        if item and entry.says then item:append_text(NOTES[entry.says](values[entry.name])) end
        for _, child in ipairs(item and entry.bits or {}) do item:add_le(F[child], range) end
    end
    return values
end

-- Return the offset of the first WCHAR 0 of a text from even offset `from` on, or nil.
local function find_nul(raw, from)
    local found = raw:find("\0\0", from + 1, true)
    while found and found % 2 == 0 do -- string positions begin with 1
        found = raw:find("\0\0", found + 1, true)
    end
    return found and found - 1
end

-- Return the text in `size` bytes, up to its NUL.
local function text_at(p, at, size)
    local length = find_nul(p.tvb:range(at, size):raw(), 0) or size - size % 2
    return length > 0 and p.tvb:range(at, length):le_ustring() or ""
end

local function take_text(p, path, size)
    if size == 0 then wrong(p, path, "the text does not end at its one and only NUL", "B-431") end
    need(p, size, path)
    local text = text_at(p, p.at, size)
    take(p, path, size, text)
    return text
end

local function guid_text(p, at)
    need({ at = at, limit = p.limit, there = p.there, item = p.item, tree = p.tree, expert = p.expert }, 16, "GUID")
    local head, raw = p.tvb:range(at, 8), p.tvb:range(at + 8, 8):bytes():tohex()
    return string.format("%08X-%04X-%04X-%s-%s", head:range(0, 4):le_uint(), head:range(4, 2):le_uint(),
        head:range(6, 2):le_uint(), raw:sub(1, 4), raw:sub(5))
end

-- ---- UserHeader, TransactionHeader, SecurityHeader ----------------------------------------------

local function is_order_queue(name)
    local protocol, rest = name:upper():match("^(%u%u%u:)[^\\]+(.*)$")
    return (protocol == "TCP:" or protocol == "SPX:") and rest == "\\PRIVATE$\\ORDER_QUEUE$"
end

-- Read a direct name. Return its text, and whether it is the order queue.
local function read_direct(p, path)
    local begin = p.at
    need(p, 2, path)
    local count = p.tvb:range(begin, 2):le_uint()
    if count < 4 then wrong(p, path, "Count is below 4", "B-431") end
    need(p, 2 + count, path)
    local name = text_at(p, begin + 2, count)
    local padding = math.min(-(2 + count) % 4, p.limit - begin - 2 - count, p.there - begin - 2 - count)
    local item = p.tree and p.tree:add(F[path], p.tvb:range(begin, 2 + count + padding), "DIRECT=" .. name)
    below(p, item, function()
        take(p, path .. ".Count", 2)
        take_text(p, path .. ".DirectFormatName", count)
        take(p, path .. ".Padding", padding)
    end)
    p.at = begin + align4(2 + count)
    return "DIRECT=" .. name, is_order_queue(name)
end

-- Read a queue name of a UserHeader. host: GUID of the queue manager of a bare identifier. Returns text, and whether the
-- name is the order queue.
local function read_name(p, path, kind, host)
    if kind == "direct" then return read_direct(p, path) end
    local begin, size = p.at, kind == "id" and 4 or kind == "private" and 20 or 16
    need(p, size, path)
    local number = p.tvb:range(begin + size - 4, 4):le_uint()
    local text = string.format("PRIVATE=%s\\%08X", kind == "private" and guid_text(p, begin) or host, number)
    if kind == "public" then text = "PUBLIC=" .. guid_text(p, begin) end
    below(p, p.tree and p.tree:add(F[path], p.tvb:range(begin, size), text), function()
        if kind == "public" then take(p, path .. ".PublicQueueIdentifier", 16) end
        if kind == "private" then take(p, path .. ".SourceQueueManager", 16) end
        if kind ~= "public" then take(p, path .. ".PrivateQueueIdentifier", 4) end
    end)
    return text, kind == "id" and number == 4
end

local SELECTORS = { DESTINATIONS, ADMINS, RESPONSES }

local function read_user(p, message)
    local begin = p.at
    message.user = read_part(p, USER)
    local flags = message.user.Flags
    local hosts = { [2] = guid_text(p, begin + USER.by_name.SourceQueueManager.at),
        [3] = guid_text(p, begin + USER.by_name.QueueManagerAddress.at),
        [4] = "00000000-0000-0000-0000-000000000000" }
    for index, queue in ipairs(QUEUES) do
        local selector = bits_of(flags, 7 + 3 * index, 3)
        if not SELECTORS[index][selector] then wrong(p, "UserHeader.Flags", "of no kind of queue", "B-171") end
        if NAME_KINDS[selector] then
            local text, order = read_name(p, "UserHeader." .. queue, NAME_KINDS[selector], hosts[selector])
            if index == 1 then message.destination, message.order = text, order end
        end
    end
    if has(flags, FLAGS.USER_CQ) then take(p, "UserHeader.ConnectorType", 16) end
end

local function read_transaction(p, message)
    message.transaction = read_part(p, TRANSACTION)
    if has(message.transaction.Flags, FLAGS.TX_CG) then take(p, "TransactionHeader.ConnectorQMGuid", 16) end
end

local function read_security(p)
    local values, total = read_part(p, SECURITY), 0
    for _, name in ipairs({ "SenderIdSize", "EncryptionKeySize", "SignatureSize", "SenderCertSize", "ProviderInfoSize" }) do
        total = total + align4(values[name])
    end
    take(p, "SecurityHeader.SecurityData", total)
end

-- ---- packets ------------------------------------------------------------------------------------

local function read_properties(p, message)
    local begin = p.at
    local values = read_part(p, PROPERTIES)
    message.properties = values
    if values.LabelLength > 0 then
        message.label = take_text(p, "MessagePropertiesHeader.Label", 2 * values.LabelLength)
    end
    take(p, "MessagePropertiesHeader.ExtensionData", values.ExtensionSize)
    message.body = p.at
    take(p, "MessagePropertiesHeader.MessageBody", values.MessageSize)
    local tail = begin + align4(p.at - begin)
    take(p, "MessagePropertiesHeader.Padding", tail - p.at)
end

local function class_text(message_class)
    return CLASSES[message_class] or string.format("class 0x%04X", message_class)
end

local function read_acknowledgment(p, message, kind, part)
    local values, after, number = message.properties, p.at, nil
    if values.MessageSize ~= ORDER_ACK_BODY.size then
        wrong(p, "MessagePropertiesHeader.MessageSize", "an acknowledgment's body has 36 bytes", "B-179")
    end
    p.at = message.body
    section(p, part.header, function() number = read_part(p, part).TxSequenceNumber end)
    p.at = after
    if kind == "OrderAck" then return string.format("OrderAck %d", number) end
    if values.MessageClass >= 0x8000 and p.tree then
        p.tree:add_proto_expert_info(refused, "the message is refused: " .. class_text(values.MessageClass))
    end
    return string.format("FinalAck %d %s", number, class_text(values.MessageClass))
end

local function message_info(message)
    local values = message.properties
    local text = string.format("UserMessage %d", message.user.MessageID)
    if values.MessageClass ~= 0 then text = text .. " " .. class_text(values.MessageClass) end
    if message.destination then text = text .. " to " .. message.destination end
    if message.transaction then text = text .. string.format(" number %d", message.transaction.TxSequenceNumber) end
    if message.label and message.label ~= "" then text = text .. " '" .. message.label .. "'" end
    return text .. string.format(" %d bytes", values.MessageSize)
end

-- Read a message behind its BaseHeader. Return its kind, and a line about it.
local function read_message(p, message, total)
    section(p, "UserHeader", function() read_user(p, message) end)
    local flags = message.user.Flags
    if has(flags, FLAGS.USER_TH) then section(p, "TransactionHeader", function() read_transaction(p, message) end) end
    if has(flags, FLAGS.USER_SH) then section(p, "SecurityHeader", function() read_security(p) end) end
    section(p, "MessagePropertiesHeader", function() read_properties(p, message) end)
    if p.at < p.limit then take(p, "Trailing", p.limit - p.at) end
    if has(message.base.Flags, FLAGS.BASE_SH) then
        p.at, p.limit = p.limit, total
        section(p, "SessionHeader", function() read_part(p, SESSION) end)
    end
    local message_class = message.properties.MessageClass
    if message.order and message.label == "QM Ordering Ack" then
        if message_class == ORDER_ACK then
            return "OrderAck", read_acknowledgment(p, message, "OrderAck", ORDER_ACK_BODY)
        elseif message_class >= FINAL_ACK then
            return "FinalAck", read_acknowledgment(p, message, "FinalAck", FINAL_ACK_BODY)
        end
    end
    return "UserMessage", message_info(message)
end

local INTERNAL_PACKETS = { SESSION, ESTABLISH, PARAMETERS } -- by PT

local function read_internal(p)
    local flags, values
    section(p, "InternalHeader", function() flags = read_part(p, INTERNAL).Flags end)
    local kind, part = PACKET_TYPES[flags % 16], INTERNAL_PACKETS[flags % 16]
    if not kind then wrong(p, "InternalHeader.Flags", "PT is not 1, 2 or 3", "B-170") end
    section(p, part.header, function() values = read_part(p, part) end)
    if p.at ~= p.limit then wrong(p, "BaseHeader.PacketSize", "not that of this kind of packet", "B-433") end
    if kind == "SessionAck" then
        return kind, string.format("SessionAck %d window %d", values.AckSequenceNumber, values.WindowSize)
    end
    if not has(flags, FLAGS.INTERNAL_CS) then return kind, kind end
    p.tree:add_proto_expert_info(refused, "the session is refused: CS is set")
    return kind, kind .. " refused"
end

-- Return the size of the packet with its BaseHeader at `at`, including a SessionHeader, which PacketSize excludes (OP-1).
-- Return nil and the reason if this is no BaseHeader.
local function packet_total(tvb, at)
    local flags, size = field_at(tvb, at, BASE, "Flags"), field_at(tvb, at, BASE, "PacketSize")
    local internal = has(flags, FLAGS.BASE_IN)
    if field_at(tvb, at, BASE, "VersionNumber") ~= 0x10 then return nil, "BaseHeader.VersionNumber: not 0x10 (B-168)" end
    if field_at(tvb, at, BASE, "Signature") ~= SIGNATURE then return nil, "BaseHeader.Signature: not LIOR (B-168)" end
    if size < (internal and 20 or 120) or size > PACKET_SIZE_MAX then
        return nil, "BaseHeader.PacketSize: too small for the kind of packet, or above 4 MiB (B-429)"
    end
    return size + (has(flags, FLAGS.BASE_SH) and not internal and SESSION.size or 0)
end

-- Dissect the packet of `total` bytes at `at`, or only a wrong BaseHeader (total: nil). Return a line about it.
local function dissect_packet(tvb, at, total, reason, root)
    local there = math.min(tvb:captured_len(), at + (total or BASE.size))
    local item = root:add(mqqb, tvb:range(at, there - at))
    local p = { tvb = tvb, at = at, limit = at + (total or BASE.size), there = there, item = item, tree = item,
        expert = malformed, problem = reason }
    local message, kind, info = {}, nil, nil
    if reason then item:add_proto_expert_info(malformed, reason) end
    if total and at + total > there then
        info = string.format("%d of %d bytes of the packet are there", there - at, total)
        item:add_proto_expert_info(incomplete, info)
    end
    local ok, problem = pcall(function()
        section(p, "BaseHeader", function() message.base = read_part(p, BASE) end)
        if not total then return end
        local internal = has(message.base.Flags, FLAGS.BASE_IN)
        p.limit = at + message.base.PacketSize
        if internal then kind, info = read_internal(p) else kind, info = read_message(p, message, at + total) end
    end)
    if not ok and problem ~= STOP then error(problem, 0) end
    if p.problem then kind, info = "malformed", "malformed, " .. p.problem end
    if kind then
        item:add(F.Packet, tvb:range(at, there - at), kind):set_generated()
        item:append_text(", " .. info)
    end
    return info or "packet"
end

-- Return the offset of the next BaseHeader from `at` on, or nil.
local function next_packet(tvb, at)
    local raw = tvb:range(at, tvb:captured_len() - at):raw()
    local found = 1
    while true do
        found = raw:find("LIOR", found, true)
        if not found then return nil end
        local begin = at + found - 5
        if found > 4 and begin + BASE.size <= tvb:captured_len() and packet_total(tvb, begin) then return begin end
        found = found + 1
    end
end

-- TCP passes the bytes received, and passes them again with more on request.
function mqqb.dissector(tvb, pinfo, root)
    local size, captured = tvb:reported_len(), tvb:captured_len()
    local at = 0
    local lines = {}
    pinfo.cols.protocol = "MQQB"
    while at < captured do
        local total, reason
        local left = size - at
        local wanted = BASE.size
        if captured - at >= BASE.size then
            total, reason = packet_total(tvb, at)
            wanted = total or 0
        end
        if left < wanted and pinfo.can_desegment > 0 then
            pinfo.desegment_offset = at
            pinfo.desegment_len = total and total - left or DESEGMENT_ONE_MORE_SEGMENT
            break
        end
        if captured - at < BASE.size then
            local item = root:add(mqqb, tvb:range(at, captured - at), "MQQB")
            item:add_proto_expert_info(incomplete, string.format("%d of 16 bytes of a BaseHeader are there", captured - at))
            break
        end
        table.insert(lines, dissect_packet(tvb, at, total, reason, root))
        if total then
            at = at + total
        else
            local behind = next_packet(tvb, at + 1) or captured
            if behind > at + BASE.size then
                root:add(F.Unread, tvb:range(at + BASE.size, behind - at - BASE.size))
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
    if tvb:reported_len() ~= PING.size then
        item:add_proto_expert_info(malformed_ping, "PingPacket: a ping has 24 bytes (wire.md 7)")
        info = "malformed ping"
    end
    if captured >= PING.size then
        local values = read_part(p, PING)
        info = string.format("%s, cookie %d%s", info, values.Cookie, has(values.Flags, 2) and ", would refuse" or "")
    end
    pinfo.cols.info = info
    return captured
end

DissectorTable.get("tcp.port"):add(1801, mqqb)
DissectorTable.get("udp.port"):add(3527, mqqb_ping)
