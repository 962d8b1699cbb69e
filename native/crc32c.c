/* CRC-32C by the processor's instruction where there is one, else eight table look-ups for eight bytes.
 *
 * The instruction has a latency of three cycles but starts every cycle, so one dependent chain runs at a third of the
 * possible speed. Three neighbouring stretches are therefore computed side by side and joined afterwards. Joining
 * uses that a CRC state is linear: state(A then B) = advance(state(A), |B| zero bytes) xor state_from_zero(B). For the
 * two stretch lengths used here "advance" is a table of four times 256 words.
 */
#include "crc32c.h"

#include <string.h>

#if defined(__x86_64__) || defined(_M_X64)
#define BK_CRC_HARDWARE "sse4.2"
#include <nmmintrin.h>
#if defined(_MSC_VER)
#include <intrin.h>
#define BK_CRC_TARGET
#else
#include <cpuid.h>
#if defined(__clang__) && __clang_major__ >= 14
#define BK_CRC_TARGET __attribute__((target("sse4.2,crc32"))) /* a feature of its own there since 14 */
#else
#define BK_CRC_TARGET __attribute__((target("sse4.2")))
#endif
#endif
#define BK_CRC_STEP1(state, byte) _mm_crc32_u8((state), (byte))
#define BK_CRC_STEP8(state, word) ((uint32_t)_mm_crc32_u64((state), (word)))

#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__)) && defined(__BYTE_ORDER__) &&                 \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BK_CRC_HARDWARE "armv8-crc"
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__clang__)
#define BK_CRC_TARGET             __attribute__((target("crc")))
#define BK_CRC_STEP1(state, byte) __builtin_arm_crc32cb((state), (byte))
#define BK_CRC_STEP8(state, word) __builtin_arm_crc32cd((state), (word))
#else
#define BK_CRC_TARGET             __attribute__((target("+crc")))
#define BK_CRC_STEP1(state, byte) __builtin_aarch64_crc32cb((state), (byte))
#define BK_CRC_STEP8(state, word) __builtin_aarch64_crc32cx((state), (word))
#endif
#endif

#define POLYNOMIAL  0x82F63B78u
#define LONG_BYTES  4096 /* stretch for big buffers; a power of two */
#define SHORT_BYTES 256  /* stretch for what is left, and for entries of about a kilobyte */

static uint32_t table[8][256];

