"""Which Python a session's processes run: what is set and usable is left alone, what is not is replaced."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("pyspark")

import pyspark
from pyspark.sql import SparkSession

from headrace.enumerator.errors import UsageError
from headrace.runners.spark import private, session
from headrace.runners.spark.planning import PARALLELISM_VARIABLE
from headrace.runners.spark.supervision import driver
from headrace.spark import session_builder, warm_session_builder
from headrace.spark.format import headrace_format

WORKERS, DRIVER, GATEWAY = "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT"
SPARK_HOME, LAUNCHER_OPTIONS, SUBMIT_ARGUMENTS = "SPARK_HOME", "SPARK_LAUNCHER_OPTS", "PYSPARK_SUBMIT_ARGS"


@pytest.fixture(autouse=True)
def untouched(monkeypatch):
    """Nothing set, and what the builders set is gone after the test."""
    ours = (PARALLELISM_VARIABLE, session.ZYGOTE_VARIABLE)
    for name in (WORKERS, DRIVER, GATEWAY, SPARK_HOME, LAUNCHER_OPTIONS, SUBMIT_ARGUMENTS, *ours):
        monkeypatch.setenv(name, "to be rolled back")
        monkeypatch.delenv(name)


@pytest.fixture
def program(tmp_path):
    """Programs with these shell scripts."""

    def make(name: str, script: str) -> str:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    return make


@pytest.fixture
def other_python(program):
    """A Python at another path, with headrace."""
    return program("python3.other", f'exec {sys.executable} "$@"')


@pytest.fixture
def bare_python(program):
    """A Python without headrace."""
    return program("python3.bare", f'exec {sys.executable} -I -S "$@"')


@pytest.fixture
def notebook(program):
    """What a notebook's PYSPARK_DRIVER_PYTHON names: it can import headrace, and is not a Python."""
    return program("ipython", f'shift; echo "$1" > "$0.py"; exec {sys.executable} "$0.py"')


def python() -> tuple[str | None, str | None]:
    """(of the workers, of the driver's processes)."""
    return os.environ.get(WORKERS), os.environ.get(DRIVER)


def test_where_nothing_is_set_it_is_this_python():
    session_builder()
    assert python() == (sys.executable, None)


def test_what_is_set_and_has_headrace_is_left_alone(monkeypatch, other_python):
    monkeypatch.setenv(WORKERS, other_python)
    session_builder()
    assert python() == (other_python, None)


def test_a_deployment_with_archives_keeps_the_python_of_its_executors_and_that_of_its_driver(monkeypatch, caplog):
    """Regression: the driver's became that of the executors, which is not there; as in Spark's guide to Python packages."""
    monkeypatch.setenv(WORKERS, "./environment/bin/python")
    monkeypatch.setenv(DRIVER, "python")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    session_builder()
    assert python() == ("./environment/bin/python", "python")
    assert "make one path valid on both sides" in caplog.text  # Spark plans and reads a Python data source with one


def test_the_python_of_executors_alone_is_not_used_on_the_driver(monkeypatch):
    monkeypatch.setenv(WORKERS, "./environment/bin/python")
    session_builder()
    assert python() == ("./environment/bin/python", sys.executable)


def test_a_notebooks_driver_gets_this_python(monkeypatch, notebook, other_python):
    monkeypatch.setenv(WORKERS, other_python)
    monkeypatch.setenv(DRIVER, notebook)
    session_builder()
    assert python() == (other_python, sys.executable)


def test_a_python_without_headrace_is_not_used_on_the_driver(monkeypatch, bare_python):
    monkeypatch.setenv(DRIVER, bare_python)
    session_builder()
    assert python() == (sys.executable, sys.executable)


