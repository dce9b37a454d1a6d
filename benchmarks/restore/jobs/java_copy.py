"""A Java program that copies a topic, until killed: this process becomes it.

python java_copy.py <json>, a Job (systems.py) with "java", "jars" and "classes" (folders), "main", and "interval_ms"
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main(settings: dict[str, Any]) -> None:
    """Does not return."""
    order = ("bootstrap", "source", "target", "name", "state", "parallelism", "interval_ms")
    class_path = f"{settings['classes']}{os.pathsep}{settings['jars']}/*"
    command = [settings["java"], "-Xmx512m", "-cp", class_path, settings["main"], *(str(settings[name]) for name in order)]
    os.execv(settings["java"], command)  # noqa: S606 - ourselves


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
