# What our builds of the unix port share. TLS is for the builds that ask for it; nothing else needs another library.
MICROPY_PY_BTREE = 0
MICROPY_PY_FFI = 0
MICROPY_PY_BLUETOOTH = 0
