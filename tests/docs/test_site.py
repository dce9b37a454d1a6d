"""The site is built, without a warning, and its links lead to pages it has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import ROOT

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_the_site_has_the_documents_outside_its_folder_and_their_plots(site):
    page = (site / "explanation" / "measured" / "index.html").read_text()
    (plot,) = re.findall(r'src="([^"]*results/batch\.svg)"', page)
    assert (site / "explanation" / "measured" / plot).is_file()
    other = (site / "how-to/move-from-the-jvm-connector/index.html").read_text()
    assert 'href="../../project/benchmarks/RESULTS/#cold-start"' in other
    assert (site / "project" / "benchmarks" / "RESULTS" / "index.html").is_file()


def test_a_link_to_code_is_its_name_as_the_site_has_no_code(site):
    page = (site / "how-to" / "deploy-on-a-cluster" / "index.html").read_text()
    assert "<code>tests/integration/spark/test_connect.py</code>" in page


def test_the_reference_has_the_public_names_and_their_docstrings(site):
    page = (site / "reference" / "kafka" / "index.html").read_text()
    assert all(f'id="headrace.kafka.{name}"' in page for name in ("KafkaSource", "KafkaSink", "Latest"))
    assert "read_committed" in page
