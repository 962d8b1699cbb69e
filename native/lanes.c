#include "lanes.h"

#include <string.h>

#include "digest.h"

#define LENGTH_BYTES 4

bk_lanes_status bk_skip_frames(const uint8_t *data, size_t start, size_t stop, uint64_t count, size_t *position) {
    size_t at = start;
    for (; count > 0; count--) {
        if (stop - at < LENGTH_BYTES) {
            return BK_LANES_TOO_FEW_ITEMS;
        }
        uint32_t size = bk_load_be32(data + at);
        at += LENGTH_BYTES;
        if (stop - at < size) {
            return BK_LANES_TOO_FEW_ITEMS;
        }
        at += size;
    }
    *position = at;
    return BK_LANES_OK;
}

/* --- lanes -------------------------------------------------------------------------------------------------------- */

/* Entry `index` of a part that has it. */
static int load_bounds(const bk_part *part, size_t index, int64_t *first, int64_t *second) {
    memcpy(first, part->offsets + 8 * index, 8);
    memcpy(second, part->offsets + 8 * index + 8, 8);
    return *first >= 0 && *first <= *second && (uint64_t)*second <= part->size;
}

static bk_lanes_status measure_part(const bk_part *part, bk_lanes_result *result) {
    if (part->offsets_size < 8 || part->offsets_size % 8 != 0) {
        result->size = part->offsets_size;
        return BK_LANES_BAD_OFFSETS_SIZE;
    }
    result->size = part->size;
    for (size_t i = 0; i < part->offsets_size / 8 - 1; i++) {
        if (!load_bounds(part, i, &result->first, &result->second)) {
            return BK_LANES_BAD_OFFSETS;
        }
        uint64_t bytes = (uint64_t)(result->second - result->first);
        result->value_bytes = bytes > UINT64_MAX - result->value_bytes ? UINT64_MAX : result->value_bytes + bytes;
    }
    return BK_LANES_OK;
}

bk_lanes_status bk_measure_lanes(bk_lane *lanes, size_t count, bk_lanes_result *result) {
    memset(result, 0, sizeof *result);
    for (size_t i = 0; i < count; i++) {
        bk_lane *lane = &lanes[i];
        lane->entries = 0;
        for (size_t p = 0; p < lane->count; p++) {
            bk_lanes_status status = measure_part(&lane->parts[p], result);
            if (status != BK_LANES_OK) {
                return status;
            }
            lane->entries += lane->parts[p].offsets_size / 8 - 1;
        }
        result->entries += lane->entries;
    }
    for (size_t i = 1; i < count; i++) {
        if (lanes[i].entries > lanes[i - 1].entries) {
            return BK_LANES_UNEQUAL;
        }
    }
    return count == 0 || lanes[0].entries - lanes[count - 1].entries > 1 ? BK_LANES_UNEQUAL : BK_LANES_OK;
}

bk_lanes_status bk_interleave(bk_lane *lanes, size_t count, const bk_lanes_result *result, uint8_t *offsets,
                              uint8_t *values) {
    uint64_t written = 0;
    size_t turn = 0;
    int64_t offset = 0;
    for (size_t i = 0; i < count; i++) {
        lanes[i].part = lanes[i].index = 0;
    }
    memcpy(offsets, &offset, 8);
    for (uint64_t i = 1; i <= result->entries; i++) {
        bk_lane *lane = &lanes[turn];
        turn = turn + 1 == count ? 0 : turn + 1;
        /* The number of entries of a part is the size of a buffer, which cannot change meanwhile. */
        while (lane->index == lane->parts[lane->part].offsets_size / 8 - 1) {
            lane->part++;
            lane->index = 0;
        }
        const bk_part *part = &lane->parts[lane->part];
        int64_t first, second;
        if (!load_bounds(part, lane->index++, &first, &second) ||
            (uint64_t)(second - first) > result->value_bytes - written) {
            return BK_LANES_NO_ROOM;
        }
        memcpy(values + written, part->values + first, (size_t)(second - first));
        written += (uint64_t)(second - first);
        offset = (int64_t)written;
        memcpy(offsets + 8 * i, &offset, 8);
    }
    return written == result->value_bytes ? BK_LANES_OK : BK_LANES_NO_ROOM;
}

