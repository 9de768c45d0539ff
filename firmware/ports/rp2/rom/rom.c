/* rom.c: a stand-in for the boot ROM of the RP2040, which rp2040js does not bring: what a firmware looks up that has the
 * compiler's arithmetic routines. Changes of the flash are left to the emulator, which sees the BKPT (see pico.mjs). */
#include <stddef.h>
#include <stdint.h>

#define NAKED __attribute__((naked))

const void *lookup(const uint16_t *table, uint32_t code);
uint32_t population(uint32_t word);
uint32_t leading_zeros(uint32_t word);
uint32_t trailing_zeros(uint32_t word);
uint32_t reverse(uint32_t word);
void *fill(uint8_t *to, uint8_t byte, uint32_t size);
void *copy(uint8_t *to, const uint8_t *from, uint32_t size);
void nothing(void);
void flash_erase(void);
void flash_program(void);
void to_usb_boot(void);

const void *lookup(const uint16_t *table, uint32_t code)
{
    for (; table[0] != 0; table += 2) {
        if (table[0] == code) {
            return (const void *)(uintptr_t)table[1];
        }
    }
    return NULL;
}

uint32_t population(uint32_t word)
{
    uint32_t count = 0;

    for (; word != 0; word &= word - 1) {
        count++;
    }
    return count;
}

uint32_t leading_zeros(uint32_t word)
{
    uint32_t count = 0;

    for (; count < 32 && (word & 0x80000000u) == 0; word <<= 1) {
        count++;
    }
    return count;
}

uint32_t trailing_zeros(uint32_t word)
{
    uint32_t count = 0;

    for (; count < 32 && (word & 1) == 0; word >>= 1) {
        count++;
    }
    return count;
}

uint32_t reverse(uint32_t word)
{
    uint32_t reversed = 0;

    for (int bit = 0; bit < 32; bit++) {
        reversed = reversed << 1 | (word & 1);
        word >>= 1;
    }
    return reversed;
}

void *fill(uint8_t *to, uint8_t byte, uint32_t size)
{
    void *start = to;

    while (size-- != 0) {
        *to++ = byte;
    }
    return start;
}

void *copy(uint8_t *to, const uint8_t *from, uint32_t size)
{
    void *start = to;

    while (size-- != 0) {
        *to++ = *from++;
    }
    return start;
}

void nothing(void)
{
}

/* (offset, size, ...) */
NAKED void flash_erase(void)
{
    __asm volatile("bkpt #0xE1\n bx lr");
}

/* (offset, data, size) */
NAKED void flash_program(void)
{
    __asm volatile("bkpt #0xE2\n bx lr");
}

NAKED void to_usb_boot(void)
{
    __asm volatile("bkpt #0xE3\n b .");
}

static void fault(void)
{
    __asm volatile("bkpt #0xE4");
    for (;;) {
    }
}

/* Where the second stage of the boot ends: vector table, stack and start of the image. */
static void boot(void)
{
    const uint32_t *vectors = (const uint32_t *)0x10000100;

    *(volatile uint32_t *)0xE000ED08 = (uint32_t)vectors;
    __asm volatile("msr msp, %0\n bx %1" ::"r"(vectors[0]), "r"(vectors[1]));
}

__attribute__((section(".vectors"), used)) static const struct {
    uint32_t stack;
    void (*entries[3])(void);
    uint8_t magic[3], version;
} vectors = {0x20041F00, {boot, fault, fault}, {'M', 'u', 1}, 3};
