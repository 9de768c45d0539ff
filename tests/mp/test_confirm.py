"""The test cases of the confirmation process, on MicroPython and CPython. Prints `N passed, N failed`."""

import sys

sys.path.insert(0, "tests/mp")

import confirm_cases


def main():
    tests = [(case[0], confirm_cases.check, (case,)) for case in confirm_cases.CASES]
    tests += [(other.__name__, other, ()) for other in confirm_cases.OTHERS]
    failed = 0
    for name, test, arguments in tests:
        try:
            test(*arguments)
        except Exception as error:
            failed += 1
            print("FAILED", name)
            if hasattr(sys, "print_exception"):
                sys.print_exception(error)
            else:
                raise
    print("%d passed, %d failed" % (len(tests) - failed, failed))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
