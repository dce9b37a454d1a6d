"""What a run reports itself as lines of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["JsonLines"]


class JsonLines:
    """Each status once, as a line on stdout."""

    _last: tuple[object, object] = (None, None)

    def show(self, status: Mapping[str, Any] | None) -> None:
        """What is known now, if anything. Raises OSError where stdout is gone."""
        if status is None or (status["at"], status["phase"]) == self._last:
            return
        self._last = status["at"], status["phase"]
        print(json.dumps(status), flush=True)  # noqa: T201 - the command's output

    def close(self) -> None:
        """Nothing is left to say."""
