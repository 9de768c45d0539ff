// sys_arch.h: lwIP without an operating system needs nothing here.
