/* Read answers: from many entry bodies to columns, every digest checked (wire-protocol.md 5.3, 7.1 - 7.3). */
#ifndef BK_ENTRIES_H
#define BK_ENTRIES_H

#include <stddef.h>
#include <stdint.h>

typedef enum {
    BK_ENTRIES_OK = 0,
    BK_ENTRIES_BAD_HEADER_BYTES,
    BK_ENTRIES_BAD_LEDGER,
    BK_ENTRIES_BAD_DIGEST_TYPE,
    BK_ENTRIES_BAD_HMAC_KEY,
    BK_ENTRIES_BAD_FIRST_ENTRY,
    BK_ENTRIES_BAD_STEP,
    BK_ENTRIES_CUT_LENGTH,     /* got of 4 length bytes */
    BK_ENTRIES_SHORT,          /* an item of `got` bytes needs at least `wanted` */
    BK_ENTRIES_CUT,            /* got of wanted bytes */
    BK_ENTRIES_WRONG_DIGEST,   /* ledger_id, entry_id: as they stand in the body */
    BK_ENTRIES_ENTRY_OVERFLOW, /* count */
    BK_ENTRIES_WRONG_LEDGER,   /* the same as for a wrong digest */
    BK_ENTRIES_WRONG_ENTRY,    /* the same, and wanted */
    BK_ENTRIES_NO_ROOM
} bk_entries_status;

typedef struct {
    const uint8_t *data; /* items of u32 length | header_bytes ignored bytes | body */
    size_t size;
    int64_t header_bytes;
    int64_t ledger_id;
    int64_t digest_type;
    const uint8_t *hmac_key;
    size_t hmac_key_size;
    int64_t first_entry_id; /* ids must be this, this + step, ...; -1: any ids */
    int64_t step;
} bk_entries;

typedef struct {
    size_t count;
    size_t value_bytes; /* all payloads together */
    size_t consumed;    /* bk_unpack_part: bytes of the items taken */
    uint64_t next;      /* bk_unpack_part: bytes of the item behind them, its length included, if that begins there */
    size_t item;        /* the item an error speaks of */
    uint64_t got;
    uint64_t wanted;
    int64_t ledger_id;
    int64_t entry_id;
} bk_entries_result;

/* Where the columns go; capacities are given by the two numbers. All int64 values are native, nothing need be aligned.
 */
typedef struct {
    size_t count;              /* items */
    size_t value_bytes;        /* bytes */
    uint8_t *entry_ids;        /* count int64; NULL, not wanted, as lacs_and_lengths */
    uint8_t *offsets;          /* count + 1 int64 into values */
    uint8_t *values;           /* value_bytes */
    uint8_t *lacs_and_lengths; /* count pairs of int64 */
} bk_columns;

/* Checks the arguments and the structure of all items, and says how much room the columns need. */
bk_entries_status bk_measure_entries(const bk_entries *entries, bk_entries_result *result);

/* Copies the columns out and checks digest, ledger id and entry id of every item, in this order. The structure is
 * checked again, because another thread may have written to the input since it was measured. */
bk_entries_status bk_unpack_entries(const bk_entries *entries, const bk_columns *columns, bk_entries_result *result);

/* The same for the next part of the items, which may end inside of one: it goes on at `taken` entries and the offset
 * that stands there, and stops before the item that is not whole or that the columns have no place for.
 * first_entry_id is that of entry 0 and not -1; entry ids, LACs and lengths are not wanted. Items are numbered from
 * entry 0. NO_ROOM: the values are full, or the offset is none of them. */
bk_entries_status bk_unpack_part(const bk_entries *entries, const bk_columns *columns, size_t taken,
                                 bk_entries_result *result);

#endif
