/* CRC-32C by the processor's instruction where there is one, else eight table look-ups for eight bytes.
 *
 * The instruction has a latency of three cycles but starts every cycle, so one dependent chain runs at a third of the
 * possible speed. Three neighbouring stretches are therefore computed side by side and joined afterwards. Joining
 * uses that a CRC state is linear: state(A then B) = advance(state(A), |B| zero bytes) xor state_from_zero(B). For the
 * two stretch lengths used here "advance" is a table of four times 256 words.
 *
 * Where the processor multiplies polynomials (PCLMULQDQ), "advance" is one product, for any length. Where it does so in
 * 512-bit registers (VPCLMULQDQ), four of them are folded forward side by side, several times faster than the
 * instruction, which reduces the last 16 bytes.
 *
 * Each way exists twice, from one source: `out` is NULL, or where the bytes are copied to on the way. In the second
 * case the digest is of the bytes that were stored, even when another thread writes to the input meanwhile.
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
#define BK_CRC_STEP4(state, word) _mm_crc32_u32((state), (word))
#define BK_CRC_STEP8(state, word) ((uint32_t)_mm_crc32_u64((state), (word)))
#if defined(__GNUC__)
#define BK_CRC_JOIN "sse4.2-pclmulqdq"
#define BK_CRC_WIDE "avx512-vpclmulqdq"
#include <immintrin.h>
#if defined(__clang__) && __clang_major__ >= 14
#define BK_WIDE_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2,crc32")))
#define BK_JOIN_TARGET __attribute__((target("pclmul,sse4.2,crc32")))
#else
#define BK_WIDE_TARGET __attribute__((target("avx512f,avx512vl,vpclmulqdq,pclmul,sse4.2")))
#define BK_JOIN_TARGET __attribute__((target("pclmul,sse4.2")))
#endif
#endif

#elif defined(__aarch64__) && (defined(__linux__) || defined(__APPLE__)) && defined(__BYTE_ORDER__) &&                 \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BK_CRC_HARDWARE "armv8-crc"
#if defined(__linux__)
#include <sys/auxv.h>
#endif
#if defined(__clang__)
#define BK_CRC_TARGET             __attribute__((target("crc")))
#define BK_CRC_STEP1(state, byte) __builtin_arm_crc32cb((state), (byte))
#define BK_CRC_STEP4(state, word) __builtin_arm_crc32cw((state), (word))
#define BK_CRC_STEP8(state, word) __builtin_arm_crc32cd((state), (word))
#else
#define BK_CRC_TARGET             __attribute__((target("+crc")))
#define BK_CRC_STEP1(state, byte) __builtin_aarch64_crc32cb((state), (byte))
#define BK_CRC_STEP4(state, word) __builtin_aarch64_crc32cw((state), (word))
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

static inline uint32_t load_native32(const uint8_t *data) {
    uint32_t word;
    memcpy(&word, data, sizeof word);
    return word;
}

/* A word of the input, copied to `out` if there is one. */
static inline uint64_t pass64(const uint8_t *data, uint8_t *out, size_t at) {
    uint64_t word = load_native64(data + at);
    if (out != NULL) {
        memcpy(out + at, &word, sizeof word);
    }
    return word;
}

/* Consumes 3 * stretch bytes. */
BK_CRC_TARGET static inline uint32_t run_three(uint32_t state, const uint8_t *data, uint8_t *out, size_t stretch,
                                               const uint32_t advance[4][256]) {
    uint32_t second = 0;
    uint32_t third = 0;
    for (size_t at = 0; at < stretch; at += 8) {
        state = BK_CRC_STEP8(state, pass64(data, out, at));
        second = BK_CRC_STEP8(second, pass64(data, out, at + stretch));
        third = BK_CRC_STEP8(third, pass64(data, out, at + 2 * stretch));
    }
    state = advanced(advance, state) ^ second;
    return advanced(advance, state) ^ third;
}

/* One stream; for what is too short for more. */
BK_CRC_TARGET static inline uint32_t run_one(uint32_t state, const uint8_t *data, uint8_t *out, size_t size) {
    size_t at = 0;
    for (; size - at >= 8; at += 8) {
        state = BK_CRC_STEP8(state, pass64(data, out, at));
    }
    if (size - at >= 4) {
        uint32_t word = load_native32(data + at);
        if (out != NULL) {
            memcpy(out + at, &word, sizeof word);
        }
        state = BK_CRC_STEP4(state, word);
        at += 4;
    }
    for (; at < size; at++) {
        uint8_t byte = data[at];
        if (out != NULL) {
            out[at] = byte;
        }
        state = BK_CRC_STEP1(state, byte);
    }
    return state;
}

