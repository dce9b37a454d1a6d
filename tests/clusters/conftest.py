"""One rack with brokers for each module; without root on Linux these tests are skipped. `make test-clusters` runs them."""

import shutil

import pytest

from tests.clusters import rack as racks
from tests.clusters.servers import Brokers

LOGS = ("*.log", "stdout", "stderr")


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/clusters/"):
            item.add_marker(pytest.mark.long)


@pytest.fixture(scope="module")
def rack(request, tmp_path_factory):
    """After a failure the logs of all programs are kept in pytest's folder."""
    if why := racks.why_none():
        pytest.skip(why)
    failed = request.session.testsfailed
    with racks.rack() as made:
        yield made
        if request.session.testsfailed > failed:
            kept = tmp_path_factory.mktemp("rack")
            for path in (path for name in LOGS for path in made.folder.rglob(name) if "kafka" not in path.parts):
                (kept / path.relative_to(made.folder)).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept / path.relative_to(made.folder))


@pytest.fixture(scope="module")
def brokers(rack):
    return Brokers([rack.host(f"broker{number}") for number in range(1, 4)])
