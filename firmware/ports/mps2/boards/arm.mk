# What the Cortex-M boards have in common.
CROSS_COMPILE ?= arm-none-eabi-
SRC_CPU = arm.c uart_cmsdk.c lan9118.c
GC_HELPER = shared/runtime/gchelper_thumb2.o
AFLAGS = $(filter -mthumb -mcpu=%,$(CPU))
