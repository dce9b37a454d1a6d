"""The rack does what the tests of clusters take from it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.clusters.rack import wrong_clock
from tests.helpers.python_path import python_path
from tests.helpers.waiting import eventually

SERVE = "import http.server; http.server.HTTPServer(('', 80), http.server.BaseHTTPRequestHandler).serve_forever()"
TAKE = """
import socket
with socket.create_server(("", 80)) as server:
    while True:
        with server.accept()[0] as connection:
            while connection.recv(1 << 16):
                pass
            connection.sendall(b"taken")
"""
SEND = """
import socket, sys
with socket.create_connection((sys.argv[1], 80)) as connection:
    connection.sendall(bytes(1 << 19))
    connection.shutdown(socket.SHUT_WR)
    assert connection.recv(5) == b"taken"
"""
ASK = "import socket, sys; socket.create_connection((sys.argv[1], 80), 2)"


def answers(one, other):
    return (
        subprocess.run(one.command(sys.executable, "-c", ASK, other.address), capture_output=True, check=False).returncode == 0
    )


def test_what_is_cut_is_lost_between_two_hosts_alone_until_it_is_mended(rack):
    one, two, server = (rack.host(name) for name in ("cut", "two", "server"))
    server.start("server", sys.executable, "-c", SERVE)
    eventually(lambda: answers(one, server))
    rack.cut(one, server)
    assert not answers(one, server)
    assert answers(two, server)
    rack.repair(one, server)
    assert answers(one, server)


def test_a_slow_link_is_slow_and_loses_packets_until_it_is_mended(rack):
    host, sink = rack.host("slow"), rack.host("sink")
    sink.start("sink", sys.executable, "-c", TAKE)
    eventually(lambda: answers(host, sink))
    rack.slow_down(host)
    started_at = time.monotonic()
    subprocess.run(host.command(sys.executable, "-c", SEND, sink.address), check=True)
    assert time.monotonic() - started_at > 2
    assert rack.lost_packets(host) > 0
    rack.speed_up(host)
    assert rack.lost_packets(host) == 0


def test_a_clock_is_wrong_for_its_programs_alone_and_pauses_are_as_long_as_ever(rack):
    ask = "import threading, time; threading.Event().wait(0.1); time.sleep(0.1); print(time.time(), time.monotonic())"
    for seconds in (-3600, 2400):
        there = subprocess.check_output([sys.executable, "-c", ask], env=os.environ | wrong_clock(rack, seconds), timeout=60)
        now, since_start = map(float, there.split())
        assert now == pytest.approx(time.time() + seconds, abs=60)
        assert since_start == pytest.approx(time.monotonic(), abs=60)


def test_a_host_has_a_name_processes_and_a_tmp_of_its_own_and_loses_all_of_them(rack):
    one, two = rack.host("one"), rack.host("other")
    seen = subprocess.check_output(
        one.command("sh", "-c", "hostname; touch /tmp/mine; setsid sleep 600 >/dev/null & ls /proc | grep -c '^[0-9]'")
    )
    assert seen.split()[0] == b"one"
    assert int(seen.split()[1]) < 10
    assert (one.folder / "mine").exists()
    assert not (two.folder / "mine").exists()
    assert len(one.pids("sleep 600")) == 1
    assert two.pids("sleep 600") == []
    (pid,) = one.pids("sleep 600")
    one.lose()
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_a_killed_test_leaves_no_rack_behind():
    code = (
        "import time; from tests.clusters.rack import rack\n"
        "with rack() as made: print(made.host('one').pid, made.folder, flush=True); time.sleep(600)"
    )
    test = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, env=os.environ | {"PYTHONPATH": python_path()}
    )
    with test.stdout:
        pid, folder = test.stdout.readline().decode().split()
    test.send_signal(signal.SIGKILL)
    test.wait()
    eventually(lambda: not Path(f"/proc/{pid}").exists())
    eventually(lambda: not Path(folder).exists())
