#include "v3.h"

#include <string.h>

#include "digest.h"

#define VERSION       3
#define READ          1 /* operations */
#define ADD           2
#define HIGH_PRIORITY 100
#define READ_WORD     0x02020000u /* protocol version 2, opcode, flags 0 */

#define ADD_PREFIX_BYTES 28 /* of a v2 add: length, header word, key */
#define RESPONSE_BYTES   24 /* of v2: word, code, ledger, entry */

/* Tags: field number << 3 | wire type. Those of fields from 16 on take two bytes. */
#define TAG_HEADER        0x0A
#define TAG_STATUS        0x10
#define TAG_READ          0x322 /* field 100 */
#define TAG_ADD           0x32A /* field 101 */
#define TAG_VERSION       0x08
#define TAG_OPERATION     0x10
#define TAG_NUMBER        0x18
#define TAG_INNER_STATUS  0x08
#define TAG_LEDGER        0x10
#define TAG_ENTRY         0x18
#define TAG_BODY          0x22
#define TAG_MAX_LAC       0x28
#define TAG_LAC_TIMESTAMP 0x30

/* --- requests ----------------------------------------------------------------------------------------------------- */

static size_t varint_bytes(uint64_t value) {
    size_t size = 1;
    for (; value >= 0x80; value >>= 7) {
        size++;
    }
    return size;
}

static uint8_t *put_varint(uint8_t *out, uint64_t value) {
    for (; value >= 0x80; value >>= 7) {
        *out++ = (uint8_t)(value | 0x80);
    }
    *out++ = (uint8_t)value;
    return out;
}

typedef struct {
    uint64_t header; /* bytes of the header's fields */
    uint64_t inner;  /* of the add's */
    uint64_t payload;
} request_sizes;

static request_sizes sizes_of(const bk_v3_adds *adds, int64_t entry_id, int64_t number, size_t body_bytes) {
    request_sizes sizes;
    sizes.header = 5 + varint_bytes((uint64_t)number) + (adds->recovery ? 2 : 0);
    sizes.inner = 1 + varint_bytes((uint64_t)adds->ledger_id) + 1 + varint_bytes((uint64_t)entry_id) + 2 +
                  BK_KEY_BYTES + 1 + varint_bytes(body_bytes) + body_bytes + (adds->deferred_sync ? 2 : 0) +
                  (adds->recovery ? 3 : 0);
    sizes.payload = 1 + varint_bytes(sizes.header) + sizes.header + 2 + varint_bytes(sizes.inner) + sizes.inner;
    return sizes;
}

/* Fields in ascending order, as protobuf writes them. `frame` is the v2 frame. */
static void write_request(const bk_v3_adds *adds, const request_sizes *sizes, int64_t entry_id, int64_t number,
                          const uint8_t *frame, size_t body_bytes, uint8_t *out) {
    static const uint8_t fixed[] = {TAG_VERSION, VERSION, TAG_OPERATION, ADD, TAG_NUMBER};
    bk_store_be32(out, (uint32_t)sizes->payload);
    out += BK_LENGTH_BYTES;
    *out++ = TAG_HEADER;
    out = put_varint(out, sizes->header);
    memcpy(out, fixed, sizeof fixed);
    out = put_varint(out + sizeof fixed, (uint64_t)number);
    if (adds->recovery) {
        *out++ = 0x20; /* priority */
        *out++ = HIGH_PRIORITY;
    }
    out = put_varint(out, TAG_ADD);
    out = put_varint(out, sizes->inner);
    *out++ = 0x08; /* ledger */
    out = put_varint(out, (uint64_t)adds->ledger_id);
    *out++ = 0x10; /* entry */
    out = put_varint(out, (uint64_t)entry_id);
    *out++ = 0x1A; /* master key */
    *out++ = BK_KEY_BYTES;
    memcpy(out, frame + ADD_PREFIX_BYTES - BK_KEY_BYTES, BK_KEY_BYTES);
    out += BK_KEY_BYTES;
    *out++ = 0x22; /* body */
    out = put_varint(out, body_bytes);
    memcpy(out, frame + ADD_PREFIX_BYTES, body_bytes);
    out += body_bytes;
    if (adds->deferred_sync) {
        *out++ = 0x28; /* write flags */
        *out++ = 1;
    }
    if (adds->recovery) {
        out = put_varint(out, 100 << 3); /* flag */
        *out++ = 1;
    }
}

