/* Self-test of the plain C, made for the sanitizers (native/sanitize.sh): known values, all CRC kernels against each
 * other around the lengths that matter, and the fuzz entry on well-formed, cut and damaged input. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "crc32c.h"
#include "digest.h"
#include "entries.h"
#include "frames.h"
#include "runs.h"

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

static uint8_t *memory(size_t size) {
    uint8_t *block = malloc(size > 0 ? size : 1);
    check(block != NULL, "memory");
    return block;
}

/* Exact sizes, so that a byte too many is seen. The tables are right by the check value; the others must agree. */
static void check_crc_of(size_t size, size_t shift, int kernels) {
    uint8_t *data = memory(size + shift), *copy = memory(size + shift);
    size_t cut = size > 0 ? random_below((uint32_t)size + 1) : 0;
    uint32_t whole = 0;
    for (size_t at = 0; at < size + shift; at++) {
        data[at] = (uint8_t)random_below(256);
    }
    for (int number = 0; number < kernels; number++) {
        bk_crc32c_choose(number);
        uint32_t crc = bk_crc32c(0, data + shift, size);
        whole = number == 0 ? crc : whole;
        check(crc == whole, "CRC-32C kernels agree");
        check(bk_crc32c(bk_crc32c(0, data + shift, cut), data + shift + cut, size - cut) == whole, "CRC-32C resumes");
        memset(copy, 0, size + shift);
        check(bk_crc32c_copy(0, data + shift, copy + shift, size) == whole, "CRC-32C of a copy");
        check(memcmp(data + shift, copy + shift, size) == 0, "CRC-32C copies");
        check(bk_crc32c_copy(bk_crc32c(0, data + shift, cut), data + shift + cut, copy + shift, size - cut) == whole,
              "CRC-32C resumes with a copy");
    }
    free(data);
    free(copy);
}

