#include "entries.h"

#include <string.h>

#include "digest.h"

#define LENGTH_BYTES     4
#define HEADER_BYTES_MAX 0x7FFFFFFF

static void store_native(uint8_t *values, size_t index, int64_t value) {
    memcpy(values + 8 * index, &value, sizeof value);
}

static bk_entries_status prepare(const bk_entries *entries, bk_digest *digest, bk_entries_result *result) {
    memset(result, 0, sizeof *result);
    if (entries->header_bytes < 0 || entries->header_bytes > HEADER_BYTES_MAX) {
        return BK_ENTRIES_BAD_HEADER_BYTES;
    }
    if (entries->ledger_id < 0) {
        return BK_ENTRIES_BAD_LEDGER;
    }
    switch (bk_digest_prepare(digest, entries->digest_type, entries->hmac_key, entries->hmac_key_size)) {
    case BK_DIGEST_BAD_TYPE:
        return BK_ENTRIES_BAD_DIGEST_TYPE;
    case BK_DIGEST_BAD_KEY:
        return BK_ENTRIES_BAD_HMAC_KEY;
    case BK_DIGEST_OK:
        break;
    }
    if (entries->first_entry_id < -1) {
        return BK_ENTRIES_BAD_FIRST_ENTRY;
    }
    return entries->step < 1 || entries->step > INT32_MAX ? BK_ENTRIES_BAD_STEP : BK_ENTRIES_OK;
}

/* Steps over the item at *at. On success *body and *body_size name bytes inside the data, at least header and digest.
 */
static bk_entries_status next_item(const bk_entries *entries, const bk_digest *digest, size_t *at, const uint8_t **body,
                                   size_t *body_size, bk_entries_result *result) {
    size_t rest = entries->size - *at;
    result->got = rest;
    result->wanted = LENGTH_BYTES;
    if (rest < LENGTH_BYTES) {
        return BK_ENTRIES_CUT_LENGTH;
    }
    uint64_t item_bytes = bk_load_be32(entries->data + *at);
    rest -= LENGTH_BYTES;
    result->got = item_bytes;
    result->wanted = (uint64_t)entries->header_bytes + BK_ENTRY_HEADER_BYTES + digest->bytes;
    if (item_bytes < result->wanted) {
        return BK_ENTRIES_SHORT;
    }
    if (rest < item_bytes) {
        result->got = rest;
        result->wanted = item_bytes;
        return BK_ENTRIES_CUT;
    }
    *body = entries->data + *at + LENGTH_BYTES + (size_t)entries->header_bytes;
    *body_size = (size_t)(item_bytes - (uint64_t)entries->header_bytes);
    *at += LENGTH_BYTES + (size_t)item_bytes;
    return BK_ENTRIES_OK;
}

bk_entries_status bk_measure_entries(const bk_entries *entries, bk_entries_result *result) {
    bk_digest digest;
    bk_entries_status status = prepare(entries, &digest, result);
    for (size_t at = 0; status == BK_ENTRIES_OK && at < entries->size;) {
        const uint8_t *body;
        size_t body_size;
        result->item = result->count;
        status = next_item(entries, &digest, &at, &body, &body_size, result);
        if (status == BK_ENTRIES_OK) {
            result->count++;
            result->value_bytes += body_size - BK_ENTRY_HEADER_BYTES - digest.bytes;
        }
    }
    if (status == BK_ENTRIES_OK && entries->first_entry_id >= 0 && result->count > 0 &&
        result->count - 1 > (uint64_t)((INT64_MAX - entries->first_entry_id) / entries->step)) {
        return BK_ENTRIES_ENTRY_OVERFLOW;
    }
    return status;
}

/* A call of memcmp costs as much as half of the digest of a small entry. That of an HMAC must not tell by its time how
 * many of its bytes were right, so every byte is looked at, through a volatile that keeps the compiler from leaving
 * early. */
static inline int same_digest(const bk_digest *digest, const uint8_t *computed, const uint8_t *stored) {
    if (digest->type == BK_DIGEST_CRC32C) {
        return bk_load_be32(computed) == bk_load_be32(stored);
    }
    volatile uint8_t different = 0;
    for (size_t i = 0; i < digest->bytes; i++) {
        different = (uint8_t)(different | (computed[i] ^ stored[i]));
    }
    return different == 0;
}

