/* assert_hook.h: included before mqqb.c by the test builds with asserts (gcc -include). */
#ifndef ASSERT_HOOK_H
#define ASSERT_HOOK_H

void assert_hook(const char *condition, const char *file, int line);

#define MQQB_ASSERT(condition) ((condition) ? (void)0 : assert_hook(#condition, __FILE__, __LINE__))

#endif
