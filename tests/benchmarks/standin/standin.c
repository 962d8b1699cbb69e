/* A bookie stand-in for benchmarks: it speaks the bookie's side of the protocol, stores nothing on disk, and costs as
 * little as it can.
 *
 *     standin PORT          acknowledging sink: every add is acknowledged at once and forgotten
 *     standin PORT BYTES    replaying source: what is added stays in memory, up to so many bytes, and is replayed by
 * reads
 *
 * One thread, one epoll. All requests of a receive buffer are answered by one gathered send; a batch read is answered
 * straight from where the entries lie. Served: adds, reads, batch reads of v2; adds, reads and READ_LAC of v3
 * (wire-protocol.md 4, 5). Fences, keys and digests are not looked at: this is no bookie. "READY" on standard output
 * says that it listens.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "standin.h"

#define FRAME_MAX     (5u * 1024 * 1024)
#define INPUT_BYTES   (8u * 1024 * 1024) /* more than one frame, so that there is always room for the rest of one */
#define QUEUED_MAX    (8u * 1024 * 1024) /* answers that wait to be sent; beyond, no more requests are taken */
#define COPY_MAX      2048  /* smaller bodies are copied behind their header: cheaper than a piece of their own */
#define MOVE_MAX      65536 /* a smaller rest is moved to the front, so that the same cache lines are used again */
#define RECEIVE_MAX   (512u * 1024) /* at once: what fits into a cache */
#define PIECES_MAX    512           /* of one gathered send */
#define SEND_BYTES    (512 * 1024)  /* that the kernel holds of a connection: still in a cache when they are received */
#define EVENTS_MAX    64
#define V2_PREFIX     24
#define V2_BATCH_HEAD 32

static store_t store;

/* --- answers waiting to be sent ------------------------------------------------------------------------------------
 */

/* Bytes of the connection's own `text` from `at` on when `stored` is NULL, else entries where they lie. */
typedef struct {
    const uint8_t *stored;
    size_t at;
    size_t size;
} piece_t;

typedef struct {
    int fd;
    uint8_t *input;
    size_t begin, end; /* what is received and not yet understood */
    uint8_t *text;
    size_t text_size, text_room;
    piece_t *pieces;
    size_t first, count, room;
    size_t queued;
    uint32_t interest;
} connection_t;

static void *must(void *memory) {
    if (memory == NULL) {
        perror("standin: memory");
        exit(1);
    }
    return memory;
}

static piece_t *new_piece(connection_t *c) {
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 256;
        c->pieces = must(realloc(c->pieces, c->room * sizeof *c->pieces));
    }
    return &c->pieces[c->count++];
}

/* Room for `size` bytes of text at the end of what is queued; valid until the next call. */
static uint8_t *add_text(connection_t *c, size_t size) {
    if (c->text_size + size > c->text_room) {
        c->text_room = 2 * (c->text_size + size) + 65536;
        c->text = must(realloc(c->text, c->text_room));
    }
    piece_t *last = c->count > c->first ? &c->pieces[c->count - 1] : NULL;
    if (last == NULL || last->stored != NULL) {
        last = new_piece(c);
        *last = (piece_t){NULL, c->text_size, 0};
    }
    last->size += size;
    c->queued += size;
    c->text_size += size;
    return c->text + c->text_size - size;
}

static void add_stored(connection_t *c, const uint8_t *data, size_t size) {
    if (size <= COPY_MAX) {
        if (size > 0) {
            memcpy(add_text(c, size), data, size);
        }
        return;
    }
    *new_piece(c) = (piece_t){data, 0, size};
    c->queued += size;
}

static void sent(connection_t *c, size_t size) {
    c->queued -= size;
    while (size > 0) {
        piece_t *piece = &c->pieces[c->first];
        size_t part = size < piece->size ? size : piece->size;
        if (piece->stored != NULL) {
            piece->stored += part;
        } else {
            piece->at += part;
        }
        piece->size -= part;
        size -= part;
        if (piece->size == 0) {
            c->first++;
        }
    }
    if (c->queued == 0) {
        c->first = c->count = c->text_size = 0;
    }
}

/* False when the peer is gone. */
static bool send_answers(connection_t *c) {
    while (c->queued > 0) {
        struct iovec parts[PIECES_MAX];
        size_t count = 0;
        for (size_t i = c->first; i < c->count && count < PIECES_MAX; i++, count++) {
            const piece_t *piece = &c->pieces[i];
            parts[count].iov_base = piece->stored != NULL ? (void *)(uintptr_t)piece->stored : c->text + piece->at;
            parts[count].iov_len = piece->size;
        }
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
        ssize_t done = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done < 0) {
            return errno == EAGAIN || errno == EINTR;
        }
        sent(c, (size_t)done);
    }
    return true;
}

