/* Self-test of the plain C, made for the sanitizers (native/sanitize.sh): known values, both CRC kernels against each
 * other around the lengths that matter, and the fuzz entry on well-formed, cut and damaged input. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "digest.h"
#include "entries.h"
#include "frames.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int condition, const char *what) {
    if (!condition) {
        fprintf(stderr, "failed: %s\n", what);
        exit(1);
    }
}

static uint64_t random_state = 13959;

static uint32_t random_below(uint32_t bound) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32) % bound;
}

static void check_crc(void) {
    static const size_t edges[] = {0,    1,    7,    8,    9,     255,   256,   767,   768,   769,
                                   1535, 1536, 1537, 4096, 12287, 12288, 12289, 13055, 13056, 24577};
    const uint8_t *digits = (const uint8_t *)"123456789";
    check(bk_crc32c(0, digits, 9) == 0xE3069283u, "CRC-32C check value");
    check(bk_crc32c_table(0, digits, 9) == 0xE3069283u, "CRC-32C check value by table");
    check(bk_crc32(0, digits, 9) == 0xCBF43926u, "CRC-32 check value");
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        for (size_t shift = 0; shift < 9; shift++) {
            size_t size = edges[i];
            uint8_t *data = malloc(size + shift + 1);
            check(data != NULL, "memory");
            for (size_t at = 0; at < size + shift; at++) {
                data[at] = (uint8_t)random_below(256);
            }
            uint32_t whole = bk_crc32c_table(0, data + shift, size);
            size_t cut = size > 0 ? random_below((uint32_t)size + 1) : 0;
            check(bk_crc32c(0, data + shift, size) == whole, "CRC-32C kernels agree");
            check(bk_crc32c(bk_crc32c(0, data + shift, cut), data + shift + cut, size - cut) == whole,
                  "CRC-32C resumes");
            free(data);
        }
    }
}

/* Vectors of wire-protocol.md 13.2 and 13.3. */
static void check_digests(void) {
    static const char *const expected[] = {"", "00000000ad79439c", "6c881f5147162fc7412db09af6709d905c2112e9",
                                           "0321c545", ""};
    static const uint8_t key[BK_KEY_BYTES] = {0x19, 0x0c, 0x68, 0x5b, 0xae, 0x85, 0x15, 0x74, 0xf5, 0xab,
                                              0x47, 0xc9, 0x60, 0xa0, 0x0c, 0x04, 0x66, 0xf9, 0x66, 0x03};
    uint8_t header[BK_ENTRY_HEADER_BYTES];
    bk_store_be64(header, 4660);
    bk_store_be64(header + 8, 7);
    bk_store_be64(header + 16, 6);
    bk_store_be64(header + 24, 1005);
    for (int type = BK_DIGEST_CRC32; type <= BK_DIGEST_DUMMY; type++) {
        bk_digest digest;
        uint8_t out[BK_DIGEST_BYTES_MAX];
        char text[2 * BK_DIGEST_BYTES_MAX + 1] = "";
        check(bk_digest_prepare(&digest, type, key, sizeof key) == BK_DIGEST_OK, "digest type is known");
        bk_digest_compute(&digest, header, (const uint8_t *)"hello, bookkeeper", 17, out);
        for (size_t i = 0; i < digest.bytes; i++) {
            snprintf(text + 2 * i, 3, "%02x", out[i]);
        }
        check(strcmp(text, expected[type]) == 0, "digest vector");
    }
}

/* A run of items as fuzz_entries takes them: the eight choices, then header, body and a digest that is right. */
static size_t well_formed(uint8_t *out, uint8_t digest_type, uint8_t header_bytes) {
    static const uint8_t key[BK_KEY_BYTES] = {1, 2, 3};
    bk_digest digest;
    size_t at = 8;
    memset(out, 0, 8);
    bk_store_be32(out, 5000);
    out[4] = header_bytes;
    out[5] = digest_type;
    out[6] = 5;
    out[7] = (uint8_t)random_below(2);
    check(bk_digest_prepare(&digest, digest_type, key, sizeof key) == BK_DIGEST_OK, "digest type is known");
    for (uint32_t entry = 0; entry < 6; entry++) {
        uint32_t payload_bytes = random_below(300);
        uint8_t *body = out + at + 4 + header_bytes;
        uint8_t *payload = body + BK_ENTRY_HEADER_BYTES + digest.bytes;
        uint8_t computed[BK_DIGEST_BYTES_MAX];
        bk_store_be32(out + at, (uint32_t)(header_bytes + BK_ENTRY_HEADER_BYTES + digest.bytes + payload_bytes));
        memset(out + at + 4, 0, header_bytes);
        bk_store_be64(body, 5);
        bk_store_be64(body + 8, entry);
        bk_store_be64(body + 16, -1);
        bk_store_be64(body + 24, 0);
        memset(payload, 'x', payload_bytes);
        bk_digest_compute(&digest, body, payload, payload_bytes, computed);
        memcpy(body + BK_ENTRY_HEADER_BYTES, computed, digest.bytes);
        at = (size_t)(payload - out) + payload_bytes;
    }
    return at;
}

static void check_buffers(void) {
    uint8_t input[4096];
    for (int round = 0; round < 20000; round++) {
        size_t size = well_formed(input, (uint8_t)(1 + random_below(4)), (uint8_t)random_below(30));
        uint8_t change = (uint8_t)random_below(4);
        if (change == 1) {
            size = 8 + random_below((uint32_t)size - 8);
        } else if (change == 2) {
            input[random_below((uint32_t)size)] ^= (uint8_t)(1 << random_below(8));
        } else if (change == 3) {
            input[random_below(12)] = (uint8_t)random_below(256);
        }
        LLVMFuzzerTestOneInput(input, size);
    }
}

int main(void) {
    bk_digest_init();
    check_crc();
    check_digests();
    check_buffers();
    printf("plain C self-test passed (CRC-32C kernel: %s)\n", bk_crc32c_kernel());
    return 0;
}