class TestUnderSparkSubmit:
    """The JVM runs already: what it would start is what its environment says."""

    def test_a_jvm_that_finds_headrace_is_left_to_find_it(self, monkeypatch, other_python):
        monkeypatch.setenv(GATEWAY, "1")
        monkeypatch.setenv(WORKERS, other_python)
        assert not session_builder()._registers

    def test_with_one_that_does_not_the_data_source_is_registered(self, monkeypatch, bare_python):
        monkeypatch.setenv(GATEWAY, "1")
        monkeypatch.setenv(DRIVER, bare_python)
        assert session_builder()._registers

    def test_the_first_python_of_the_path_is_what_the_jvm_starts_if_reported_nothing(self, monkeypatch, bare_python, tmp_path):
        shutil.copy(bare_python, tmp_path / "python3")
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        monkeypatch.setenv(GATEWAY, "1")
        assert session_builder()._registers

    def test_a_warm_session_is_one_as_ever(self, monkeypatch, other_python, caplog):
        monkeypatch.setenv(GATEWAY, "1")
        monkeypatch.setenv(WORKERS, other_python)
        warm_session_builder()
        assert python() == (other_python, None)
        assert "starts as ever" in caplog.text


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    """A cache of the test's own, and no process."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(session, "_start_zygote", lambda *_: None)
    session._warm_python.cache_clear()
    yield tmp_path / "cache" / "headrace"
    session._warm_python.cache_clear()


class TestForking:
    """Of Spark's Python processes, without being asked for."""

    @pytest.mark.parametrize("master", ["local", "local[2]", "local[*]"])
    def test_is_done_where_all_is_on_this_machine(self, cache, sparks, master):
        session_builder().master(master).getOrCreate()
        (launcher,) = cache.iterdir()
        assert sparks.started == [(str(launcher), None)]
        assert python() == (sys.executable, None)

    def test_is_done_without_a_master_as_sparks_own_default_is_local(self, cache, sparks):
        session_builder().getOrCreate()
        (launcher,) = cache.iterdir()
        assert sparks.started == [(str(launcher), None)]

    @pytest.mark.parametrize("master", ["yarn", "spark://host:7077", "local-cluster[2,1,1024]"])
    def test_is_not_where_it_is_not_or_may_not_be(self, cache, sparks, master):
        session_builder().master(master).getOrCreate()
        assert sparks.started == [(sys.executable, None)]
        assert not cache.exists()

    @pytest.mark.parametrize(
        ("variable", "value"),
        [
            (SUBMIT_ARGUMENTS, "--master yarn pyspark-shell"),
            (SUBMIT_ARGUMENTS, "--conf spark.master=yarn pyspark-shell"),
            (SUBMIT_ARGUMENTS, "--properties-file mine.conf pyspark-shell"),
            ("SPARK_REMOTE", "sc://host"),
            ("MASTER", "yarn"),
        ],
    )
    def test_is_not_where_the_environment_may_name_another_master(self, cache, sparks, monkeypatch, variable, value):
        monkeypatch.setenv(variable, value)
        session_builder().getOrCreate()
        assert sparks.started == [(sys.executable, None)]

    @pytest.mark.parametrize("name", ["spark-defaults.conf", "spark-env.sh"])
    def test_is_not_where_sparks_configuration_may_name_another_master(self, cache, sparks, monkeypatch, tmp_path, name):
        (tmp_path / name).touch()
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        session_builder().getOrCreate()
        assert sparks.started == [(sys.executable, None)]

    def test_for_a_master_that_turns_out_to_be_another_one_is_refused(self, sparks):
        sparks.default_master = "spark://host:7077"
        with pytest.raises(UsageError, match=r"spark://host:7077, by other means.*name it there"):
            session_builder().getOrCreate()

    def test_is_not_where_another_master_is_submitted(self, sparks, monkeypatch):
        monkeypatch.setenv(SUBMIT_ARGUMENTS, "--master yarn pyspark-shell")
        session_builder().master("local[2]").getOrCreate()
        assert sparks.started == [(sys.executable, None)]

    def test_is_not_where_driver_and_workers_have_two_pythons(self, sparks, monkeypatch, other_python):
        monkeypatch.setenv(WORKERS, sys.executable)
        monkeypatch.setenv(DRIVER, other_python)
        session_builder().master("local[2]").getOrCreate()
        assert sparks.started == [(sys.executable, other_python)]

    def test_is_done_in_a_notebook(self, cache, sparks, monkeypatch, notebook):
        monkeypatch.setenv(DRIVER, notebook)
        session_builder().master("local[2]").getOrCreate()
        (launcher,) = cache.iterdir()
        assert sparks.started == [(str(launcher), None)]

    def test_is_not_where_it_is_not_wanted(self, sparks):
        session_builder().master("local[2]").config("spark.headrace.python.fork", "false").getOrCreate()
        assert sparks.started == [(sys.executable, None)]


