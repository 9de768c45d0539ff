# ARM's MPS2 with image AN505: a Cortex-M33, the core of an RP2350.
NAME = MPS2 AN505
MCU = Cortex-M33
CPU = -mthumb -mcpu=cortex-m33 -mfpu=fpv5-sp-d16 -mfloat-abi=hard
MPY_ARCH = armv7emsp
include boards/arm.mk
