#include "digest.h"

#include <string.h>

#include "crc32c.h"

/* --- CRC-32 ------------------------------------------------------------------------------------------------------ */

static uint32_t table[8][256];

void bk_digest_init(void) {
    bk_crc32c_init();
    if (table[0][1] != 0) {
        return;
    }
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) {
            state = (state >> 1) ^ ((state & 1) ? 0xEDB88320u : 0);
        }
        table[0][byte] = state;
    }
    for (int row = 1; row < 8; row++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t state = table[row - 1][byte];
            table[row][byte] = (state >> 8) ^ table[0][state & 0xFF];
        }
    }
}

uint32_t bk_crc32(uint32_t value, const uint8_t *data, size_t size) {
    uint32_t state = ~value;
    while (size >= 8) {
        state = table[7][(state ^ data[0]) & 0xFF] ^ table[6][(state >> 8 ^ data[1]) & 0xFF] ^
                table[5][(state >> 16 ^ data[2]) & 0xFF] ^ table[4][(state >> 24 ^ data[3]) & 0xFF] ^
                table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size > 0) {
        state = (state >> 8) ^ table[0][(state ^ *data) & 0xFF];
        data++;
        size--;
    }
    return ~state;
}

/* --- SHA-1 and HMAC (FIPS 180-4, RFC 2104) ------------------------------------------------------------------------ */

#define BLOCK_BYTES 64

static uint32_t rotate(uint32_t value, int bits) {
    return value << bits | value >> (32 - bits);
}

static const bk_sha1_state sha1_start = {{0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u}};

/* One of the 80 steps. The caller renames the five words from step to step, which saves moving them. */
#define STEP(a, b, c, d, e, mix, constant, t)                                                                          \
    do {                                                                                                               \
        (e) += rotate((a), 5) + (mix) + (constant) + schedule[t];                                                      \
        (b) = rotate((b), 30);                                                                                         \
    } while (0)

/* Five steps bring the names back to where they were. */
#define FIVE_STEPS(MIX, constant, t)                                                                                   \
    do {                                                                                                               \
        STEP(a, b, c, d, e, MIX(b, c, d), constant, (t));                                                              \
        STEP(e, a, b, c, d, MIX(a, b, c), constant, (t) + 1);                                                          \
        STEP(d, e, a, b, c, MIX(e, a, b), constant, (t) + 2);                                                          \
        STEP(c, d, e, a, b, MIX(d, e, a), constant, (t) + 3);                                                          \
        STEP(b, c, d, e, a, MIX(c, d, e), constant, (t) + 4);                                                          \
    } while (0)

#define CHOOSE(x, y, z)   ((z) ^ ((x) & ((y) ^ (z))))
#define PARITY(x, y, z)   ((x) ^ (y) ^ (z))
#define MAJORITY(x, y, z) (((x) & (y)) | ((z) & ((x) | (y))))

/* GCC's vectoriser joins stores of the schedule that the next words read back one by one: three times slower. */
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("no-tree-vectorize", "no-tree-slp-vectorize")))
#endif
static void sha1_block(bk_sha1_state *state, const uint8_t *block) {
    uint32_t schedule[80];
    for (int t = 0; t < 16; t++) {
        schedule[t] = bk_load_be32(block + 4 * t);
    }
    for (int t = 16; t < 80; t++) {
        schedule[t] = rotate(schedule[t - 3] ^ schedule[t - 8] ^ schedule[t - 14] ^ schedule[t - 16], 1);
    }
    uint32_t a = state->word[0], b = state->word[1], c = state->word[2], d = state->word[3], e = state->word[4];
    for (int t = 0; t < 20; t += 5) {
        FIVE_STEPS(CHOOSE, 0x5A827999u, t);
    }
    for (int t = 20; t < 40; t += 5) {
        FIVE_STEPS(PARITY, 0x6ED9EBA1u, t);
    }
    for (int t = 40; t < 60; t += 5) {
        FIVE_STEPS(MAJORITY, 0x8F1BBCDCu, t);
    }
    for (int t = 60; t < 80; t += 5) {
        FIVE_STEPS(PARITY, 0xCA62C1D6u, t);
    }
    state->word[0] += a;
    state->word[1] += b;
    state->word[2] += c;
    state->word[3] += d;
    state->word[4] += e;
}

/* Ends a message: `tail` holds its last tail_size < 64 bytes, total is its length in bytes with all that went before.
 */
