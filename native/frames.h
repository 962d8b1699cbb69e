/* Length-prefixed frames: finding them in a receive buffer, and building runs of v2 ADD requests
 * (wire-protocol.md 2.1, 5.2, 7.1). */
#ifndef BK_FRAMES_H
#define BK_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#define BK_LENGTH_BYTES 4
#define BK_FRAME_MAX    INT64_C(0x7FFFFFFF) /* Apache peers read the length as a signed 32-bit number */

typedef enum {
    BK_SCAN_OK = 0,
    BK_SCAN_BAD_LIMIT, /* frame_bytes_max outside 5..BK_FRAME_MAX */
    BK_SCAN_EMPTY,     /* a frame of no bytes */
    BK_SCAN_TOO_LONG,  /* a frame beyond the limit: result->frame_bytes, prefix included */
    BK_SCAN_NO_ROOM    /* more frames than bounds_capacity */
} bk_scan_status;

typedef struct {
    size_t count;
    size_t consumed; /* just after the last complete frame; at an error, where the bad frame starts */
    uint64_t frame_bytes;
} bk_scan_result;

/* Finds the complete frames of data. With bounds == NULL it only counts; otherwise it writes two native int64 values
 * for each frame, payload start and end, and bounds_capacity is the number of frames there is room for. */
bk_scan_status bk_scan_frames(const uint8_t *data, size_t size, int64_t frame_bytes_max, uint8_t *bounds,
                              size_t bounds_capacity, bk_scan_result *result);

typedef enum {
    BK_ADDS_OK = 0,
    BK_ADDS_BAD_OFFSETS_SIZE,
    BK_ADDS_BAD_LEDGER,
    BK_ADDS_BAD_ENTRY,
    BK_ADDS_BAD_LAC,
    BK_ADDS_BAD_LENGTH,
    BK_ADDS_BAD_DIGEST_TYPE,
    BK_ADDS_BAD_HMAC_KEY,
    BK_ADDS_BAD_MASTER_KEY,
    BK_ADDS_BAD_FLAGS,
    BK_ADDS_OFFSET_OUTSIDE,    /* result->index, result->value */
    BK_ADDS_OFFSET_DECREASING, /* result->index, result->value */
    BK_ADDS_PAYLOAD_TOO_LONG,  /* result->index, result->value: its bytes */
    BK_ADDS_ENTRY_OVERFLOW,
    BK_ADDS_LENGTH_OVERFLOW, /* result->value: all payload bytes */
    BK_ADDS_NO_ROOM
} bk_adds_status;

/* Everything a run of adds is made from. `offsets` holds count + 1 native int64 values and need not be aligned. */
typedef struct {
    const uint8_t *payloads;
    size_t payloads_size;
    const uint8_t *offsets;
    size_t offsets_size; /* bytes */
    int64_t ledger_id;
    int64_t first_entry_id;
    int64_t last_add_confirmed;
    int64_t length_before;
    int64_t digest_type;
    const uint8_t *hmac_key;
    size_t hmac_key_size;
    const uint8_t *master_key;
    size_t master_key_size;
    int64_t flags;
} bk_adds;

typedef struct {
    size_t count;         /* frames */
    uint64_t frame_bytes; /* all frames together */
    size_t index;
    int64_t value;
} bk_adds_result;

/* Checks everything and says how much room the frames need. */
bk_adds_status bk_measure_adds(const bk_adds *adds, bk_adds_result *result);

/* Checks everything again (another thread may have written to the inputs since), then writes the frames and count + 1
 * native int64 frame offsets. Capacities are in bytes. */
bk_adds_status bk_write_adds(const bk_adds *adds, uint8_t *frames, size_t frames_capacity, uint8_t *frame_offsets,
                             size_t frame_offsets_capacity, bk_adds_result *result);

#endif