/* --- what one bookie holds ---------------------------------------------------------------------------------------- */

bk_lanes_status bk_check_selection(const bk_selection *selection, bk_lanes_result *result) {
    memset(result, 0, sizeof *result);
    result->size = selection->offsets_size;
    if (selection->offsets_size < 8 || selection->offsets_size % 8 != 0) {
        return BK_LANES_BAD_OFFSETS_SIZE;
    }
    result->size = selection->offsets_size / 8 - 1;
    if (selection->start < 0 || (uint64_t)selection->start > result->size) {
        return BK_LANES_BAD_START;
    }
    if (selection->first_entry_id < 0) {
        return BK_LANES_BAD_FIRST_ENTRY;
    }
    if (selection->ensemble_size < 1 || selection->ensemble_size > INT32_MAX) {
        return BK_LANES_BAD_ENSEMBLE;
    }
    if (selection->position < 0 || selection->position >= selection->ensemble_size) {
        return BK_LANES_BAD_POSITION;
    }
    if (selection->write_quorum_size < 1 || selection->write_quorum_size > selection->ensemble_size) {
        return BK_LANES_BAD_WRITE_QUORUM;
    }
    int64_t ahead = result->size > 0 ? (int64_t)(result->size - 1) : 0;
    return selection->first_entry_id > INT64_MAX - ahead ? BK_LANES_ENTRY_OVERFLOW : BK_LANES_OK;
}

void bk_select_first(const bk_selection *selection, bk_selected *at) {
    /* Behind the last id of all there is no number for the sum. */
    uint64_t entry_id = (uint64_t)selection->first_entry_id + (uint64_t)selection->start;
    int64_t distance = selection->position - (int64_t)(entry_id % (uint64_t)selection->ensemble_size);
    at->selection = selection;
    at->index = (size_t)selection->start;
    at->distance = distance < 0 ? distance + selection->ensemble_size : distance;
}

bk_lanes_status bk_select_next(bk_selected *at, const uint8_t **frame, size_t *size, bk_lanes_result *result) {
    const bk_selection *selection = at->selection;
    const bk_part part = {.values = selection->frames,
                          .size = selection->size,
                          .offsets = selection->offsets,
                          .offsets_size = selection->offsets_size};
    *frame = NULL;
    while (at->index < selection->offsets_size / 8 - 1) {
        size_t index = at->index++;
        int64_t distance = at->distance;
        at->distance = (distance == 0 ? selection->ensemble_size : distance) - 1;
        if (distance < selection->write_quorum_size) {
            result->size = selection->size;
            if (!load_bounds(&part, index, &result->first, &result->second)) {
                return BK_LANES_BAD_OFFSETS;
            }
            *frame = selection->frames + result->first;
            *size = (size_t)(result->second - result->first);
            break;
        }
    }
    return BK_LANES_OK;
}

bk_lanes_status bk_select_frames(const bk_selection *selection, uint8_t *out, size_t capacity,
                                 bk_lanes_result *result) {
    const uint8_t *frame;
    size_t size;
    bk_selected at;
    bk_lanes_status status = bk_check_selection(selection, result);
    if (status != BK_LANES_OK) {
        return status;
    }
    bk_select_first(selection, &at);
    while ((status = bk_select_next(&at, &frame, &size, result)) == BK_LANES_OK && frame != NULL) {
        if (out != NULL) {
            if (size > capacity - result->value_bytes) {
                return BK_LANES_NO_ROOM;
            }
            memcpy(out + result->value_bytes, frame, size);
        }
        result->value_bytes += size;
    }
    return status;
}
