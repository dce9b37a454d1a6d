"""The file of classes that Spark's JVM starts from: when it is used, and what happens where it cannot be made."""

from __future__ import annotations

from threading import Thread

import pytest

pytest.importorskip("pyspark")

from headrace.enumerator.errors import PeerError
from headrace.runners.spark import class_archive
from headrace.runners.spark.class_archive import SUBMIT_OPTIONS, archive_at_hand, archive_file, make_archive, use_archive


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(SUBMIT_OPTIONS, raising=False)
    return tmp_path


def options() -> str:
    return class_archive.os.environ.get(SUBMIT_OPTIONS, "")


def test_without_a_file_nothing_is_changed():
    use_archive()
    assert options() == ""


def test_the_file_is_used_beside_what_the_user_has_set_and_named_once(monkeypatch):
    archive_file().parent.mkdir()
    archive_file().touch()
    monkeypatch.setenv(SUBMIT_OPTIONS, "-Dmine=1")
    use_archive()
    use_archive()
    assert options().startswith("-Dmine=1 ")
    assert options().count(f"-XX:SharedArchiveFile={archive_file()}") == 1


def test_another_java_has_another_file(monkeypatch, tmp_path):
    before = archive_file()
    java = tmp_path / "java-home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    assert archive_file() != before


def test_a_sample_that_fails_is_shown_and_leaves_nothing(monkeypatch, cache):
    monkeypatch.setattr(class_archive, "SAMPLE", "headrace.no_such_module")
    with pytest.raises(PeerError, match="no_such_module"):
        make_archive()
    assert list((cache / "headrace").iterdir()) == []


def test_two_that_find_none_make_one(monkeypatch):
    made = []
    other = Thread(target=archive_at_hand)

    def make() -> None:
        made.append(1)
        if len(made) == 1:
            other.start()
            other.join(0.2)  # it waits for this one, which is not ready yet
        archive_file().touch()

    monkeypatch.setattr(class_archive, "make_archive", make)
    archive_file().parent.mkdir()
    archive_at_hand()
    other.join(30)
    assert made == [1]
