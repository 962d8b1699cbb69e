/* What the stand-in is made of: numbers on the wire, v3 requests, and entries kept in memory. */
#ifndef BK_STANDIN_H
#define BK_STANDIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* --- numbers on the wire: big-endian, and protobuf's
 * ------------------------------------------------------------------ */

static inline uint32_t get_u32(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static inline int64_t get_i64(const uint8_t *at) {
    return (int64_t)((uint64_t)get_u32(at) << 32 | get_u32(at + 4));
}

static inline void put_u32(uint8_t *at, uint32_t value) {
    at[0] = (uint8_t)(value >> 24);
    at[1] = (uint8_t)(value >> 16);
    at[2] = (uint8_t)(value >> 8);
    at[3] = (uint8_t)value;
}

static inline uint8_t *put_varint(uint8_t *at, uint64_t value) {
    while (value >= 128) {
        *at++ = (uint8_t)(value | 128);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

static inline uint8_t *put_field(uint8_t *at, unsigned field, uint64_t value) {
    return put_varint(put_varint(at, field << 3), value);
}

/* --- v3 requests
 * ------------------------------------------------------------------------------------------------------ */

enum { V3_READ = 1, V3_ADD = 2, V3_READ_LAC = 7 };

typedef struct {
    uint32_t operation;
    uint64_t transaction;
    int64_t ledger, entry;
    const uint8_t *body;
    size_t body_size;
} v3_request_t;

/* False if it is no request. */
bool v3_parse(const uint8_t *data, size_t size, v3_request_t *request);

/* --- entries in memory
 * ------------------------------------------------------------------------------------------------ */

typedef struct {
    const uint8_t *data;
    size_t size;
} slice_t;

/* `u32 size, body` one after the other, as a batch read wants them; entry i of them has id ids[i] and starts at
 * starts[i]. */
typedef struct ledger {
    int64_t id;
    struct ledger *next;
    uint8_t *data;
    size_t size;
    int64_t *ids;
    size_t *starts;
    size_t count, room;
} ledger_t;

#define LEDGER_BUCKETS 16384

/* With `bytes_max` 0 nothing is kept. */
typedef struct {
    uint64_t bytes, bytes_max;
    ledger_t *buckets[LEDGER_BUCKETS];
} store_t;

/* False when memory is used up. Entries of a ledger must come in ascending order; one that comes again is acknowledged
 * and dropped. */
bool store_add(store_t *store, const uint8_t *body, size_t size);

/* The body of an entry; -1 is the last one. 0, or 1 for an unknown ledger, 2 for an unknown entry, with an empty slice.
 */
uint32_t store_read(const store_t *store, int64_t ledger, int64_t entry, slice_t *found);

/* Consecutive entries from `entry` on with their sizes in front, at least one, at most `count` (0: any number) and
 * `bytes_max` in all. */
uint32_t store_batch(const store_t *store, int64_t ledger, int64_t entry, int32_t count, int64_t bytes_max,
                     slice_t *found);

#endif
