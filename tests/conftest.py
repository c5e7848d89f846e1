import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

pytest_plugins = ["tests.support.running", "tests.support.stores", "tests.support.conversation"]

# A deadline for each example would be a timed assertion: this machine is shared.
settings.register_profile("chatmesh", deadline=None)
settings.load_profile("chatmesh")


@pytest.fixture(autouse=True, scope="session")
def caches_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is cached between starts (int8 weights) stays out of the user's folders."""
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.pop("XDG_CACHE_HOME")
    if before is not None:
        os.environ["XDG_CACHE_HOME"] = before
