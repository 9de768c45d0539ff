/* mqqb_sockets.h: the TCP connections of a host, read and written many at a time. Common packets go to the fast path
 * (mqqb_fast.h) at once; all other bytes are items for the caller. Linux only: one epoll descriptor.
 *
 *     connection opens      mqqb_sockets_add; close and abort it by mqqb_sockets_remove
 *     bytes can be read     mqqb_sockets_turn, then mqqb_sockets_items
 *     after the commit      mqqb_sockets_acknowledge
 *
 * A socket is a small number, which is also the owner of its slot in the fast path. It is used again after
 * mqqb_sockets_remove.
 *
 * COST. Two system calls for each connection with a message, and 0.1 us. Memory: 32 bytes a socket, and the bytes that
 * the kernel has not taken. */
#ifndef MQQB_SOCKETS_H
#define MQQB_SOCKETS_H

#include "mqqb.h"
#include "mqqb_fast.h"

#ifdef __cplusplus
extern "C" {
#endif

/* mqqb_sockets_item.kind */
#define MQQB_SOCKETS_BYTES 0u   /* bytes[offset..offset + size) have come */
#define MQQB_SOCKETS_WRITTEN 1u /* the kernel has taken all bytes that were kept */
#define MQQB_SOCKETS_ENDED 2u   /* the peer has closed the connection; size: errno, 0 for a usual end */

typedef struct mqqb_sockets mqqb_sockets;

typedef struct {
    int32_t socket;
    uint32_t kind, offset, size;
} mqqb_sockets_item;

/* fast: the fast path of these connections, or NULL. unwritten_max: bytes kept for one peer; a peer that lets more
 * acknowledgements wait is disconnected. NULL: no memory, or no file descriptor. */
mqqb_sockets *mqqb_sockets_new(mqqb_fast *fast, uint32_t unwritten_max);
void mqqb_sockets_free(mqqb_sockets *s);

/* The epoll descriptor: readable while a turn would find something. */
int mqqb_sockets_descriptor(const mqqb_sockets *s);

/* Take over a connected socket. Returns its number; -1: no memory, the descriptor stays the caller's. */
int32_t mqqb_sockets_add(mqqb_sockets *s, int descriptor);

/* Close a connection. Kept bytes are dropped. */
void mqqb_sockets_remove(mqqb_sockets *s, int32_t socket);

/* Stop reading: only kept bytes leave. */
void mqqb_sockets_mute(mqqb_sockets *s, int32_t socket);

/* The descriptor of a connection. */
int mqqb_sockets_file(const mqqb_sockets *s, int32_t socket);

/* Read from each readable connection once, and write kept bytes. Ends early when the buffer is full: the rest comes in
 * the next turn. wall: s since 1970, for the fast path. Returns the number of items, valid until the next turn. */
uint32_t mqqb_sockets_turn(mqqb_sockets *s, int64_t wall);
const mqqb_sockets_item *mqqb_sockets_items(const mqqb_sockets *s);
const uint8_t *mqqb_sockets_bytes(const mqqb_sockets *s);

/* Number of connections that were heard in the last whole second, or in this one if they are more. */
uint32_t mqqb_sockets_busy(const mqqb_sockets *s);

/* Write, or keep what the kernel does not take. Returns the number of bytes kept now; -1: no memory, nothing is
 * written. A broken connection takes everything; the next turn reports its end. */
int64_t mqqb_sockets_write(mqqb_sockets *s, int32_t socket, const uint8_t *data, uint32_t size);

/* Number of bytes kept. */
uint32_t mqqb_sockets_kept(const mqqb_sockets *s, int32_t socket);

/* Write all acknowledgements of the fast path. Returns the number of connections that got some. */
uint32_t mqqb_sockets_acknowledge(mqqb_sockets *s);

#ifdef __cplusplus
}
#endif

#endif
