/* mqqb_capture_frames.c: part of mqqb_capture.c: from records of pcap and pcapng to segments of TCP. */

/* ---- frames ----------------------------------------------------------------------------------- */

/* The remaining bytes of a frame: captured, and in total. */
typedef struct {
    const uint8_t *in;
    uint64_t size, wire;
    uint32_t link;   /* type of the first header */
    uint32_t unread; /* why the frame is unread, as mqqb_capture.unread_link; 0: it is readable */
} view;

static inline int holds(view *v, uint64_t size)
{
    if (size > v->size) {
        v->unread = size <= v->wire ? MQQB_CAPTURE_CUT : 0;
        return 0;
    }
    return 1;
}

static inline int pass(view *v, uint64_t size)
{
    if (!holds(v, size)) {
        return 0;
    }
    v->in += size;
    v->size -= size;
    v->wire -= size;
    return 1;
}

static inline void shorten(view *v, uint64_t wire)
{
    if (wire < v->wire) {
        v->wire = wire;
    }
    if (v->size > v->wire) {
        v->size = v->wire;
    }
}

static inline piece piece_of(const mqqb_capture *c, const view *v, uint32_t sequence)
{
    piece s = {0};

    s.place = (uint64_t)(v->in - c->files[c->file]);
    s.time = c->time;
    s.file = c->file;
    s.frame = c->frame;
    s.sequence = sequence;
    s.size = (uint32_t)v->size;
    return s;
}

/* Do the ports exclude our protocol? */
static inline int is_other(view *v)
{
    return holds(v, 4) && be16(v->in) != TCP_PORT && be16(v->in + 2) != TCP_PORT;
}

/* Read a TCP header and its data. */
static int32_t read_tcp_header(mqqb_capture *c, mqqb_capture_end end[2], view *v)
{
    const uint8_t *const in = v->in;
    piece s;

    if (is_other(v) || !holds(v, 20) || in[12] >> 4 < 5 || !pass(v, (uint64_t)(in[12] >> 4) * 4)) {
        return FRAME_DONE;
    }
    end[0].word[4] |= be16(in);
    end[1].word[4] |= be16(in + 2);
    if (!is_ours(c, end)) {
        return FRAME_DONE;
    }
    if (c->routed != NULL) {
        route(c, end, v->in, v->size);
        return FRAME_DONE;
    }
    s = piece_of(c, v, be32(in + 4));
    return read_tcp(c, end, in[13], be32(in + 8), &s, (uint32_t)v->wire);
}

/* Is this UDP header a tunnel's? */
static int32_t read_udp(view *v)
{
    const uint8_t *const in = v->in;

    if (pass(v, 8) && be16(in + 4) >= 8 && be16(in + 2) == VXLAN_PORT) {
        v->unread = MQQB_CAPTURE_WRAPPED;
    }
    return FRAME_DONE;
}

/* Read the payload of an IP datagram. A fragment has place, its offset, or more, further fragments, other than 0. */
static int32_t read_carried(mqqb_capture *c, mqqb_capture_end end[2], view *v, uint32_t protocol, uint32_t place,
                            uint32_t more)
{
    const uint32_t part = place | more;

    if (protocol == 47 || (protocol == 6 && part != 0 && (place != 0 || !is_other(v)))) {
        v->unread = MQQB_CAPTURE_WRAPPED; /* GRE may carry our protocol */
        return FRAME_DONE;
    }
    if (part != 0) {
        return FRAME_DONE;
    }
    if (protocol == 17) {
        return read_udp(v);
    }
    return protocol == 6 ? read_tcp_header(c, end, v) : FRAME_DONE;
}

static int32_t read_ip4(mqqb_capture *c, view *v)
{
    const uint8_t *const in = v->in;
    mqqb_capture_end end[2] = {{{0}}, {{0}}};
    uint32_t head, total;

    if (!holds(v, 20) || in[0] >> 4 != 4) {
        return FRAME_DONE;
    }
    head = (uint32_t)(in[0] & 15) * 4;
    total = be16(in + 2);
    if (total != 0) { /* else the sender's network card splits more than 64 KiB */
        shorten(v, total);
    }
    if (head < 20 || !pass(v, head)) {
        return FRAME_DONE;
    }
    memcpy(&end[0].word[0], in + 12, 4);
    memcpy(&end[1].word[0], in + 16, 4);
    return read_carried(c, end, v, in[9], be16(in + 6) & 0x1FFF, in[6] & 0x20);
}

