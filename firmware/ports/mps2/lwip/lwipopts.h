// lwipopts.h: lwIP as MicroPython's boards have it.
#ifndef MPS2_LWIPOPTS_H
#define MPS2_LWIPOPTS_H

#include <stdint.h>

uint32_t random_word(void);

#define LWIP_IPV6 0
#define LWIP_RAND() random_word()

#include "extmod/lwip-include/lwipopts_common.h"

#endif
