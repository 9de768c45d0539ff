# make USER_C_MODULES=<checkout>/firmware/ports/usermod: ports that build with make.
# An absolute include path: qstr extraction ignores files that it sees as ./name.
MQQB_MOD_DIR := $(USERMOD_DIR)
SRC_USERMOD_C += $(MQQB_MOD_DIR)/modmqqb.c
CFLAGS_USERMOD += -I$(abspath $(MQQB_MOD_DIR)/../../../../c_core)
