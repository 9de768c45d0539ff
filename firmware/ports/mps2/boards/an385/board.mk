# ARM's MPS2 with image AN385: a Cortex-M3.
NAME = MPS2 AN385
MCU = Cortex-M3
CPU = -mthumb -mcpu=cortex-m3 -mfloat-abi=soft
MPY_ARCH = armv7m
include boards/arm.mk
