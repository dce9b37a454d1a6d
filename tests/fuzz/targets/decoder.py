"""The decoder compiled and not. The first byte: what is asked (`OPTIONS`); its highest bit: seal the first batch again."""

from itertools import islice

from tests.fuzz.batches import OPTIONS, mutants, resealed, seeds
from tests.fuzz.target import Target
from tests.helpers.decode_twin import compiled, uncompiled
from tests.helpers.decoding import outcome

_SEALED = 0x80


def _check(data: bytes) -> None:
    options = {name: value for name, value in OPTIONS[data[0] & 7].items() if name not in ("topic", "partition")}
    records = resealed(data[1:]) if data[0] & _SEALED else data[1:]
    found = outcome(compiled, records, **options)
    assert found == outcome(uncompiled, records, **options)
    positions = found[1]
    assert positions == sorted(set(positions)), positions
    assert all(position > options["start"] for position in positions), positions


def _seeds() -> dict[str, bytes]:
    named = {name: bytes([_SEALED | number & 7]) + data for number, (name, data) in enumerate(seeds().items())}
    return named | {f"mutant-{n}": bytes([n & 7]) + each.data for n, each in enumerate(islice(mutants("corpus"), 16))}


TARGET = Target("decoder", _check, _seeds, ("headrace_decode_uncompiled",))
