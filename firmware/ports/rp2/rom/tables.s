@ What a boot ROM has at 0x14: 16-bit pointers to the tables of functions and data, and to the look-up in them.
    .syntax unified
    .cpu cortex-m0plus
    .thumb
    .section .pointers, "a"
    .short functions
    .short data
    .short lookup + 1

    .macro entry first, second, function
    .byte \first, \second
    .short \function + 1
    .endm

    .section .tables, "a"
functions:
    entry 'P', '3', population
    entry 'L', '3', leading_zeros
    entry 'T', '3', trailing_zeros
    entry 'R', '3', reverse
    entry 'M', 'S', fill
    entry 'S', '4', fill
    entry 'M', 'C', copy
    entry 'C', '4', copy
    entry 'U', 'B', to_usb_boot
    entry 'I', 'F', nothing
    entry 'E', 'X', nothing
    entry 'R', 'E', flash_erase
    entry 'R', 'P', flash_program
    entry 'F', 'C', nothing
    entry 'C', 'X', nothing
    .short 0, 0
data:
    .short 0, 0