bk_lanes_status bk_frame_adds_v3(const bk_v3_adds *adds, uint8_t *out, size_t capacity, bk_lanes_result *result) {
    const bk_selection *selection = &adds->adds;
    const uint8_t *frame;
    size_t size;
    bk_selected at;
    bk_lanes_status status = bk_check_selection(selection, result);
    if (status != BK_LANES_OK) {
        return status;
    }
    if (adds->ledger_id < 0) {
        return BK_LANES_BAD_LEDGER;
    }
    if (adds->first_number < 0) {
        return BK_LANES_BAD_NUMBER;
    }
    if (adds->first_number > INT64_MAX - (int64_t)result->size) {
        return BK_LANES_NUMBER_OVERFLOW;
    }
    bk_select_first(selection, &at);
    while ((status = bk_select_next(&at, &frame, &size, result)) == BK_LANES_OK && frame != NULL) {
        int64_t index = (int64_t)at.index - 1, entry_id = selection->first_entry_id + index;
        int64_t number = adds->first_number + (int64_t)result->entries;
        result->first = index;
        result->size = size;
        if (size < ADD_PREFIX_BYTES) {
            return BK_LANES_NO_ADD;
        }
        request_sizes sizes = sizes_of(adds, entry_id, number, size - ADD_PREFIX_BYTES);
        uint64_t bytes = BK_LENGTH_BYTES + sizes.payload;
        if (bytes > (uint64_t)BK_FRAME_MAX) {
            return BK_LANES_ADD_TOO_LONG;
        }
        if (out != NULL) {
            if (bytes > capacity - result->value_bytes) {
                return BK_LANES_NO_ROOM;
            }
            write_request(adds, &sizes, entry_id, number, frame, size - ADD_PREFIX_BYTES, out + result->value_bytes);
        }
        result->value_bytes += bytes;
        result->entries++;
    }
    return status;
}

/* A plain read: 8 + 1..9 bytes of header, 4 + 2..18 of ids, each with a length of one byte. */
static size_t write_read(const bk_heads *heads, int64_t index, uint8_t *out) {
    uint64_t ledger = (uint64_t)heads->ledger_id, number = (uint64_t)(heads->number + index);
    uint64_t entry = (uint64_t)(heads->first_entry_id + index * heads->step);
    size_t header = 5 + varint_bytes(number), inner = 2 + varint_bytes(ledger) + varint_bytes(entry);
    size_t payload = 2 + header + 3 + inner;
    if (out != NULL) {
        static const uint8_t fixed[] = {TAG_VERSION, VERSION, TAG_OPERATION, READ, TAG_NUMBER};
        bk_store_be32(out, (uint32_t)payload);
        out += BK_LENGTH_BYTES;
        *out++ = TAG_HEADER;
        *out++ = (uint8_t)header;
        memcpy(out, fixed, sizeof fixed);
        out = put_varint(put_varint(out + sizeof fixed, number), TAG_READ);
        *out++ = (uint8_t)inner;
        *out++ = 0x08; /* ledger */
        out = put_varint(out, ledger);
        *out++ = 0x10; /* entry */
        put_varint(out, entry);
    }
    return BK_LENGTH_BYTES + payload;
}

bk_run_status bk_frame_reads_v3(const bk_heads *heads, uint8_t *frames, size_t capacity, bk_run_result *result) {
    memset(result, 0, sizeof *result);
    bk_run_status status = bk_check_reads(heads);
    if (status != BK_RUN_OK) {
        return status;
    }
    if (heads->number < 0) {
        return BK_RUN_BAD_NUMBER;
    }
    if (heads->number > INT64_MAX - heads->count) {
        return BK_RUN_NUMBER_OVERFLOW;
    }
    for (int64_t i = 0; i < heads->count; i++) {
        size_t size = write_read(heads, i, NULL);
        if (frames != NULL) {
            if (size > capacity - result->frame_bytes) {
                return BK_RUN_NO_ROOM;
            }
            write_read(heads, i, frames + result->frame_bytes);
        }
        result->frame_bytes += size;
    }
    return BK_RUN_OK;
}