static void build_table(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t state = byte;
        for (int bit = 0; bit < 8; bit++) {
            state = (state >> 1) ^ ((state & 1) ? POLYNOMIAL : 0);
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

static uint32_t load_le32(const uint8_t *data) {
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

/* Works on the bare state; the complements at both ends belong to the callers. */
static uint32_t run_table(uint32_t state, const uint8_t *data, size_t size) {
    while (size >= 8) {
        uint32_t low = state ^ load_le32(data);
        uint32_t high = load_le32(data + 4);
        state = table[7][low & 0xFF] ^ table[6][(low >> 8) & 0xFF] ^ table[5][(low >> 16) & 0xFF] ^ table[4][low >> 24];
        state ^=
            table[3][high & 0xFF] ^ table[2][(high >> 8) & 0xFF] ^ table[1][(high >> 16) & 0xFF] ^ table[0][high >> 24];
        data += 8;
        size -= 8;
    }
    while (size > 0) {
        state = (state >> 8) ^ table[0][(state ^ *data) & 0xFF];
        data++;
        size--;
    }
    return state;
}

#ifdef BK_CRC_HARDWARE

static uint32_t advance_long[4][256];
static uint32_t advance_short[4][256];

/* matrix[i] is what becomes of a state with only bit i set. */
static uint32_t apply(const uint32_t matrix[32], uint32_t state) {
    uint32_t result = 0;
    for (int bit = 0; bit < 32; bit++) {
        if (state >> bit & 1) {
            result ^= matrix[bit];
        }
    }
    return result;
}

/* `bytes` is a power of two: start from one zero byte and double. */
static void build_advance(uint32_t advance[4][256], size_t bytes) {
    uint32_t matrix[32];
    for (int bit = 0; bit < 32; bit++) {
        uint32_t state = 1u << bit;
        matrix[bit] = (state >> 8) ^ table[0][state & 0xFF];
    }
    for (size_t done = 1; done < bytes; done *= 2) {
        uint32_t doubled[32];
        for (int bit = 0; bit < 32; bit++) {
            doubled[bit] = apply(matrix, matrix[bit]);
        }
        memcpy(matrix, doubled, sizeof matrix);
    }
    for (int row = 0; row < 4; row++) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            advance[row][byte] = apply(matrix, byte << (8 * row));
        }
    }
}

static uint32_t advanced(const uint32_t advance[4][256], uint32_t state) {
    return advance[0][state & 0xFF] ^ advance[1][(state >> 8) & 0xFF] ^ advance[2][(state >> 16) & 0xFF] ^
           advance[3][state >> 24];
}

static inline uint64_t load_native64(const uint8_t *data) {
    uint64_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

/* Consumes 3 * stretch bytes. */
BK_CRC_TARGET static uint32_t run_three(uint32_t state, const uint8_t *data, size_t stretch,
                                        const uint32_t advance[4][256]) {
    uint32_t second = 0;
    uint32_t third = 0;
    for (const uint8_t *end = data + stretch; data < end; data += 8) {
        state = BK_CRC_STEP8(state, load_native64(data));
        second = BK_CRC_STEP8(second, load_native64(data + stretch));
        third = BK_CRC_STEP8(third, load_native64(data + 2 * stretch));
    }
    state = advanced(advance, state) ^ second;
    return advanced(advance, state) ^ third;
}

BK_CRC_TARGET static uint32_t run_hardware(uint32_t state, const uint8_t *data, size_t size) {
    while (size >= 3 * LONG_BYTES) {
        state = run_three(state, data, LONG_BYTES, advance_long);
        data += 3 * LONG_BYTES;
        size -= 3 * LONG_BYTES;
    }
    while (size >= 3 * SHORT_BYTES) {
        state = run_three(state, data, SHORT_BYTES, advance_short);
        data += 3 * SHORT_BYTES;
        size -= 3 * SHORT_BYTES;
    }
    while (size >= 8) {
        state = BK_CRC_STEP8(state, load_native64(data));
        data += 8;
        size -= 8;
    }
    while (size > 0) {
        state = BK_CRC_STEP1(state, *data);
        data++;
        size--;
    }
    return state;
}

static int hardware_present(void) {
#if defined(_M_X64) && defined(_MSC_VER)
    int registers[4];
    __cpuid(registers, 1);
    return registers[2] >> 20 & 1;
#elif defined(__x86_64__)
    unsigned int eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) && (ecx >> 20 & 1);
#elif defined(__linux__)
    return (getauxval(AT_HWCAP) >> 7 & 1) != 0; /* HWCAP_CRC32 */
#else
    return 1; /* every Apple arm64 processor has it */
#endif
}

#endif

static uint32_t (*run)(uint32_t, const uint8_t *, size_t) = run_table;
static const char *kernel = "table";

void bk_crc32c_init(void) {
    if (table[0][1] != 0) {
        return; /* a second interpreter must not write to tables that the first may be reading */
    }
    build_table();
#ifdef BK_CRC_HARDWARE
    if (hardware_present()) {
        build_advance(advance_long, LONG_BYTES);
        build_advance(advance_short, SHORT_BYTES);
        run = run_hardware;
        kernel = BK_CRC_HARDWARE;
    }
#endif
}

uint32_t bk_crc32c(uint32_t value, const uint8_t *data, size_t size) {
    return ~run(~value, data, size);
}

uint32_t bk_crc32c_table(uint32_t value, const uint8_t *data, size_t size) {
    return ~run_table(~value, data, size);
}

const char *bk_crc32c_kernel(void) {
    return kernel;
}
