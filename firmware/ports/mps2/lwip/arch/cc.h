// cc.h: lwIP's settings for the compiler.
#ifndef MPS2_LWIP_CC_H
#define MPS2_LWIP_CC_H

#include <stdio.h> // for snprintf, which lwIP names and does not use here

__attribute__((noreturn)) void board_panic(const char *why);

#define LWIP_NO_CTYPE_H 1
#define LWIP_PLATFORM_DIAG(text)
#define LWIP_PLATFORM_ASSERT(text) board_panic(text)

#endif
