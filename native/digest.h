/* The four entry digests (wire-protocol.md 7.2) and the byte order of everything on the wire. */
#ifndef BK_DIGEST_H
#define BK_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define BK_ENTRY_HEADER_BYTES 32 /* i64 ledger, i64 entry, i64 last add confirmed, i64 length */
#define BK_DIGEST_BYTES_MAX   20
#define BK_KEY_BYTES          20 /* HMAC key and master key are SHA-1 values (wire-protocol.md 7.5) */

/* The numbers of the ledger metadata's digest enum. */
enum { BK_DIGEST_CRC32 = 1, BK_DIGEST_HMAC = 2, BK_DIGEST_CRC32C = 3, BK_DIGEST_DUMMY = 4 };

typedef struct {
    uint32_t word[5];
} bk_sha1_state;

/* A digest type ready for use. For HMAC it holds the states after the padded key, so a key costs nothing per entry. */
typedef struct {
    int type;
    size_t bytes;
    bk_sha1_state inner;
    bk_sha1_state outer;
} bk_digest;

typedef enum { BK_DIGEST_OK = 0, BK_DIGEST_BAD_TYPE, BK_DIGEST_BAD_KEY } bk_digest_status;

/* Builds the CRC tables (CRC-32C included). Call once before anything else; calling again changes nothing. */
void bk_digest_init(void);

/* `key` matters for HMAC only, and must then be BK_KEY_BYTES long. */
bk_digest_status bk_digest_prepare(bk_digest *digest, int64_t type, const uint8_t *key, size_t key_size);

/* Writes digest->bytes bytes, as stored between header and payload, over header (32 bytes) and payload. */
void bk_digest_compute(const bk_digest *digest, const uint8_t *header, const uint8_t *payload, size_t payload_size,
                       uint8_t out[BK_DIGEST_BYTES_MAX]);

/* Copies the payload to `copy`, which must not overlap it, and writes the digest over header and copy: what is digested
 * is what is there, even when another thread writes to the payload meanwhile. */
void bk_digest_copy(const bk_digest *digest, const uint8_t *header, const uint8_t *payload, size_t payload_size,
                    uint8_t *copy, uint8_t out[BK_DIGEST_BYTES_MAX]);

/* Standard CRC-32 (zlib), resumable like bk_crc32c. */
uint32_t bk_crc32(uint32_t value, const uint8_t *data, size_t size);

#if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__

/* One instruction each, which compilers do not always make of the bytes. */
static inline uint32_t bk_load_be32(const uint8_t *data) {
    uint32_t value;
    memcpy(&value, data, sizeof value);
    return __builtin_bswap32(value);
}

static inline void bk_store_be32(uint8_t *data, uint32_t value) {
    value = __builtin_bswap32(value);
    memcpy(data, &value, sizeof value);
}

static inline int64_t bk_load_be64(const uint8_t *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return (int64_t)__builtin_bswap64(value);
}

static inline void bk_store_be64(uint8_t *data, int64_t value) {
    uint64_t swapped = __builtin_bswap64((uint64_t)value);
    memcpy(data, &swapped, sizeof swapped);
}

#else

static inline uint32_t bk_load_be32(const uint8_t *data) {
    return (uint32_t)data[0] << 24 | (uint32_t)data[1] << 16 | (uint32_t)data[2] << 8 | (uint32_t)data[3];
}

static inline void bk_store_be32(uint8_t *data, uint32_t value) {
    data[0] = (uint8_t)(value >> 24);
    data[1] = (uint8_t)(value >> 16);
    data[2] = (uint8_t)(value >> 8);
    data[3] = (uint8_t)value;
}

static inline int64_t bk_load_be64(const uint8_t *data) {
    return (int64_t)((uint64_t)bk_load_be32(data) << 32 | bk_load_be32(data + 4));
}

static inline void bk_store_be64(uint8_t *data, int64_t value) {
    bk_store_be32(data, (uint32_t)((uint64_t)value >> 32));
    bk_store_be32(data + 4, (uint32_t)(uint64_t)value);
}

#endif

#endif
