"""What all tests share."""

import pytest
from hypothesis import settings

from tests.conformance import UnknownRule, check_known, cited_by, load_rules

# No deadline: the machine is shared, and pytest-timeout ends what hangs. A failure prints how to repeat it.
settings.register_profile("ordack", deadline=None, print_blob=True)
settings.load_profile("ordack")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rules = load_rules()
    for item in items:
        try:
            check_known(rules, cited_by(item), item.nodeid)
        except UnknownRule as problem:
            raise pytest.UsageError(str(problem)) from None
