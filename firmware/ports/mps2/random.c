// random.c: os.urandom(), and lwIP's port numbers. The host's randomness; `seed=N` makes it the same each time.
#include "board.h"

#include "py/runtime.h"

static uint64_t state;

void random_init(void)
{
    size_t length;

    if (setting("seed", 4, &length) != NULL || !semihost_random(&state, sizeof(state))) {
        state = setting_number("seed", 1);
    }
    state = state * 2 + 1; // never 0: that would stay 0
}

// xorshift64*
uint32_t random_word(void)
{
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (state * 0x2545F4914F6CDD1Dull) >> 32;
}
