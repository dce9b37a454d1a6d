"""The version of the installed package: setup.cfg is its only source."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("headrace")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "unknown"
