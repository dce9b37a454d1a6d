"""What a broker's JVM loads at its start, kept in a file that later ones map: they start with half the work."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.enumerator.errors import PeerError
from headrace.runners.spark_processes.class_archives import QUIET, ClassArchive, Sample
from headrace.testing.servers.kafka.jars import KAFKA

SAMPLE = "headrace.testing.servers.kafka.class_sample"
MAKES_ARCHIVE = "-XX:ArchiveClassesAtExit="
_OWN = (MAKES_ARCHIVE, "-XX:SharedArchiveFile", "-Xshare")

logger = logging.getLogger(__name__)


def archive_options(jars: Path, given: Sequence[str]) -> tuple[str, ...]:
    """Options of a JVM that runs Kafka's classes: those that use the file, which is made if there is none, in ten seconds.

    None where `given`, the other options, decide about archives themselves. A file that cannot be made is a warning.
    """
    if any(option.startswith(_OWN) for option in given):
        return ()
    try:
        return (f"-XX:SharedArchiveFile={ClassArchive(KAFKA.folder, jars, _sample).at_hand()}", QUIET)
    except PeerError as error:
        logger.warning("brokers start slower than they could: %s", error)
        return ()


def _sample(made: Path) -> Sample:
    environment = {name: value for name, value in os.environ.items() if name != "HEADRACE_BOOTSTRAP"}
    return Sample([sys.executable, "-m", SAMPLE, str(made)], environment)
