/* CRC-32C (Castagnoli: reflected polynomial 0x82F63B78, initial value and final xor 0xFFFFFFFF). */
#ifndef BK_CRC32C_H
#define BK_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Builds the tables and picks the kernel. Call once before anything else here; calling again changes nothing. */
void bk_crc32c_init(void);

/* The CRC of the bytes so far followed by `data`; `value` is 0 or an earlier result. */
uint32_t bk_crc32c(uint32_t value, const uint8_t *data, size_t size);

/* The same by tables alone. It is what bk_crc32c does on processors without the instruction. */
uint32_t bk_crc32c_table(uint32_t value, const uint8_t *data, size_t size);

/* "sse4.2", "armv8-crc" or "table". */
const char *bk_crc32c_kernel(void);

#endif
