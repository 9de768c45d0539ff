/* assert_hook.c: a failed MQQB_ASSERT jumps back into the test that expects it; anywhere else it ends the run. */
#include "assert_hook.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

jmp_buf assert_jump;
int assert_armed;

void assert_hook(const char *condition, const char *file, int line)
{
    if (assert_armed) {
        longjmp(assert_jump, 1);
    }
    fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, condition);
    abort();
}