BK_CRC_TARGET static inline uint32_t run_streams(uint32_t state, const uint8_t *data, uint8_t *out, size_t size) {
    size_t at = 0;
    for (; size - at >= 3 * LONG_BYTES; at += 3 * LONG_BYTES) {
        state = run_three(state, data + at, out == NULL ? NULL : out + at, LONG_BYTES, advance_long);
    }
    for (; size - at >= 3 * SHORT_BYTES; at += 3 * SHORT_BYTES) {
        state = run_three(state, data + at, out == NULL ? NULL : out + at, SHORT_BYTES, advance_short);
    }
    return run_one(state, data + at, out == NULL ? NULL : out + at, size - at);
}

BK_CRC_TARGET static uint32_t run_hardware(uint32_t state, const uint8_t *data, size_t size) {
    return run_streams(state, data, NULL, size);
}

BK_CRC_TARGET static uint32_t copy_hardware(uint32_t state, const uint8_t *data, uint8_t *out, size_t size) {
    return run_streams(state, data, out, size);
}

#ifdef BK_CRC_JOIN

/* x to the power of `exponent`, as a CRC state. */
static uint32_t power(int exponent) {
    uint32_t state = UINT32_C(1) << 31;
    for (; exponent > 0; exponent--) {
        state = (state >> 1) ^ ((state & 1) ? POLYNOMIAL : 0);
    }
    return state;
}

#define JOIN_WORDS     512 /* of eight bytes; the longest stretch */
#define JOIN_BYTES_MIN 48  /* below this one stream is as fast */

/* What moves a state forward by so many words: multiply, and let the instruction reduce the product. It stands one bit
 * too low, and the instruction moves it on by 32 itself: 33 bits less than the distance. */
static uint32_t forward[2 * JOIN_WORDS + 1];

static void build_forward(void) {
    forward[1] = power(64 - 33);
    for (int words = 2; words <= 2 * JOIN_WORDS; words++) {
        uint32_t state = forward[words - 1];
        for (int byte = 0; byte < 8; byte++) {
            state = (state >> 8) ^ table[0][state & 0xFF];
        }
        forward[words] = state;
    }
}

BK_JOIN_TARGET static inline uint64_t product(uint32_t state, uint32_t factor) {
    return (uint64_t)_mm_cvtsi128_si64(
        _mm_clmulepi64_si128(_mm_cvtsi64_si128((int64_t)state), _mm_cvtsi64_si128((int64_t)factor), 0x00));
}

/* Three streams of any length, so that nothing much is left for a single one. */
BK_JOIN_TARGET static inline uint32_t run_joined(uint32_t state, const uint8_t *data, uint8_t *out, size_t size) {
    size_t at = 0;
    while (size - at >= JOIN_BYTES_MIN) {
        size_t words = (size - at) / 24 < JOIN_WORDS ? (size - at) / 24 : JOIN_WORDS;
        size_t stretch = 8 * words;
        uint32_t second = 0;
        uint32_t third = 0;
        for (size_t end = at + stretch; at < end; at += 8) {
            state = BK_CRC_STEP8(state, pass64(data, out, at));
            second = BK_CRC_STEP8(second, pass64(data, out, at + stretch));
            third = BK_CRC_STEP8(third, pass64(data, out, at + 2 * stretch));
        }
        state = third ^ BK_CRC_STEP8(0, product(state, forward[2 * words]) ^ product(second, forward[words]));
        at += 2 * stretch;
    }
    return run_one(state, data + at, out == NULL ? NULL : out + at, size - at);
}

BK_JOIN_TARGET static uint32_t run_join(uint32_t state, const uint8_t *data, size_t size) {
    return run_joined(state, data, NULL, size);
}

BK_JOIN_TARGET static uint32_t copy_join(uint32_t state, const uint8_t *data, uint8_t *out, size_t size) {
    return run_joined(state, data, out, size);
}

#define WIDE_BYTES 192 /* below this the streams are as fast */

/* What moves a register of bytes forward: multipliers for its lower and upper half, for each of the four lanes. */
static uint64_t fold_256[8], fold_64[8], fold_lanes[8];

/* A product of two reflected halves stands one bit too low, and a state in the lower half of a word 32 bits too high:
 * 33 bits less than the distance for the upper half, and 64 more for the lower one. */
static void build_fold(uint64_t fold[8], int lane, int bits) {
    fold[2 * lane] = power(bits + 31);
    fold[2 * lane + 1] = power(bits - 33);
}

static void build_folds(void) {
    for (int lane = 0; lane < 4; lane++) {
        build_fold(fold_256, lane, 8 * 256);
        build_fold(fold_64, lane, 8 * 64);
        if (lane < 3) {
            build_fold(fold_lanes, lane, 8 * 16 * (3 - lane));
        }
    }
}

BK_WIDE_TARGET static inline __m512i folded(__m512i value, __m512i fold, __m512i next) {
    return _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(value, fold, 0x00),
                                     _mm512_clmulepi64_epi128(value, fold, 0x11), next, 0x96);
}

