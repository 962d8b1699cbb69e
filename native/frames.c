#include "frames.h"

#include <string.h>

#include "digest.h"

#define ADD_WORD         0x02010000u /* protocol version 2, ADDENTRY */
#define ADD_PREFIX_BYTES (BK_LENGTH_BYTES + 4 + BK_KEY_BYTES)

static int64_t load_native(const uint8_t *values, size_t index) {
    int64_t value;
    memcpy(&value, values + 8 * index, sizeof value);
    return value;
}

static void store_native(uint8_t *values, size_t index, int64_t value) {
    memcpy(values + 8 * index, &value, sizeof value);
}

bk_scan_status bk_scan_frames(const uint8_t *data, size_t size, int64_t frame_bytes_max, uint8_t *bounds,
                              size_t bounds_capacity, bk_scan_result *result) {
    memset(result, 0, sizeof *result);
    if (frame_bytes_max <= BK_LENGTH_BYTES || frame_bytes_max > BK_FRAME_MAX) {
        return BK_SCAN_BAD_LIMIT;
    }
    while (size - result->consumed >= BK_LENGTH_BYTES) {
        size_t start = result->consumed + BK_LENGTH_BYTES;
        uint32_t payload_bytes = bk_load_be32(data + result->consumed);
        if (payload_bytes == 0) {
            return BK_SCAN_EMPTY;
        }
        if ((uint64_t)payload_bytes + BK_LENGTH_BYTES > (uint64_t)frame_bytes_max) {
            result->frame_bytes = (uint64_t)payload_bytes + BK_LENGTH_BYTES;
            return BK_SCAN_TOO_LONG;
        }
        if (size - start < payload_bytes) {
            break;
        }
        if (bounds != NULL) {
            if (result->count >= bounds_capacity) {
                return BK_SCAN_NO_ROOM;
            }
            store_native(bounds, 2 * result->count, (int64_t)start);
            store_native(bounds, 2 * result->count + 1, (int64_t)(start + payload_bytes));
        }
        result->count++;
        result->consumed = start + payload_bytes;
    }
    return BK_SCAN_OK;
}

static bk_adds_status check_fields(const bk_adds *adds, bk_digest *digest) {
    if (adds->offsets_size < 8 || adds->offsets_size % 8 != 0) {
        return BK_ADDS_BAD_OFFSETS_SIZE;
    }
    if (adds->ledger_id < 0) {
        return BK_ADDS_BAD_LEDGER;
    }
    if (adds->first_entry_id < 0) {
        return BK_ADDS_BAD_ENTRY;
    }
    if (adds->last_add_confirmed < -1) {
        return BK_ADDS_BAD_LAC;
    }
    if (adds->length_before < 0) {
        return BK_ADDS_BAD_LENGTH;
    }
    switch (bk_digest_prepare(digest, adds->digest_type, adds->hmac_key, adds->hmac_key_size)) {
    case BK_DIGEST_BAD_TYPE:
        return BK_ADDS_BAD_DIGEST_TYPE;
    case BK_DIGEST_BAD_KEY:
        return BK_ADDS_BAD_HMAC_KEY;
    case BK_DIGEST_OK:
        break;
    }
    if (adds->master_key_size != BK_KEY_BYTES) {
        return BK_ADDS_BAD_MASTER_KEY;
    }
    if (adds->flags < 0 || adds->flags > 0xFFFF) {
        return BK_ADDS_BAD_FLAGS;
    }
    return BK_ADDS_OK;
}

/* One offset: inside the payloads, not below the one before it, and not too far above it. */
static bk_adds_status check_offset(const bk_adds *adds, size_t index, int64_t before, int64_t offset, size_t overhead,
                                   bk_adds_result *result) {
    result->index = index;
    result->value = offset;
    if (offset < 0 || (uint64_t)offset > adds->payloads_size) {
        return BK_ADDS_OFFSET_OUTSIDE;
    }
    if (offset < before) {
        return BK_ADDS_OFFSET_DECREASING;
    }
    if (index > 0 && offset - before > BK_FRAME_MAX - (int64_t)overhead) {
        result->index = index - 1;
        result->value = offset - before;
        return BK_ADDS_PAYLOAD_TOO_LONG;
    }
    return BK_ADDS_OK;
}

