/* CRC-32C (Castagnoli: reflected polynomial 0x82F63B78, initial value and final xor 0xFFFFFFFF). */
#ifndef BK_CRC32C_H
#define BK_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Builds the tables and picks the kernel. Call once before anything else here; calling again changes nothing. */
void bk_crc32c_init(void);

/* The CRC of the bytes so far followed by `data`; `value` is 0 or an earlier result. */
uint32_t bk_crc32c(uint32_t value, const uint8_t *data, size_t size);

/* The same of bytes that are copied to `out` on the way; the result is that of the copy. The two must not overlap. */
uint32_t bk_crc32c_copy(uint32_t value, const uint8_t *data, uint8_t *out, size_t size);

/* "avx512-vpclmulqdq", "sse4.2-pclmulqdq", "sse4.2", "armv8-crc" or "table". */
const char *bk_crc32c_kernel(void);

/* Takes kernel `number` from now on, 0 being the tables and each one faster than the one before it. 0: there is no such
 * kernel on this processor. For tests. */
int bk_crc32c_choose(int number);

#endif