class TestLaunch:
    """Of Spark's JVM, by its scripts."""

    def test_is_reported_where_pyspark_is_and_how_to_start(self, sparks):
        session_builder().getOrCreate()
        home = Path(pyspark.__file__).parent
        assert sparks.jvms_environment[SPARK_HOME] == str(home)
        (jar,) = (home / "jars").glob("spark-launcher_*.jar")
        assert f"-Xbootclasspath/a:{jar}" in sparks.jvms_environment[LAUNCHER_OPTIONS]
        assert {SPARK_HOME, LAUNCHER_OPTIONS}.isdisjoint(os.environ)

    def test_of_another_spark_is_left_alone(self, sparks, monkeypatch):
        monkeypatch.setenv(SPARK_HOME, "/opt/spark")
        session_builder().getOrCreate()
        assert sparks.jvms_environment[SPARK_HOME] == "/opt/spark"
        assert LAUNCHER_OPTIONS not in sparks.jvms_environment

    def test_takes_what_the_user_has_set(self, sparks, monkeypatch):
        monkeypatch.setenv(LAUNCHER_OPTIONS, "-Xint")
        session_builder().getOrCreate()
        assert sparks.jvms_environment[LAUNCHER_OPTIONS] == os.environ[LAUNCHER_OPTIONS] == "-Xint"


class TestWarm:
    @pytest.mark.parametrize("master", ["yarn", "spark://host:7077", "k8s://https://host", "local-cluster[2,1,1024]"])
    def test_a_master_that_is_not_local_is_refused_and_leaves_nothing_behind(self, master, sparks):
        """The launcher stayed Spark's Python, and a cluster's executors were instructed to run it."""
        before = dict(os.environ)
        with pytest.raises(UsageError, match=r"one machine.*session_builder\(\)"):
            warm_session_builder().master(master).getOrCreate()
        assert sparks.started == []
        assert {**before, WORKERS: sys.executable} == dict(os.environ)

    @pytest.mark.parametrize(
        ("conf", "cold"),
        [
            ({}, None),
            ({"spark.master": "local[2]"}, None),
            ({"spark.master": "local-cluster[2,1,1024]"}, "its master is local-cluster[2,1,1024]"),
            ({"spark.master": "spark://host:7077"}, "its master is spark://host:7077"),
        ],
    )
    def test_a_supervised_drivers_session_is_a_warm_one_where_it_may_be(self, conf, cold, sparks, monkeypatch):
        """That of a `local-cluster` was refused, and without a master it was not a warm one."""
        made = driver._session(headrace_format(), conf)
        monkeypatch.setattr(session, "SparkSession", type(made))
        assert session.why_cold(made) == cold
        ((python, _),) = sparks.started
        assert (python != sys.executable) == (cold is None)

    def test_a_session_of_connect_is_not_a_warm_one(self, sparks):
        assert session.why_cold(object()) == "it is a session of Spark Connect"

    def test_a_session_whose_fork_is_turned_off_is_not_a_warm_one(self, sparks, monkeypatch):
        made = session_builder().config("spark.headrace.python.fork", "false").getOrCreate()
        monkeypatch.setattr(session, "SparkSession", type(made))
        assert session.why_cold(made) == "Spark starts its Python processes in its own way"

    def test_sparks_python_is_a_launcher_that_nothing_takes_away(self, cache, sparks):
        warm_session_builder().master("local[2]").getOrCreate()
        (launcher,) = cache.iterdir()
        assert sparks.started == [(str(launcher), None)]
        assert os.access(launcher, os.X_OK)

    @pytest.mark.parametrize("fails", [False, True])
    def test_a_session_that_comes_after_a_warm_one_starts_as_it_is_instructed(self, sparks, monkeypatch, other_python, fails):
        monkeypatch.setenv(WORKERS, other_python)
        monkeypatch.setenv(DRIVER, other_python)
        sparks.fails = fails
        with pytest.raises(RuntimeError) if fails else nullcontext():
            warm_session_builder().master("local[2]").getOrCreate()
        assert sparks.started != [(other_python, other_python)]
        assert python() == (other_python, other_python)

    def test_another_session_of_the_same_python_uses_the_same_launcher(self, cache, sparks):
        for _ in range(2):
            session._warm_python.cache_clear()
            warm_session_builder().master("local[2]").getOrCreate()
        first, second = sparks.started
        assert first == second
        assert len(list(cache.iterdir())) == 1

    def test_where_no_launcher_can_be_made_the_session_starts_as_ever(self, monkeypatch, tmp_path, caplog, sparks):
        (tmp_path / "file").write_text("no folder")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        warm_session_builder().master("local[2]").getOrCreate()
        assert sparks.started == [(sys.executable, None)]
        assert "start as ever" in caplog.text