static void sha1_finish(bk_sha1_state *state, const uint8_t *tail, size_t tail_size, uint64_t total, uint8_t out[20]) {
    uint8_t block[2 * BLOCK_BYTES] = {0};
    size_t padded = tail_size < BLOCK_BYTES - 8 ? BLOCK_BYTES : 2 * BLOCK_BYTES;
    memcpy(block, tail, tail_size);
    block[tail_size] = 0x80;
    bk_store_be64(block + padded - 8, (int64_t)(total * 8));
    for (size_t at = 0; at < padded; at += BLOCK_BYTES) {
        sha1_block(state, block + at);
    }
    for (int i = 0; i < 5; i++) {
        bk_store_be32(out + 4 * i, state->word[i]);
    }
}

static bk_sha1_state keyed(const uint8_t *key, uint8_t pad) {
    uint8_t block[BLOCK_BYTES];
    bk_sha1_state state = sha1_start;
    memset(block, pad, sizeof block);
    for (size_t i = 0; i < BK_KEY_BYTES; i++) {
        block[i] ^= key[i];
    }
    sha1_block(&state, block);
    return state;
}

static void hmac(const bk_digest *digest, const uint8_t *header, const uint8_t *payload, size_t size, uint8_t out[20]) {
    uint8_t block[BLOCK_BYTES];
    uint8_t inner_digest[20];
    uint64_t total = BLOCK_BYTES + BK_ENTRY_HEADER_BYTES + (uint64_t)size;
    bk_sha1_state state = digest->inner;
    size_t fill = BLOCK_BYTES - BK_ENTRY_HEADER_BYTES; /* the header is half a block; the payload completes it */
    memcpy(block, header, BK_ENTRY_HEADER_BYTES);
    if (size < fill) {
        memcpy(block + BK_ENTRY_HEADER_BYTES, payload, size);
        sha1_finish(&state, block, BK_ENTRY_HEADER_BYTES + size, total, inner_digest);
    } else {
        memcpy(block + BK_ENTRY_HEADER_BYTES, payload, fill);
        sha1_block(&state, block);
        payload += fill;
        size -= fill;
        for (; size >= BLOCK_BYTES; payload += BLOCK_BYTES, size -= BLOCK_BYTES) {
            sha1_block(&state, payload);
        }
        sha1_finish(&state, payload, size, total, inner_digest);
    }
    state = digest->outer;
    sha1_finish(&state, inner_digest, sizeof inner_digest, BLOCK_BYTES + sizeof inner_digest, out);
}

/* --- the digests -------------------------------------------------------------------------------------------------- */

bk_digest_status bk_digest_prepare(bk_digest *digest, int64_t type, const uint8_t *key, size_t key_size) {
    static const uint8_t bytes_of[] = {0, 8, BK_DIGEST_BYTES_MAX, 4, 0};
    if (type < BK_DIGEST_CRC32 || type > BK_DIGEST_DUMMY) {
        return BK_DIGEST_BAD_TYPE;
    }
    memset(digest, 0, sizeof *digest);
    digest->type = (int)type;
    digest->bytes = bytes_of[type];
    if (type == BK_DIGEST_HMAC) {
        if (key_size != BK_KEY_BYTES) {
            return BK_DIGEST_BAD_KEY;
        }
        digest->inner = keyed(key, 0x36);
        digest->outer = keyed(key, 0x5C);
    }
    return BK_DIGEST_OK;
}

void bk_digest_compute(const bk_digest *digest, const uint8_t *header, const uint8_t *payload, size_t payload_size,
                       uint8_t out[BK_DIGEST_BYTES_MAX]) {
    switch (digest->type) {
    case BK_DIGEST_CRC32:
        bk_store_be32(out, 0); /* stored as a u64 whose upper half is zero */
        bk_store_be32(out + 4, bk_crc32(bk_crc32(0, header, BK_ENTRY_HEADER_BYTES), payload, payload_size));
        break;
    case BK_DIGEST_HMAC:
        hmac(digest, header, payload, payload_size, out);
        break;
    case BK_DIGEST_CRC32C:
        bk_store_be32(out, bk_crc32c(bk_crc32c(0, header, BK_ENTRY_HEADER_BYTES), payload, payload_size));
        break;
    default:
        break; /* DUMMY has no bytes */
    }
}

void bk_digest_copy(const bk_digest *digest, const uint8_t *header, const uint8_t *payload, size_t payload_size,
                    uint8_t *copy, uint8_t out[BK_DIGEST_BYTES_MAX]) {
    if (digest->type == BK_DIGEST_CRC32C) {
        bk_store_be32(out, bk_crc32c_copy(bk_crc32c(0, header, BK_ENTRY_HEADER_BYTES), payload, copy, payload_size));
        return;
    }
    memcpy(copy, payload, payload_size);
    bk_digest_compute(digest, header, copy, payload_size, out);
}
