"""The worker pool shared by the trainer's tests."""

from collections.abc import Iterator

import pytest

from tests.trainer.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Four gloo ranks, started when the first test asks."""
    workers = Pool()
    yield workers
    workers.close()
