# ARM's MPS2 with image AN386: the machine of AN385 with a Cortex-M4, which has floating point.
NAME = MPS2 AN386
MCU = Cortex-M4
MACHINE = an385
CPU = -mthumb -mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard
MPY_ARCH = armv7emsp
include boards/arm.mk