static void check_crc(void) {
    static const size_t edges[] = {767,  768,  769,   775,   1023,  1024,  1025,  1535, 1536,
                                   1537, 4096, 12287, 12288, 12289, 13055, 13056, 24577};
    const uint8_t *digits = (const uint8_t *)"123456789";
    int kernels = 0;
    for (; bk_crc32c_choose(kernels); kernels++) {
        check(bk_crc32c(0, digits, 9) == 0xE3069283u, "CRC-32C check value");
    }
    check(bk_crc32(0, digits, 9) == 0xCBF43926u, "CRC-32 check value");
    for (size_t size = 0; size < 660; size++) {
        check_crc_of(size, size % 9, kernels);
    }
    for (size_t i = 0; i < sizeof edges / sizeof *edges; i++) {
        for (size_t shift = 0; shift < 9; shift++) {
            check_crc_of(edges[i], shift, kernels);
        }
    }
    bk_crc32c_choose(kernels - 1);
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

/* A stream of v2 frames of all kinds, ids mostly ascending, at either end of what an id can be too, behind the eight
 * choices. */
static size_t run_of_frames(uint8_t *out) {
    size_t at = 8;
    memset(out, 0, 8);
    bk_store_be32(out, 5000);
    out[6] = (uint8_t)random_below(256);
    out[7] = (uint8_t)random_below(64);
    static const int64_t firsts[] = {0, 0, INT64_MAX - 40, INT64_MIN, -20};
    int64_t entry = firsts[random_below(5)];
    for (uint32_t kind = random_below(6); at < 3000; entry = entry == INT64_MAX ? INT64_MIN : entry + 1) {
        static const uint32_t words[] = {0x02010000u, 0x02020000u, 0x02070000u, 0x02010000u, 0x02020000u, 0x02030000u};
        static const uint32_t sizes[] = {24, 60, 40, 60, 20, 9};
        static const size_t ids_at[] = {8, 8, 8, 24, 4, 0};
        if (random_below(6) == 0) {
            kind = random_below(6);
            entry += entry < INT64_MAX - 10 ? (int64_t)random_below(10) : 0;
        }
        uint8_t *payload = out + at + 4;
        memset(payload, 0, sizes[kind]);
        bk_store_be32(out + at, sizes[kind]);
        bk_store_be32(payload, words[kind]);
        if (ids_at[kind] > 0) {
            bk_store_be64(payload + ids_at[kind], 7);
            bk_store_be64(payload + ids_at[kind] + 8, entry);
        }
        at += 4 + sizes[kind];
    }
    return at;
}

/* A stream of v3 responses, most of them good and in runs, behind the eight choices. */
static size_t run_of_responses(uint8_t *out) {
    size_t at = 8;
    memset(out, 0, 8);
    bk_store_be32(out, 5000);
    out[6] = (uint8_t)random_below(256);
    uint8_t number = 0, entry = 0, step = 1, add = 0;
    for (; at < 2500; number = (number + 1) & 0x7F, entry = (entry + step) & 0x7F) {
        if (random_below(6) == 0) {
            add = (uint8_t)random_below(2);
            step = (uint8_t)(1 + random_below(5));
            number = (uint8_t)random_below(100);
        }
        const uint8_t body_bytes = add ? 0 : 40, inner_bytes = add ? 6 : 6 + 2 + 40 + 2;
        uint8_t head[] = {0x0A,
                          6,
                          0x08,
                          3,
                          0x10,
                          (uint8_t)(1 + add),
                          0x18,
                          number,
                          0x10,
                          0,
                          add ? 0xAA : 0xA2,
                          6,
                          inner_bytes,
                          0x08,
                          0,
                          0x10,
                          7,
                          0x18,
                          entry};
        bk_store_be32(out + at, (uint32_t)(sizeof head - 6 + inner_bytes));
        memcpy(out + at + 4, head, sizeof head);
        at += 4 + sizeof head;
        if (body_bytes > 0) {
            out[at] = 0x22;
            out[at + 1] = body_bytes;
            memset(out + at + 2, 'b', body_bytes);
            out[at + 2 + body_bytes] = 0x28;
            out[at + 3 + body_bytes] = entry;
            at += 4 + (size_t)body_bytes;
        }
    }
    return at;
}

static void check_runs(void) {
    uint8_t input[4096];
    for (int round = 0; round < 10000; round++) {
        size_t size = round % 2 ? run_of_frames(input) : run_of_responses(input);
        uint32_t change = random_below(3);
        if (change == 1) {
            size = 8 + random_below((uint32_t)size - 8);
        } else if (change == 2) {
            input[8 + random_below((uint32_t)size - 8)] ^= (uint8_t)(1 << random_below(8));
        }
        LLVMFuzzerTestOneInput(input, size);
    }
}

/* Nothing but whole add frames: what bk_take_bodies takes. */
static void check_add_frames(void) {
    uint8_t input[4096];
    for (int round = 0; round < 2000; round++) {
        size_t at = 8, frames = 1 + random_below(20);
        memset(input, 0, sizeof input);
        bk_store_be32(input, 5000);
        for (; frames > 0; frames--) {
            uint32_t size = 56 + random_below(100);
            bk_store_be32(input + at, size);
            bk_store_be32(input + at + 4, 0x02010000u);
            bk_store_be64(input + at + 44, (int64_t)random_below(9) - 1);
            at += 4 + size;
        }
        LLVMFuzzerTestOneInput(input, at - random_below(2));
    }
}

static void check_heads(void) {
    static const bk_heads good = {.ledger_id = 1, .first_entry_id = 2, .count = 3, .step = 1};
    uint8_t *frames = memory(84);
    bk_run_result made;
    check(bk_frame_reads(&good, NULL, 0, &made) == BK_RUN_OK && made.frame_bytes == 72, "size of reads");
    check(bk_frame_reads(&good, frames, 71, &made) == BK_RUN_NO_ROOM, "no room for reads");
    check(bk_frame_reads(&good, frames, 72, &made) == BK_RUN_OK && frames[71] == 4, "reads");
    check(bk_frame_add_responses(&good, NULL, 0, &made) == BK_RUN_OK && made.frame_bytes == 84, "size of responses");
    check(bk_frame_add_responses(&good, frames, 83, &made) == BK_RUN_NO_ROOM, "no room for responses");
    check(bk_frame_add_responses(&good, frames, 84, &made) == BK_RUN_OK && frames[83] == 4, "responses");
    free(frames);
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
    check_runs();
    check_add_frames();
    check_heads();
    printf("plain C self-test passed (CRC-32C kernel: %s)\n", bk_crc32c_kernel());
    return 0;
}