static bk_adds_status measure(const bk_adds *adds, bk_digest *digest, bk_adds_result *result) {
    memset(result, 0, sizeof *result);
    bk_adds_status status = check_fields(adds, digest);
    if (status != BK_ADDS_OK) {
        return status;
    }
    result->count = adds->offsets_size / 8 - 1;
    size_t overhead = ADD_PREFIX_BYTES + BK_ENTRY_HEADER_BYTES + digest->bytes;
    int64_t first = load_native(adds->offsets, 0);
    int64_t last = 0;
    for (size_t i = 0; i <= result->count; i++) {
        int64_t offset = load_native(adds->offsets, i);
        status = check_offset(adds, i, last, offset, overhead, result);
        if (status != BK_ADDS_OK) {
            return status;
        }
        last = offset;
    }
    if (result->count > 0 && adds->first_entry_id > INT64_MAX - (int64_t)(result->count - 1)) {
        return BK_ADDS_ENTRY_OVERFLOW;
    }
    result->value = last - first;
    if (last - first > INT64_MAX - adds->length_before) {
        return BK_ADDS_LENGTH_OVERFLOW;
    }
    result->frame_bytes = (uint64_t)result->count * overhead + (uint64_t)(last - first);
    return BK_ADDS_OK;
}

bk_adds_status bk_measure_adds(const bk_adds *adds, bk_adds_result *result) {
    bk_digest digest;
    return measure(adds, &digest, result);
}

/* `payload_size` fits: the caller checked it against BK_FRAME_MAX and the room left. */
static void write_add(const bk_adds *adds, const bk_digest *digest, const uint8_t *payload, size_t payload_size,
                      int64_t entry_id, int64_t length, uint8_t *frame) {
    uint8_t *header = frame + ADD_PREFIX_BYTES;
    uint8_t *stored_digest = header + BK_ENTRY_HEADER_BYTES;
    uint8_t computed[BK_DIGEST_BYTES_MAX];
    size_t body_bytes = BK_ENTRY_HEADER_BYTES + digest->bytes + payload_size;
    bk_store_be32(frame, (uint32_t)(ADD_PREFIX_BYTES - BK_LENGTH_BYTES + body_bytes));
    bk_store_be32(frame + 4, ADD_WORD | (uint32_t)adds->flags);
    memcpy(frame + 8, adds->master_key, BK_KEY_BYTES);
    bk_store_be64(header, adds->ledger_id);
    bk_store_be64(header + 8, entry_id);
    bk_store_be64(header + 16, adds->last_add_confirmed);
    bk_store_be64(header + 24, length);
    bk_digest_copy(digest, header, payload, payload_size, stored_digest + digest->bytes, computed);
    memcpy(stored_digest, computed, digest->bytes);
}

bk_adds_status bk_write_adds(const bk_adds *adds, uint8_t *frames, size_t frames_capacity, uint8_t *frame_offsets,
                             size_t frame_offsets_capacity, bk_adds_result *result) {
    bk_digest digest;
    bk_adds_status status = measure(adds, &digest, result);
    if (status != BK_ADDS_OK) {
        return status;
    }
    if (frame_offsets_capacity / 8 <= result->count || frames_capacity < result->frame_bytes) {
        return BK_ADDS_NO_ROOM;
    }
    size_t overhead = ADD_PREFIX_BYTES + BK_ENTRY_HEADER_BYTES + digest.bytes;
    size_t at = 0;
    int64_t length = adds->length_before;
    int64_t start = load_native(adds->offsets, 0);
    status = check_offset(adds, 0, 0, start, overhead, result);
    if (status != BK_ADDS_OK) {
        return status;
    }
    store_native(frame_offsets, 0, 0);
    for (size_t i = 0; i < result->count; i++) {
        /* Each offset is read once and checked again, because it may have changed since the check above. */
        int64_t end = load_native(adds->offsets, i + 1);
        status = check_offset(adds, i + 1, start, end, overhead, result);
        if (status != BK_ADDS_OK) {
            return status;
        }
        size_t payload_size = (size_t)(end - start);
        if (frames_capacity - at < overhead || frames_capacity - at - overhead < payload_size) {
            return BK_ADDS_NO_ROOM;
        }
        length = (int64_t)((uint64_t)length + payload_size);
        write_add(adds, &digest, adds->payloads + start, payload_size, adds->first_entry_id + (int64_t)i, length,
                  frames + at);
        at += overhead + payload_size;
        start = end;
        store_native(frame_offsets, i + 1, (int64_t)at);
    }
    return BK_ADDS_OK;
}
