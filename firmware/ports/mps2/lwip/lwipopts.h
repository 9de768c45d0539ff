// lwipopts.h: lwIP as on MicroPython's boards.
#ifndef MPS2_LWIPOPTS_H
#define MPS2_LWIPOPTS_H

#include <stdint.h>

uint32_t random_word(void);

#define LWIP_IPV6 0
#define LWIP_RAND() random_word()

#include "extmod/lwip-include/lwipopts_common.h"

#endif
