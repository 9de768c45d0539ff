"""Tests that MicroPython and pytest both run: plain functions with the rules they show, and with values for them."""

import sys

from mqqb import core

TESTS = []  # (function, rule numbers, names of arguments, their values), in order


class _Cases:
    def __init__(self, function, names, values):
        self.function = function
        self.names = names
        self.values = values


def parametrize(names, values):
    """As pytest's, but once: a name, or several with a tuple of values each time. Stands under `rule`."""

    def wrap(function):
        return _Cases(function, names, list(values))

    return wrap


def rule(*numbers):
    """Note a test."""

    def wrap(test):
        if isinstance(test, _Cases):
            TESTS.append((test.function, numbers, test.names, test.values))
            return test.function
        TESTS.append((test, numbers, None, None))
        return test

    return wrap


def _calls(function, names, values):
    if names is None:
        yield function.__name__, function, (), {}
        return
    for value in values:
        arguments = {names: value} if isinstance(names, str) else dict(zip(names, value))
        yield function.__name__ + repr(value), function, (), arguments


def tests_of(names):
    """The tests among the names of a module."""
    return tuple(names[name] for name in sorted(names) if name.startswith("test_"))


def run_tests(tests):
    """Run them all, as run_calls does."""
    print("engine with core", core.implementation)
    run_calls(call for function, _, names, values in tests for call in _calls(function, names, values))


def run_calls(calls):
    """Make each call (name, function, arguments, keyword arguments), say what failed, exit with 1 if any did.

    On CPython the first failure is raised.
    """
    passed = failed = 0
    for name, function, arguments, keywords in calls:
        try:
            function(*arguments, **keywords)
            passed += 1
        except Exception as error:
            failed += 1
            print("FAILED", name)
            if hasattr(sys, "print_exception"):
                sys.print_exception(error)
            else:
                raise
    print("%d passed, %d failed" % (passed, failed))
    sys.exit(1 if failed else 0)