/* `body` is a private view of header, digest and payload; the copies go to columns at result->count. */
static bk_entries_status unpack_item(const bk_entries *entries, const bk_digest *digest, const uint8_t *body,
                                     size_t payload_size, const bk_columns *columns, bk_entries_result *result) {
    uint8_t header[BK_ENTRY_HEADER_BYTES];
    uint8_t computed[BK_DIGEST_BYTES_MAX];
    uint8_t *value = columns->values + result->value_bytes;
    memcpy(header, body, sizeof header);
    result->ledger_id = bk_load_be64(header);
    result->entry_id = bk_load_be64(header + 8);
    /* Over the copies: what was checked is what the caller gets. */
    bk_digest_copy(digest, header, body + BK_ENTRY_HEADER_BYTES + digest->bytes, payload_size, value, computed);
    if (!same_digest(digest, computed, body + BK_ENTRY_HEADER_BYTES)) {
        return BK_ENTRIES_WRONG_DIGEST;
    }
    if (result->ledger_id != entries->ledger_id) {
        return BK_ENTRIES_WRONG_LEDGER;
    }
    if (entries->first_entry_id >= 0) {
        /* More items than were measured may be there by now; such a number means nothing then, but is no overflow. */
        result->wanted = (uint64_t)entries->first_entry_id + (uint64_t)entries->step * result->count;
        if ((uint64_t)result->entry_id != result->wanted) {
            return BK_ENTRIES_WRONG_ENTRY;
        }
    }
    if (columns->entry_ids != NULL) {
        store_native(columns->entry_ids, result->count, result->entry_id);
        store_native(columns->lacs_and_lengths, 2 * result->count, bk_load_be64(header + 16));
        store_native(columns->lacs_and_lengths, 2 * result->count + 1, bk_load_be64(header + 24));
    }
    return BK_ENTRIES_OK;
}

/* One more item behind those that are there. */
static bk_entries_status add_item(const bk_entries *entries, const bk_digest *digest, const uint8_t *body,
                                  size_t body_size, const bk_columns *columns, bk_entries_result *result) {
    size_t payload_size = body_size - BK_ENTRY_HEADER_BYTES - digest->bytes;
    if (result->count >= columns->count || columns->value_bytes - result->value_bytes < payload_size) {
        return BK_ENTRIES_NO_ROOM;
    }
    bk_entries_status status = unpack_item(entries, digest, body, payload_size, columns, result);
    if (status == BK_ENTRIES_OK) {
        result->count++;
        result->value_bytes += payload_size;
        store_native(columns->offsets, result->count, (int64_t)result->value_bytes);
    }
    return status;
}

bk_entries_status bk_unpack_entries(const bk_entries *entries, const bk_columns *columns, bk_entries_result *result) {
    bk_digest digest;
    bk_entries_status status = prepare(entries, &digest, result);
    if (status != BK_ENTRIES_OK) {
        return status;
    }
    store_native(columns->offsets, 0, 0);
    for (size_t at = 0; at < entries->size;) {
        const uint8_t *body;
        size_t body_size;
        result->item = result->count;
        status = next_item(entries, &digest, &at, &body, &body_size, result);
        if (status != BK_ENTRIES_OK) {
            return status;
        }
        status = add_item(entries, &digest, body, body_size, columns, result);
        if (status != BK_ENTRIES_OK) {
            return status;
        }
    }
    return BK_ENTRIES_OK;
}

bk_entries_status bk_unpack_part(const bk_entries *entries, const bk_columns *columns, size_t taken,
                                 bk_entries_result *result) {
    bk_digest digest;
    int64_t offset;
    bk_entries_status status = prepare(entries, &digest, result);
    if (status != BK_ENTRIES_OK) {
        return status;
    }
    if (columns->count > 0 && columns->count - 1 > (uint64_t)((INT64_MAX - entries->first_entry_id) / entries->step)) {
        result->count = columns->count;
        return BK_ENTRIES_ENTRY_OVERFLOW;
    }
    result->item = taken;
    memcpy(&offset, columns->offsets + 8 * taken, sizeof offset);
    if (offset < 0 || (uint64_t)offset > columns->value_bytes) {
        return BK_ENTRIES_NO_ROOM;
    }
    result->count = taken;
    result->value_bytes = (size_t)offset;
    for (;;) {
        const uint8_t *body;
        size_t body_size, at = result->consumed;
        result->item = result->count;
        status = next_item(entries, &digest, &at, &body, &body_size, result);
        if (status == BK_ENTRIES_CUT_LENGTH) {
            result->next = result->got == 0 ? 0 : LENGTH_BYTES;
            return BK_ENTRIES_OK;
        }
        if (status == BK_ENTRIES_CUT) {
            result->next = LENGTH_BYTES + result->wanted;
            return BK_ENTRIES_OK;
        }
        if (status != BK_ENTRIES_OK) {
            return status;
        }
        if (result->count == columns->count) {
            result->next = at - result->consumed;
            return BK_ENTRIES_OK;
        }
        status = add_item(entries, &digest, body, body_size, columns, result);
        if (status != BK_ENTRIES_OK) {
            return status;
        }
        result->consumed = at;
    }
}