/* --- v2 ------------------------------------------------------------------------------------------------------------
 */

/* The length, the prefix that all answers share, and `more` bytes of room behind it, which are returned. `follows`
 * bytes come later. */
static uint8_t *v2_head(connection_t *c, uint32_t word, uint32_t code, const uint8_t *ids, size_t more,
                        size_t follows) {
    uint8_t *at = add_text(c, 4 + V2_PREFIX + more);
    put_u32(at, (uint32_t)(V2_PREFIX + more + follows));
    put_u32(at + 4, word);
    put_u32(at + 8, code);
    memcpy(at + 12, ids, 16);
    return at + 4 + V2_PREFIX;
}

static bool v2_add(connection_t *c, const uint8_t *request, size_t size) {
    if (size < 24 + 32) {
        return false;
    }
    const uint8_t *body = request + 24;
    uint32_t code = store_add(&store, body, size - 24) ? 0 : 101;
    v2_head(c, 0x02010000u, code, body, 0, 0);
    return true;
}

static bool v2_read(connection_t *c, const uint8_t *request, size_t size) {
    if (size < 20) {
        return false;
    }
    slice_t found;
    uint32_t code = store_read(&store, get_i64(request + 4), get_i64(request + 12), &found);
    v2_head(c, 0x02020000u, code, request + 4, 0, found.size);
    add_stored(c, found.data, found.size);
    return true;
}

static bool v2_batch(connection_t *c, const uint8_t *request, size_t size) {
    if (size < 40) {
        return false;
    }
    int64_t bytes_max = get_i64(request + 32);
    bytes_max = bytes_max > FRAME_MAX ? FRAME_MAX : bytes_max;
    slice_t found;
    uint32_t code = store_batch(&store, get_i64(request + 4), get_i64(request + 12), (int32_t)get_u32(request + 28),
                                bytes_max - 4 - V2_BATCH_HEAD, &found);
    memcpy(v2_head(c, 0x02070000u, code, request + 4, 8, found.size), request + 20, 8);
    add_stored(c, found.data, found.size);
    return true;
}

/* False for what no bookie understands: the connection is closed, as a bookie does. */
static bool v2_request(connection_t *c, const uint8_t *request, size_t size) {
    switch (size < 4 ? 0 : request[1]) {
    case 1:
        return v2_add(c, request, size);
    case 2:
        return v2_read(c, request, size);
    case 7:
        return v2_batch(c, request, size);
    default:
        return false;
    }
}

/* --- v3 ------------------------------------------------------------------------------------------------------------
 */

/* An answer with the inner message `field`: status, ledger, entry (unless it is READ_LAC's) and a body, as field 4
 * in all of them (of READ_LAC that is lastEntryBody). */
static void v3_answer(connection_t *c, const v3_request_t *request, uint32_t status, unsigned field, slice_t body) {
    bool has_body = body.size > 0 && status == 0;
    const unsigned body_field = 4;
    uint8_t inner[64], *p = inner;
    p = put_field(p, 1, status);
    p = put_field(p, 2, (uint64_t)request->ledger);
    if (request->operation != V3_READ_LAC) {
        p = put_field(p, 3, (uint64_t)request->entry);
    }
    if (has_body) {
        p = put_varint(p, body_field << 3 | 2);
        p = put_varint(p, body.size);
    }
    size_t inner_size = (size_t)(p - inner);
    uint8_t header[32], *h = header;
    h = put_field(h, 1, 3);
    h = put_field(h, 2, request->operation);
    h = put_field(h, 3, request->transaction);
    size_t header_size = (size_t)(h - header);
    size_t follows = has_body ? body.size : 0;
    uint8_t front[64], *f = front;
    f = put_varint(f, 1 << 3 | 2);
    f = put_varint(f, header_size);
    memcpy(f, header, header_size);
    f = put_field(f + header_size, 2, status);
    if (field != 0) {
        f = put_varint(f, field << 3 | 2);
        f = put_varint(f, inner_size + follows);
    } else {
        inner_size = follows = 0;
    }
    size_t front_size = (size_t)(f - front);
    uint8_t *at = add_text(c, 4 + front_size + inner_size);
    put_u32(at, (uint32_t)(front_size + inner_size + follows));
    memcpy(at + 4, front, front_size);
    memcpy(at + 4 + front_size, inner, inner_size);
    add_stored(c, body.data, follows);
}

