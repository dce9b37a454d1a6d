"""Bytes of the protocol and Arrow: record batches decoded and encoded, responses to Fetch. No connection, no thread."""

import sys

NOT_COMPILED = (
    f"headrace's record decoder and encoder are not compiled for Python {sys.version_info[0]}.{sys.version_info[1]} "
    f"(in {__path__[0]}), and without Cython they do not run uncompiled: run `pip install -e .` in the checkout, "
    "which compiles them; or `pip install Cython`, to run them uncompiled, which is slow"
)
"""What is said where a checkout is imported that was never built, or was built with another Python."""