static int32_t read_ip6(mqqb_capture *c, view *v)
{
    const uint8_t *const in = v->in;
    mqqb_capture_end end[2] = {{{0}}, {{0}}};
    uint32_t next, place = 0, more = 0;

    if (!pass(v, 40) || in[0] >> 4 != 6) {
        return FRAME_DONE;
    }
    if (be16(in + 4) != 0) {
        shorten(v, be16(in + 4));
    }
    memcpy(end[0].word, in + 8, 16);
    memcpy(end[1].word, in + 24, 16);
    end[0].word[4] = end[1].word[4] = 1u << 16;
    next = in[6];
    while (place == 0 && (next == 0 || next == 43 || next == 44 || next == 51 || next == 60)) {
        const uint8_t *const header = v->in;
        uint32_t size = 8;
        if (!holds(v, 8)) {
            return FRAME_DONE;
        }
        if (next == 44) {
            place = be16(header + 2) & 0xFFF8;
            more = header[3] & 1;
        } else {
            size = next == 51 ? 4 * (uint32_t)header[1] + 8 : 8 * (uint32_t)header[1] + 8;
        }
        next = header[0];
        if (!pass(v, size)) {
            return FRAME_DONE;
        }
    }
    return read_carried(c, end, v, next, place, more);
}

/* The Ethernet type of an IP packet. */
static uint32_t ip_type(const view *v)
{
    return v->size > 0 && v->in[0] >> 4 == 6 ? 0x86DD : 0x0800;
}

/* Read link header and IP. Broken and foreign frames are skipped. */
static int32_t read_link(mqqb_capture *c, view *v)
{
    uint32_t type = 0;

    switch (v->link) {
    case 1: /* Ethernet, with any number of VLAN tags */
        if (!pass(v, 14)) {
            return FRAME_DONE;
        }
        type = be16(v->in - 2);
        while ((type == 0x8100 || type == 0x88A8 || type == 0x9100 || type == 0x9200) && pass(v, 4)) {
            type = be16(v->in - 2);
        }
        break;
    case 113: /* Linux cooked */
        if (!pass(v, 16)) {
            return FRAME_DONE;
        }
        type = be16(v->in - 2);
        break;
    case 276: /* Linux cooked, version 2 */
        if (!pass(v, 20)) {
            return FRAME_DONE;
        }
        type = be16(v->in - 20);
        break;
    case 0: /* loopback */
    case 108:
        if (!pass(v, 4)) {
            return FRAME_DONE;
        }
        type = ip_type(v);
        break;
    case 12: /* raw IP */
    case 14:
    case 101:
    case 228:
    case 229:
        type = ip_type(v);
        break;
    default:
        v->unread = v->link;
        return FRAME_DONE;
    }
    if (type == 0x0800) {
        return read_ip4(c, v);
    }
    return type == 0x86DD ? read_ip6(c, v) : FRAME_DONE;
}

/* The view is passed on, not copied: a copy would wait for the preceding writes to reach the cache. */
static int32_t read_frame(mqqb_capture *c, view *v)
{
    const int32_t status = read_link(c, v);

    if (v->unread != 0) {
        c->unread_link = c->unread++ == 0 ? v->unread : c->unread_link;
    }
    return status;
}

/* ---- files ------------------------------------------------------------------------------------ */

#define NO_FRAME 9 /* answer of a record reader: a block without a frame, or a file header */

static inline uint32_t word16(const mqqb_capture *c, const uint8_t *in)
{
    return c->swapped != 0 ? be16(in) : le16(in);
}

static inline uint32_t word32(const mqqb_capture *c, const uint8_t *in)
{
    return c->swapped != 0 ? be32(in) : le32(in);
}

/* Values of mqqb_capture.format */
#define IS_PCAP 1u
#define IS_PCAP_NS 2u
#define IS_PCAPNG 3u

static int32_t begin_file(mqqb_capture *c, const uint8_t *in, uint64_t room)
{
    uint32_t magic;

    if (room < 4) {
        return MQQB_CAPTURE_BAD_END;
    }
    magic = be32(in);
    c->frame = 0;
    if (magic == 0x0A0D0D0Au) {
        c->format = IS_PCAPNG;
    } else {
        c->swapped = magic == 0xA1B2C3D4u || magic == 0xA1B23C4Du;
        if (magic == 0xD4C3B2A1u || magic == 0xA1B2C3D4u) {
            c->format = IS_PCAP;
        } else if (magic == 0x4D3CB2A1u || magic == 0xA1B23C4Du) {
            c->format = IS_PCAP_NS;
        } else {
            return MQQB_CAPTURE_BAD_MAGIC;
        }
        if (room < 24) {
            return MQQB_CAPTURE_BAD_END;
        }
        c->interfaces[0].link = word32(c, in + 20) & 0x0FFFFFFFu; /* the upper bits are about checksums */
        c->cursor += 24;
    }
    c->started = 1;
    return NO_FRAME;
}

