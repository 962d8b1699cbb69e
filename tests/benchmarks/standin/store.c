/* Entries in memory, and v3 requests taken apart. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "standin.h"

/* Addresses, not memory: a ledger's entries never move, so that answers can point to them. */
#define LEDGER_BYTES ((size_t)8 << 30)

static ledger_t *find(const store_t *store, int64_t id) {
    ledger_t *ledger = store->buckets[(uint64_t)id % LEDGER_BUCKETS];
    while (ledger != NULL && ledger->id != id) {
        ledger = ledger->next;
    }
    return ledger;
}

static ledger_t *find_or_make(store_t *store, int64_t id) {
    ledger_t *ledger = find(store, id);
    if (ledger != NULL) {
        return ledger;
    }
    void *data = mmap(NULL, LEDGER_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ledger = calloc(1, sizeof *ledger);
    if (data == MAP_FAILED || ledger == NULL) {
        free(ledger);
        return NULL;
    }
    ledger_t **bucket = &store->buckets[(uint64_t)id % LEDGER_BUCKETS];
    *ledger = (ledger_t){.id = id, .next = *bucket, .data = data};
    *bucket = ledger;
    return ledger;
}

static bool grow(ledger_t *ledger) {
    size_t room = ledger->room ? 2 * ledger->room : 1024;
    int64_t *ids = realloc(ledger->ids, room * sizeof *ids);
    if (ids == NULL) {
        return false;
    }
    ledger->ids = ids;
    size_t *starts = realloc(ledger->starts, room * sizeof *starts);
    if (starts == NULL) {
        return false;
    }
    ledger->starts = starts;
    ledger->room = room;
    return true;
}

bool store_add(store_t *store, const uint8_t *body, size_t size) {
    if (store->bytes_max == 0) {
        return true;
    }
    int64_t entry = get_i64(body + 8);
    ledger_t *ledger = find_or_make(store, get_i64(body));
    if (ledger == NULL || store->bytes + size > store->bytes_max || ledger->size + 4 + size > LEDGER_BYTES) {
        return false;
    }
    if (ledger->count > 0 && entry <= ledger->ids[ledger->count - 1]) {
        return true;
    }
    if (ledger->count == ledger->room && !grow(ledger)) {
        return false;
    }
    ledger->ids[ledger->count] = entry;
    ledger->starts[ledger->count++] = ledger->size;
    put_u32(ledger->data + ledger->size, (uint32_t)size);
    memcpy(ledger->data + ledger->size + 4, body, size);
    ledger->size += 4 + size;
    store->bytes += size;
    return true;
}

/* Where the entry is, or `count`. */
static size_t position(const ledger_t *ledger, int64_t entry) {
    if (entry >= 0 && (uint64_t)entry < ledger->count && ledger->ids[entry] == entry) {
        return (size_t)entry; /* not striped: nothing is missing */
    }
    size_t low = 0, high = ledger->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (ledger->ids[middle] < entry) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < ledger->count && ledger->ids[low] == entry ? low : ledger->count;
}

static size_t end_of(const ledger_t *ledger, size_t at) {
    return at + 1 < ledger->count ? ledger->starts[at + 1] : ledger->size;
}

uint32_t store_read(const store_t *store, int64_t id, int64_t entry, slice_t *found) {
    *found = (slice_t){NULL, 0};
    const ledger_t *ledger = find(store, id);
    if (ledger == NULL) {
        return 1;
    }
    size_t at = entry == -1 && ledger->count > 0 ? ledger->count - 1 : position(ledger, entry);
    if (at == ledger->count) {
        return 2;
    }
    *found = (slice_t){ledger->data + ledger->starts[at] + 4, end_of(ledger, at) - ledger->starts[at] - 4};
    return 0;
}

uint32_t store_batch(const store_t *store, int64_t id, int64_t entry, int32_t count, int64_t bytes_max,
                     slice_t *found) {
    *found = (slice_t){NULL, 0};
    const ledger_t *ledger = find(store, id);
    size_t first = ledger == NULL ? 0 : position(ledger, entry);
    if (ledger == NULL || first == ledger->count) {
        return ledger == NULL ? 1 : 2;
    }
    size_t start = ledger->starts[first], end = end_of(ledger, first);
    for (size_t at = first + 1; at < ledger->count && (count <= 0 || at - first < (size_t)count); at++) {
        size_t next = end_of(ledger, at);
        if (ledger->ids[at] != ledger->ids[at - 1] + 1 || (int64_t)(next - start) > bytes_max) {
            break;
        }
        end = next;
    }
    *found = (slice_t){ledger->data + start, end - start};
    return 0;
}

/* --- v3
 * --------------------------------------------------------------------------------------------------------------- */

/* One field of a protobuf message: its number, and its value or its bytes. */
typedef struct {
    uint64_t number, value;
    slice_t bytes;
} field_t;

static bool get_varint(const uint8_t **at, const uint8_t *end, uint64_t *value) {
    *value = 0;
    for (unsigned shift = 0; shift < 64 && *at < end; shift += 7) {
        uint8_t byte = *(*at)++;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128) {
            return true;
        }
    }
    return false;
}

static bool get_field(const uint8_t **at, const uint8_t *end, field_t *field) {
    uint64_t tag;
    *field = (field_t){0};
    if (!get_varint(at, end, &tag)) {
        return false;
    }
    field->number = tag >> 3;
    if ((tag & 7) == 0) {
        return get_varint(at, end, &field->value);
    }
    if ((tag & 7) != 2 || !get_varint(at, end, &field->value) || field->value > (uint64_t)(end - *at)) {
        return false;
    }
    field->bytes = (slice_t){*at, (size_t)field->value};
    *at += field->value;
    return true;
}

static bool parse_header(slice_t message, v3_request_t *request) {
    const uint8_t *at = message.data, *end = message.data + message.size;
    field_t field;
    while (at < end) {
        if (!get_field(&at, end, &field)) {
            return false;
        }
        if (field.number == 2) {
            request->operation = (uint32_t)field.value;
        } else if (field.number == 3) {
            request->transaction = field.value;
        }
    }
    return true;
}

/* readRequest, addRequest and readLacRequest number their fields alike as far as they are looked at here. */
static bool parse_inner(slice_t message, v3_request_t *request) {
    const uint8_t *at = message.data, *end = message.data + message.size;
    field_t field;
    while (at < end) {
        if (!get_field(&at, end, &field)) {
            return false;
        }
        if (field.number == 1) {
            request->ledger = (int64_t)field.value;
        } else if (field.number == 2) {
            request->entry = (int64_t)field.value;
        } else if (field.number == 4 && field.bytes.data != NULL) {
            request->body = field.bytes.data;
            request->body_size = field.bytes.size;
        }
    }
    return true;
}

bool v3_parse(const uint8_t *data, size_t size, v3_request_t *request) {
    const uint8_t *at = data, *end = data + size;
    field_t field;
    *request = (v3_request_t){0};
    while (at < end) {
        if (!get_field(&at, end, &field)) {
            return false;
        }
        if (field.number == 1 && !parse_header(field.bytes, request)) {
            return false;
        }
        if ((field.number == 100 || field.number == 101 || field.number == 104) && !parse_inner(field.bytes, request)) {
            return false;
        }
    }
    return request->operation != 0;
}
