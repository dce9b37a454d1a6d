"""Which of Flink's subtasks gets an element of a splittable DoFn: so that readers are spread evenly, one for each slot.

Beam's runner keys such a stage by the bytes of the element (`SdfByteBufferKeySelector`), and Flink hashes keys
(`KeyGroupRangeAssignment`). Left to chance, two elements are with one of two subtasks every other time; the other idles.
Where a runner does otherwise, elements are where chance puts them: nothing but the balance depends on this.
"""

from __future__ import annotations

from dataclasses import dataclass

from headrace.enumerator.errors import UsageError

_PAD = b" "  # behind what `coders.ReaderFormat` has written, where it says nothing
_MASK = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Subtasks:
    """How many there are of a stage, and of Flink's key groups: a job's `parallelism` and `max_parallelism`."""

    parallelism: int
    max_parallelism: int

    @classmethod
    def of(cls, parallelism: int, max_parallelism: int) -> Subtasks:
        """Flink's own choice of `max_parallelism` where that is not positive. `parallelism` must be.

        Raises UsageError where there are fewer key groups than subtasks, which Flink refuses, too: some would get no element.
        """
        if max_parallelism <= 0:
            power = 1 << (parallelism + parallelism // 2 - 1).bit_length()
            max_parallelism = min(max(power, 128), 1 << 15)
        if max_parallelism < parallelism:
            raise UsageError(
                f"--max_parallelism={max_parallelism} is less than --parallelism={parallelism}, which Flink refuses"
            )
        return cls(parallelism, max_parallelism)

    def index_of(self, element: bytes) -> int:
        return self.index(len(element), _java_hash(element, 1))

    def index(self, length: int, code: int) -> int:
        """The same by the element's length and its hash in Java."""
        group = _murmur(_java_hash(_varint(length), code)) % self.max_parallelism
        return group * self.parallelism // self.max_parallelism


def placed(element: bytes, subtask: int, subtasks: Subtasks) -> bytes:
    """The element with as much white space behind it that it comes to that subtask: `coders.ReaderFormat` takes no notice."""
    power, own = pow(31, len(element), 1 << 32), _java_hash(element, 0)
    pads, code = 0, 1  # Java hashes from the end: the white space first, then the element, whose part is the same each time
    while subtasks.index(len(element) + pads, (power * code + own) & _MASK) != subtask % subtasks.parallelism:
        pads, code = pads + 1, _java_hash(_PAD, code)
    return element + _PAD * pads


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _java_hash(data: bytes, code: int) -> int:
    """`java.nio.ByteBuffer.hashCode`, continuing from the code of what comes behind; 1 for nothing."""
    for byte in reversed(data):
        code = (31 * code + (byte - 256 if byte > 127 else byte)) & _MASK
    return code


def _murmur(code: int) -> int:
    """`org.apache.flink.util.MathUtils.murmurHash`."""
    code = _rotated(code * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    code = (_rotated(code, 13) * 5 + 0xE6546B64) & _MASK ^ 4
    code = (code ^ code >> 16) * 0x85EBCA6B & _MASK
    code = (code ^ code >> 13) * 0xC2B2AE35 & _MASK
    code ^= code >> 16
    return code if code < 1 << 31 else (1 << 32) - code if code > 1 << 31 else 0


def _rotated(code: int, by: int) -> int:
    return (code << by | code >> (32 - by)) & _MASK
