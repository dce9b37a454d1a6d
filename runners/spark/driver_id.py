"""How all processes of a query know which driver theirs is: by an option that a supervised driver sets on what it writes.

Spark hands the options to every process that commits or writes, wherever that is, and keeps them nowhere. (An environment would
be that of the JVM: one that runs for several drivers, as Spark Connect's server does, has none of theirs.)
"""

from __future__ import annotations

from collections.abc import Mapping

DRIVER_ID = "headraceDriverId"
"""The option's name; its value is the name of the driver's process tree, which no other driver has."""


def driver_id_of(options: Mapping[str, str]) -> str | None:
    """The driver's driver id; None where no supervised driver has started the query. Spark gives names in lower case."""
    return next((value for name, value in options.items() if name.lower() == DRIVER_ID.lower()), None)