/* --- one response ------------------------------------------------------------------------------------------------- */

/* Bytes still to be read. */
typedef struct {
    const uint8_t *at;
    const uint8_t *end;
} message;

/* 0 if there is none, or one of more than 64 bits. */
static inline int take_varint(message *from, uint64_t *value) {
    uint64_t taken = 0;
    for (unsigned shift = 0; shift < 64 && from->at < from->end; shift += 7) {
        uint8_t byte = *from->at++;
        if (shift == 63 && byte > 1) {
            return 0;
        }
        taken |= (uint64_t)(byte & 0x7F) << shift;
        if (byte < 0x80) {
            *value = taken;
            return 1;
        }
    }
    return 0;
}

static inline int take_bytes(message *from, message *bytes) {
    uint64_t size;
    if (!take_varint(from, &size) || size > (uint64_t)(from->end - from->at)) {
        return 0;
    }
    *bytes = (message){.at = from->at, .end = from->at + size};
    from->at += size;
    return 1;
}

typedef struct {
    int operation;
    int64_t number;
    int64_t ledger_id;
    int64_t entry_id;
    message body;
    int has_max_lac;
    int64_t max_lac;
} response;

/* Fields that are told once only; a second one is left to the codec. */
static inline int once(unsigned *seen, unsigned bit) {
    unsigned before = *seen;
    *seen |= bit;
    return !(before & bit);
}

static inline int parse_header(message from, response *found) {
    unsigned seen = 0;
    while (from.at < from.end) {
        uint64_t tag, value;
        if (!take_varint(&from, &tag) || (tag != TAG_VERSION && tag != TAG_OPERATION && tag != TAG_NUMBER) ||
            !once(&seen, 1u << tag / 8) || !take_varint(&from, &value)) {
            return 0;
        }
        if (tag == TAG_VERSION && value != VERSION) {
            return 0;
        }
        if (tag == TAG_OPERATION) {
            if (value != READ && value != ADD) {
                return 0;
            }
            found->operation = (int)value;
        }
        if (tag == TAG_NUMBER) {
            found->number = (int64_t)value;
        }
    }
    return seen == (1u << 1 | 1u << 2 | 1u << 3) && found->number >= 0;
}

/* The inner message of an add (status, ledger, entry) or a read (these, body, LAC, its time). */
static inline int parse_inner(message from, response *found) {
    unsigned seen = 0;
    while (from.at < from.end) {
        uint64_t tag, value;
        if (!take_varint(&from, &tag) || tag > TAG_LAC_TIMESTAMP || !once(&seen, 1u << tag / 8)) {
            return 0;
        }
        if (tag == TAG_BODY) {
            if (!take_bytes(&from, &found->body)) {
                return 0;
            }
            continue;
        }
        if (tag % 8 != 0 || tag == 0 || tag == (TAG_BODY & ~7) || !take_varint(&from, &value)) {
            return 0;
        }
        switch (tag) {
        case TAG_INNER_STATUS:
            if (value != 0) {
                return 0;
            }
            break;
        case TAG_LEDGER:
            found->ledger_id = (int64_t)value;
            break;
        case TAG_ENTRY:
            found->entry_id = (int64_t)value;
            break;
        case TAG_MAX_LAC:
            found->has_max_lac = 1;
            found->max_lac = (int64_t)value;
            break;
        default:
            break;
        }
    }
    const unsigned ids = 1u << 1 | 1u << 2 | 1u << 3, body = 1u << 4;
    if (found->operation == ADD) {
        return seen == ids;
    }
    return (seen & (ids | body)) == (ids | body) && found->body.end - found->body.at >= BK_ENTRY_HEADER_BYTES;
}