class FakeSparks:
    """Spark, as far as the builders see it: one JVM for a process, with the environment of its start."""

    def __init__(self):
        self.started, self.registered = [], []
        self.fails = False
        self.default_master = "local[*]"
        self.conf = {"spark.sql.redaction.options.regex": "(?i)url"}
        self.jvms_environment = None
        self.context = self._active_spark_context = None

    def get_or_create(self, builder):
        self.started.append(python())
        if self.fails:
            raise RuntimeError("no session")
        if self.jvms_environment is None:
            self.jvms_environment = dict(os.environ)
        self.context = self._active_spark_context = SimpleNamespace(
            master=builder._options.get("spark.master", self.default_master),
            environment={},
            defaultParallelism=3,
            pythonExec=python()[0],
            _jvm=SimpleNamespace(
                java=SimpleNamespace(lang=SimpleNamespace(System=SimpleNamespace(getenv=self.jvms_environment.get)))
            ),
        )
        conf = SimpleNamespace(get=self.conf.get, set=self.conf.__setitem__)
        return SimpleNamespace(dataSource=SimpleNamespace(register=self.registered.append), stop=lambda: None, conf=conf)

    @property
    def settings(self):
        """What a Python process of the session finds in its environment."""
        return {**self.jvms_environment, **(self.context.environment if self.registered else {})}.get(PARALLELISM_VARIABLE)


@pytest.fixture
def sparks(monkeypatch):
    found = FakeSparks()
    monkeypatch.setattr(SparkSession.Builder, "getOrCreate", lambda builder: found.get_or_create(builder))  # noqa: PLW0108 - bound
    monkeypatch.setattr(private, "SparkContext", found)
    return found


SHOWN = ["kafka.ssl.keystore.location", "kafka.ssl.keystore.type", "subscribe", "valueFormat", "cataloged"]
HIDDEN = ["schemaRegistryUrl", "kafka.sasl.jaas.config", "kafka.ssl.keystore.key", "schema.registry.basic.auth.user.info"]
HIDDEN += ["storageOptions", "STORAGEOPTIONS", "catalog"]


class TestPlans:
    def test_hide_the_options_that_may_hold_a_secret(self, sparks):
        session_builder().master("local[2]").getOrCreate()
        pattern = sparks.conf["spark.sql.redaction.options.regex"]
        assert [name for name in SHOWN + HIDDEN if re.search(pattern, name)] == HIDDEN

    def test_hide_what_the_user_says_where_the_user_says_it(self, sparks):
        sparks.conf["spark.sql.redaction.options.regex"] = "(?i).*"
        session_builder().master("local[2]").getOrCreate()
        assert sparks.conf == {"spark.sql.redaction.options.regex": "(?i).*"}


class TestParallelism:
    def test_is_instructed_to_the_jvm_before_it_starts(self, sparks):
        session_builder().master("local[2]").getOrCreate()
        assert (sparks.settings, sparks.registered) == ("2", [])

    def test_a_second_session_in_the_same_jvm_is_reported_its_own(self, sparks):
        session_builder().master("local[2]").getOrCreate()
        session_builder().master("local[8]").getOrCreate()
        assert (sparks.settings, len(sparks.registered)) == ("8", 1)

    def test_of_sparks_default_master_is_reported_as_well(self, sparks):
        session_builder().getOrCreate()
        assert (sparks.settings, sparks.registered) == (str(os.cpu_count()), [])

    def test_of_a_master_that_is_known_only_afterwards_is_reported_too(self, sparks, monkeypatch, tmp_path):
        (tmp_path / "spark-defaults.conf").touch()
        monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
        session_builder().getOrCreate()
        assert (sparks.settings, len(sparks.registered)) == (str(os.cpu_count()), 1)


@pytest.mark.parametrize(
    ("master", "cores"),
    [
        *[("local", 1), ("local[3]", 3), ("local[3, 4]", 3), ("local[*]", os.cpu_count())],
        *[(other, None) for other in ("yarn", "spark://local[3]", "local-cluster[2,1,1024]")],
    ],
)
def test_how_many_tasks_a_local_master_runs_at_once(master, cores):
    assert session._local_cores(master) == cores


def test_what_was_started_for_sessions_is_ended_and_waited_for_with_timeout(monkeypatch):
    ends, stays = (subprocess.Popen(command, stdin=subprocess.PIPE) for command in (["cat"], ["sleep", "600"]))
    monkeypatch.setattr(private.SparkContext, "_gateway", None)  # of other tests
    monkeypatch.setattr(session, "_alive", [stays, ends])
    try:
        session.end_processes(0.0)
        assert stays.poll() is None
        monkeypatch.setattr(session, "_alive", [ends])
        session.end_processes(60.0)
        assert ends.returncode == 0
    finally:
        stays.kill()
        stays.wait()