static bool v3_request(connection_t *c, const uint8_t *data, size_t size) {
    v3_request_t request;
    if (!v3_parse(data, size, &request)) {
        return false;
    }
    static const uint32_t codes[] = {0, 402, 403}; /* of what store_read says */
    slice_t found = {NULL, 0};
    switch (request.operation) {
    case V3_ADD:
        if (request.body_size < 32) {
            return false;
        }
        v3_answer(c, &request, store_add(&store, request.body, request.body_size) ? 0 : 501, 101, found);
        return true;
    case V3_READ:
        v3_answer(c, &request, codes[store_read(&store, request.ledger, request.entry, &found)], 100, found);
        return true;
    case V3_READ_LAC:
        v3_answer(c, &request, codes[store_read(&store, request.ledger, -1, &found)], 104, found);
        return true;
    default:
        v3_answer(c, &request, 404, 0, found);
        return true;
    }
}

/* --- connections -----------------------------------------------------------------------------------------------------
 */

/* Answers every whole request, up to the bound on queued answers. False when the connection must be closed. */
static bool take_requests(connection_t *c) {
    while (c->queued < QUEUED_MAX && c->end - c->begin >= 5) {
        const uint8_t *frame = c->input + c->begin;
        uint32_t size = get_u32(frame);
        if (size == 0 || size + 4 > FRAME_MAX) {
            return false;
        }
        if (c->end - c->begin < 4 + (size_t)size) {
            break;
        }
        if (!(frame[4] < 8 ? v2_request(c, frame + 4, size) : v3_request(c, frame + 4, size))) {
            return false;
        }
        c->begin += 4 + (size_t)size;
    }
    if (c->end - c->begin < MOVE_MAX) {
        memmove(c->input, c->input + c->begin, c->end - c->begin);
        c->end -= c->begin;
        c->begin = 0;
    }
    return true;
}

static bool receive(connection_t *c) {
    if (INPUT_BYTES - c->end < FRAME_MAX / 2 && c->begin > 0) {
        memmove(c->input, c->input + c->begin, c->end - c->begin);
        c->end -= c->begin;
        c->begin = 0;
    }
    if (c->end == INPUT_BYTES) {
        return true;
    }
    size_t room = INPUT_BYTES - c->end;
    ssize_t got = recv(c->fd, c->input + c->end, room < RECEIVE_MAX ? room : RECEIVE_MAX, MSG_DONTWAIT);
    if (got <= 0) {
        return got < 0 && (errno == EAGAIN || errno == EINTR);
    }
    c->end += (size_t)got;
    return true;
}

static bool serve(connection_t *c, uint32_t events) {
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) && c->queued < QUEUED_MAX && !receive(c)) {
        return false;
    }
    /* what waited for room is taken as soon as there is some */
    size_t input, queued;
    do {
        input = c->end - c->begin;
        queued = c->queued;
        if (!take_requests(c) || !send_answers(c)) {
            return false;
        }
    } while (c->queued == 0 && c->end > c->begin && (queued > 0 || c->end - c->begin < input));
    return true;
}

static void watch(int epoll, connection_t *c, int operation) {
    uint32_t interest = (c->queued < QUEUED_MAX ? EPOLLIN : 0u) | (c->queued > 0 ? EPOLLOUT : 0u);
    if (operation == EPOLL_CTL_MOD && interest == c->interest) {
        return;
    }
    c->interest = interest;
    struct epoll_event event = {.events = interest, .data.ptr = c};
    epoll_ctl(epoll, operation, c->fd, &event);
}

static void welcome(int epoll, int listener) {
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
        return;
    }
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int room = SEND_BYTES;
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    connection_t *c = must(calloc(1, sizeof *c));
    c->fd = fd;
    c->input = must(malloc(INPUT_BYTES));
    watch(epoll, c, EPOLL_CTL_ADD);
}

static void farewell(connection_t *c) {
    close(c->fd);
    free(c->input);
    free(c->text);
    free(c->pieces);
    free(c);
}

static int listen_on(uint16_t port) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1;
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || listen(listener, 128) < 0) {
        perror("standin: listen");
        exit(1);
    }
    return listener;
}

int main(int count, char **arguments) {
    if (count < 2) {
        fprintf(stderr, "usage: standin PORT [BYTES_KEPT]\n");
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    store.bytes_max = count > 2 ? strtoull(arguments[2], NULL, 10) : 0;
    int listener = listen_on((uint16_t)atoi(arguments[1]));
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    puts("READY");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[EVENTS_MAX];
        int ready = epoll_wait(epoll, events, EVENTS_MAX, -1);
        for (int i = 0; i < ready; i++) {
            connection_t *c = events[i].data.ptr;
            if (c == NULL) {
                welcome(epoll, listener);
            } else if (serve(c, events[i].events)) {
                watch(epoll, c, EPOLL_CTL_MOD);
            } else {
                farewell(c);
            }
        }
    }
}