/* Whether this is an OK response to an add, or to a read of an entry, of which every field is understood. */
static inline int parse_response(const uint8_t *payload, size_t size, response *found) {
    message from = {.at = payload, .end = payload + size}, header = {0}, inner = {0};
    uint64_t tag, status = 0, inner_tag = 0;
    unsigned seen = 0;
    *found = (response){.ledger_id = -1, .entry_id = -1};
    while (from.at < from.end) {
        if (!take_varint(&from, &tag)) {
            return 0;
        }
        if (tag == TAG_STATUS) {
            if (!once(&seen, 1) || !take_varint(&from, &status) || status != 0) {
                return 0;
            }
        } else if (tag == TAG_HEADER) {
            if (!once(&seen, 2) || !take_bytes(&from, &header)) {
                return 0;
            }
        } else if (tag == TAG_READ || tag == TAG_ADD) {
            inner_tag = tag;
            if (!once(&seen, 4) || !take_bytes(&from, &inner)) {
                return 0;
            }
        } else {
            return 0;
        }
    }
    return seen == 7 && parse_header(header, found) && inner_tag == (found->operation == ADD ? TAG_ADD : TAG_READ) &&
           parse_inner(inner, found) && found->ledger_id >= 0 && found->entry_id >= 0;
}

/* --- all responses ------------------------------------------------------------------------------------------------ */

static bk_run response_of(const uint8_t *payload, size_t size) {
    response found;
    if (!parse_response(payload, size, &found)) {
        return (bk_run){.kind = BK_RUN_OTHER, .ledger_id = -1, .entry_id = -1};
    }
    return (bk_run){.kind = found.operation == ADD ? BK_RUN_ADDS : BK_RUN_READS,
                    .ledger_id = found.ledger_id,
                    .entry_id = found.entry_id,
                    .count = 1,
                    .code = found.number,
                    .step = 1};
}

static int join_response(const uint8_t *data, bk_run *run, const bk_run *next) {
    (void)data;
    if (run->kind == BK_RUN_OTHER || next->kind != run->kind || next->ledger_id != run->ledger_id ||
        next->code - run->count != run->code) {
        return 0;
    }
    int64_t ahead = next->entry_id - run->entry_id;
    if (run->kind == BK_RUN_READS && run->count == 1 && ahead >= 1 && ahead <= BK_STEP_MAX) {
        run->step = ahead;
    }
    if (ahead != run->count * run->step) {
        return 0;
    }
    run->count++;
    return 1;
}

bk_scan_status bk_scan_responses_v3(const uint8_t *data, size_t start, size_t stop, int64_t frame_bytes_max,
                                    bk_run *runs, size_t capacity, bk_scan_result *result) {
    return bk_scan_runs(data, start, stop, frame_bytes_max, runs, capacity, result, response_of, join_response);
}

bk_v3_reads_status bk_read_frames_v3(const uint8_t *data, size_t start, size_t stop, uint8_t *out, size_t capacity,
                                     bk_v3_reads *reads) {
    const size_t head_bytes = BK_LENGTH_BYTES + RESPONSE_BYTES;
    int64_t first = 0;
    *reads = (bk_v3_reads){.step = 1};
    for (size_t at = start; at < stop; reads->count++) {
        response found;
        if (stop - at < BK_LENGTH_BYTES) {
            return BK_V3_READS_BAD_FRAME;
        }
        uint32_t size = bk_load_be32(data + at);
        at += BK_LENGTH_BYTES;
        if (stop - at < size || !parse_response(data + at, size, &found) || found.operation != READ) {
            return BK_V3_READS_BAD_FRAME;
        }
        at += size;
        size_t body_bytes = (size_t)(found.body.end - found.body.at);
        if (out != NULL) {
            if (capacity - reads->frame_bytes < head_bytes + body_bytes) {
                return BK_V3_READS_NO_ROOM;
            }
            uint8_t *frame = out + reads->frame_bytes;
            bk_store_be32(frame, (uint32_t)(RESPONSE_BYTES + body_bytes));
            bk_store_be32(frame + 4, READ_WORD);
            bk_store_be32(frame + 8, 0);
            bk_store_be64(frame + 12, found.ledger_id);
            bk_store_be64(frame + 20, found.entry_id);
            memcpy(frame + head_bytes, found.body.at, body_bytes);
        }
        reads->frame_bytes += head_bytes + body_bytes;
        if (found.has_max_lac && (!reads->has_max_lac || found.max_lac > reads->max_lac)) {
            reads->has_max_lac = 1;
            reads->max_lac = found.max_lac;
        }
        if (reads->count == 0) {
            first = found.entry_id;
        } else if (reads->count == 1) {
            reads->step = found.entry_id - first;
        }
    }
    return BK_V3_READS_OK;
}
