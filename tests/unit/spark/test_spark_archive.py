"""The files of classes that JVMs start from, Spark's and brokers': when they are used, and where none can be made."""

from __future__ import annotations

import os
from pathlib import Path
from threading import Thread

import pytest

pytest.importorskip("pyspark")

from headrace.enumerator.errors import PeerError
from headrace.runners.spark_processes import spark_archive
from headrace.runners.spark_processes.class_archives import ClassArchive, Sample
from headrace.testing.servers.kafka import class_archive as of_brokers
from headrace.testing.servers.kafka.class_archive import archive_options


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(spark_archive.SUBMIT_OPTIONS, raising=False)
    return tmp_path


def options() -> str:
    return os.environ.get(spark_archive.SUBMIT_OPTIONS, "")


def test_without_a_file_nothing_is_changed():
    spark_archive.use_archive()
    assert options() == ""


def test_the_file_is_used_alongside_what_the_user_has_set_and_named_once(monkeypatch):
    spark_archive.archive_of_spark().file.parent.mkdir()
    spark_archive.archive_of_spark().file.touch()
    monkeypatch.setenv(spark_archive.SUBMIT_OPTIONS, "-Dmine=1")
    spark_archive.use_archive()
    spark_archive.use_archive()
    assert options().startswith("-Dmine=1 ")
    assert options().count(f"-XX:SharedArchiveFile={spark_archive.archive_of_spark().file}") == 1


def test_another_java_has_another_file(monkeypatch, tmp_path):
    before = spark_archive.archive_of_spark().file
    java = tmp_path / "java-home" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(java.parents[1]))
    assert spark_archive.archive_of_spark().file != before


def test_a_sample_that_fails_is_shown_and_leaves_nothing(monkeypatch, cache):
    monkeypatch.setattr(spark_archive, "SAMPLE", "headrace.no_such_module")
    with pytest.raises(PeerError, match="no_such_module"):
        spark_archive.archive_of_spark().make()
    assert list((cache / "headrace").iterdir()) == []


def test_two_that_find_none_make_one(monkeypatch):
    made = []
    other = Thread(target=spark_archive.archive_of_spark().at_hand)

    def make(archive: ClassArchive) -> None:
        made.append(1)
        if len(made) == 1:
            other.start()
            other.join(0.2)  # it waits for this one, which is not ready yet
        archive.file.touch()

    monkeypatch.setattr(ClassArchive, "make", make)
    spark_archive.archive_of_spark().file.parent.mkdir()
    spark_archive.archive_of_spark().at_hand()
    other.join(30)
    assert made == [1]


def archive_of(jars: Path) -> ClassArchive:
    return ClassArchive("program-1", jars, lambda made: Sample(["touch", str(made)], os.environ))


def test_jars_that_were_installed_again_have_a_file_of_their_own_and_the_previous_one_is_removed(tmp_path):
    """Java takes only the very jars that a file was made of, by size and time, and starts as slowly as ever without a word."""
    jars, others = tmp_path / "jars", tmp_path / "others"
    for folder in (jars, others):
        folder.mkdir()
        (folder / "a.jar").write_bytes(b"a")
    before, elsewhere = archive_of(jars).at_hand(), archive_of(others).at_hand()
    os.utime(jars / "a.jar", ns=(0, 0))
    after = archive_of(jars).at_hand()
    assert after != before
    assert after.is_file()
    assert not before.exists()
    assert elsewhere.is_file()


class TestBrokers:
    JARS = Path("/jars")

    def test_they_start_from_the_file(self, monkeypatch):
        monkeypatch.setattr(ClassArchive, "make", lambda archive: archive.file.touch())
        sharing, quiet = archive_options(self.JARS, ["-Xmx512m"])
        assert Path(sharing.removeprefix("-XX:SharedArchiveFile=")).is_file()
        assert quiet.startswith("-Xlog:cds")

    @pytest.mark.parametrize("own", ["-XX:SharedArchiveFile=/mine.jsa", "-XX:ArchiveClassesAtExit=/mine.jsa", "-Xshare:off"])
    def test_who_decides_about_archives_is_let_be(self, own):
        assert archive_options(self.JARS, ["-Xmx512m", own]) == ()

    def test_where_none_can_be_made_they_start_as_ever_and_say_why(self, monkeypatch, cache, caplog):
        monkeypatch.setattr(of_brokers, "SAMPLE", "headrace.no_such_module")
        assert archive_options(self.JARS, []) == ()
        assert "no_such_module" in caplog.text
        assert [file.suffix for file in (cache / "headrace").iterdir()] == [".lock"]

    def test_the_sample_starts_a_broker_of_its_own_whatever_the_tests_run_against(self, monkeypatch):
        monkeypatch.setenv("HEADRACE_BOOTSTRAP", "elsewhere:9092")
        assert "HEADRACE_BOOTSTRAP" not in of_brokers._sample(Path("made")).environment