/* A record of a pcap file. */
static int32_t read_pcap(mqqb_capture *c, const uint8_t *in, uint64_t room, view *v)
{
    uint32_t size;

    if (room < 16) {
        return MQQB_CAPTURE_BAD_END;
    }
    size = word32(c, in + 8);
    if (size > RECORD_MAX) {
        return MQQB_CAPTURE_BAD_SIZE;
    }
    if (room - 16 < size) {
        return MQQB_CAPTURE_BAD_END;
    }
    c->time = (int64_t)word32(c, in) * 1000000000 + (int64_t)word32(c, in + 4) * (c->format == IS_PCAP ? 1000 : 1);
    c->next = c->cursor + 16 + size;
    v->in = in + 16;
    v->size = size;
    v->wire = word32(c, in + 12);
    v->link = c->interfaces[0].link;
    return 0;
}

/* The units of an interface's times: if_tsresol, 9, is the number of decimal places. 0: unsupported (binary or
 * finer units, and if_tsoffset, 14). */
static int read_options(const mqqb_capture *c, mqqb_capture_interface *interface, const uint8_t *in, uint64_t size)
{
    while (size >= 4) {
        const uint32_t code = word16(c, in), length = word16(c, in + 2);
        const uint64_t step = 4 + align4(length); /* size, too, is a multiple of 4 */

        if (size - 4 < length) {
            break;
        }
        if (code == 14 || (code == 9 && length > 0 && in[4] > 9)) {
            return 0;
        }
        if (code == 9 && length > 0) {
            interface->units = 1;
            for (uint32_t i = in[4]; i > 0; i--) {
                interface->units *= 10;
            }
        }
        in += step;
        size -= step;
    }
    return 1;
}

/* A block of a pcapng file. */
static int32_t read_pcapng(mqqb_capture *c, const uint8_t *in, uint64_t room, view *v)
{
    const int is_section = room >= 4 && be32(in) == 0x0A0D0D0Au;
    const mqqb_capture_interface *interface;
    uint32_t code, length;
    const uint8_t *const body = in + 8;
    uint64_t size, moment;

    if (room < (is_section ? 12u : 8u)) {
        return MQQB_CAPTURE_BAD_END;
    }
    if (is_section) {
        if (be32(in + 8) != 0x1A2B3C4Du && le32(in + 8) != 0x1A2B3C4Du) {
            return MQQB_CAPTURE_BAD_BLOCK;
        }
        c->swapped = be32(in + 8) == 0x1A2B3C4Du;
        c->interfaces_used = 0;
    }
    code = word32(c, in);
    length = word32(c, in + 4);
    if (length < (is_section ? 16u : 12u) || length % 4 != 0 || length > RECORD_MAX) {
        return MQQB_CAPTURE_BAD_SIZE;
    }
    if (room < length) {
        return MQQB_CAPTURE_BAD_END;
    }
    if (word32(c, in + length - 4) != length) { /* a power cut may leave zeros at the end */
        return MQQB_CAPTURE_BAD_BLOCK;
    }
    c->next = c->cursor + length;
    size = length - 12;
    if (code == 1) {
        mqqb_capture_interface *const made = &c->interfaces[c->interfaces_used];
        if (size < 8 || c->interfaces_used == MQQB_CAPTURE_INTERFACES) {
            return MQQB_CAPTURE_BAD_BLOCK;
        }
        c->interfaces_used++;
        made->link = word16(c, body);
        made->units = 1000000;
        if (!read_options(c, made, body + 8, size - 8)) {
            return MQQB_CAPTURE_BAD_BLOCK;
        }
    }
    if (code == 2 || code == 3) { /* obsolete packets without an interface or a time */
        return MQQB_CAPTURE_BAD_BLOCK;
    }
    if (code != 6) { /* enhanced packet block */
        c->cursor = c->next;
        return NO_FRAME;
    }
    if (size < 20 || word32(c, body) >= c->interfaces_used) {
        return MQQB_CAPTURE_BAD_BLOCK;
    }
    interface = &c->interfaces[word32(c, body)];
    moment = (uint64_t)word32(c, body + 4) << 32 | word32(c, body + 8);
    c->time = (int64_t)(moment / interface->units * 1000000000u +
                        moment % interface->units * (1000000000u / interface->units));
    v->in = body + 20;
    v->size = size - 20;
    if (v->size > word32(c, body + 12)) {
        v->size = word32(c, body + 12);
    }
    v->wire = word32(c, body + 16);
    v->link = interface->link;
    return 0;
}
