"""What all tests share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.conformance import UnknownRule, check_known, cited_by, load_rules
from tests.host_world import Host

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


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A queue manager with the queues line1, transactional, and plain."""
    made = Host(tmp_path)
    yield made
    made.store.close()
