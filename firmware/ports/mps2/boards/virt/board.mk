# QEMU's RISC-V machine `virt`, with 32 bits and the instructions of an ESP32-C3 and of an RP2350's Hazard3.
NAME = QEMU virt
MCU = RV32IMAC
CROSS_COMPILE ?= riscv64-unknown-elf-
CPU = -march=rv32imac_zicsr -mabi=ilp32 -msmall-data-limit=0 --specs=picolibc.specs
LIBGCC_CPU = -march=rv32imac -mabi=ilp32 # bookworm's compiler has no libgcc with zicsr in its name
AFLAGS = -march=rv32imac_zicsr -mabi=ilp32
MPY_ARCH = rv32imc
SRC_CPU = riscv.c pci.c uart_16550.c virtio_net.c
GC_HELPER = shared/runtime/gchelper_rv32i.o