BK_WIDE_TARGET static inline __m512i pass512(const uint8_t *data, uint8_t *out, size_t at) {
    __m512i value = _mm512_loadu_si512(data + at);
    if (out != NULL) {
        _mm512_storeu_si512(out + at, value);
    }
    return value;
}

/* The four lanes as one, and that by the instruction. */
BK_WIDE_TARGET static inline uint32_t reduced(__m512i value) {
    __m512i lanes = folded(value, _mm512_loadu_si512(fold_lanes), _mm512_setzero_si512());
    __m128i last = _mm512_extracti32x4_epi32(value, 3);
    __m128i sum = _mm_xor_si128(_mm512_castsi512_si128(lanes), _mm512_extracti32x4_epi32(lanes, 1));
    sum = _mm_xor_si128(_mm_xor_si128(sum, _mm512_extracti32x4_epi32(lanes, 2)), last);
    return BK_CRC_STEP8(BK_CRC_STEP8(0, (uint64_t)_mm_cvtsi128_si64(sum)), (uint64_t)_mm_extract_epi64(sum, 1));
}

BK_WIDE_TARGET static inline uint32_t run_folds(uint32_t state, const uint8_t *data, uint8_t *out, size_t size) {
    size_t at = 64;
    if (size < WIDE_BYTES) {
        return run_joined(state, data, out, size);
    }
    __m512i fold = _mm512_loadu_si512(fold_64);
    __m512i first = _mm512_xor_si512(pass512(data, out, 0), _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)state)));
    if (size >= 512) {
        __m512i far = _mm512_loadu_si512(fold_256);
        __m512i second = pass512(data, out, 64), third = pass512(data, out, 128), fourth = pass512(data, out, 192);
        for (at = 256; size - at >= 256; at += 256) {
            first = folded(first, far, pass512(data, out, at));
            second = folded(second, far, pass512(data, out, at + 64));
            third = folded(third, far, pass512(data, out, at + 128));
            fourth = folded(fourth, far, pass512(data, out, at + 192));
        }
        first = folded(folded(folded(first, fold, second), fold, third), fold, fourth);
    }
    for (; size - at >= 64; at += 64) {
        first = folded(first, fold, pass512(data, out, at));
    }
    return run_joined(reduced(first), data + at, out == NULL ? NULL : out + at, size - at);
}

BK_WIDE_TARGET static uint32_t run_wide(uint32_t state, const uint8_t *data, size_t size) {
    return run_folds(state, data, NULL, size);
}

BK_WIDE_TARGET static uint32_t copy_wide(uint32_t state, const uint8_t *data, uint8_t *out, size_t size) {
    return run_folds(state, data, out, size);
}

static int join_present(void) {
    return __builtin_cpu_supports("pclmul");
}

static int wide_present(void) {
    /* These look at what the operating system saves, too. */
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("vpclmulqdq");
}

#endif

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

static uint32_t copy_table(uint32_t state, const uint8_t *data, uint8_t *out, size_t size) {
    memcpy(out, data, size);
    return run_table(state, out, size);
}

typedef struct {
    const char *name;
    uint32_t (*run)(uint32_t state, const uint8_t *data, size_t size);
    uint32_t (*copy)(uint32_t state, const uint8_t *data, uint8_t *out, size_t size);
} crc_kernel;

/* What this processor can run, the best last. */
static crc_kernel kernels[4] = {{"table", run_table, copy_table}};
static const crc_kernel *chosen = kernels;

void bk_crc32c_init(void) {
    if (table[0][1] != 0) {
        return; /* a second interpreter must not write to tables that the first may be reading */
    }
    int count = 1;
    build_table();
#ifdef BK_CRC_HARDWARE
    if (hardware_present()) {
        build_advance(advance_long, LONG_BYTES);
        build_advance(advance_short, SHORT_BYTES);
        kernels[count++] = (crc_kernel){BK_CRC_HARDWARE, run_hardware, copy_hardware};
#ifdef BK_CRC_JOIN
        if (join_present()) {
            build_forward();
            kernels[count++] = (crc_kernel){BK_CRC_JOIN, run_join, copy_join};
            if (wide_present()) {
                build_folds();
                kernels[count++] = (crc_kernel){BK_CRC_WIDE, run_wide, copy_wide};
            }
        }
#endif
    }
#endif
    chosen = &kernels[count - 1];
}

uint32_t bk_crc32c(uint32_t value, const uint8_t *data, size_t size) {
    return ~chosen->run(~value, data, size);
}

uint32_t bk_crc32c_copy(uint32_t value, const uint8_t *data, uint8_t *out, size_t size) {
    return ~chosen->copy(~value, data, out, size);
}

const char *bk_crc32c_kernel(void) {
    return chosen->name;
}

int bk_crc32c_choose(int number) {
    if (number < 0 || number >= (int)(sizeof kernels / sizeof *kernels) || kernels[number].name == NULL) {
        return 0;
    }
    chosen = &kernels[number];
    return 1;
}
