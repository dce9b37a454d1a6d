"""A look at something again and again, while something else runs."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def repeated(look: Callable[[], None], every_s: float) -> Iterator[None]:
    """Calls it in a thread, at once and then after each of this many seconds."""
    over = threading.Event()

    def run() -> None:
        look()
        while not over.wait(every_s):
            look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
