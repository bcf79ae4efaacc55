"""Machine code of kernels for GPUs of compute capability 9.0, read from a CUBIN: how many loads a
thread has under way.

An instruction has 16 bytes. Bits 0-11 are the operation. A load names one of six barriers in bits
110-112, and an instruction does not begin before the barriers in bits 116-121 are free, which is
when what they stand for has arrived. A branch goes on so many times 4 bytes behind it: the lowest 8
bits of this number are bits 16-23, the others begin at bit 34.
"""

import struct
from collections.abc import Iterator

LOAD, BRANCH = 0x981, 0x947
BARRIERS = 6


def kernels(cubin: bytes) -> Iterator[tuple[str, list[int]]]:
    """The kernels of a CUBIN, an ELF file: their names and instructions."""
    (start,) = struct.unpack_from("<Q", cubin, 40)
    count, names = struct.unpack_from("<HH", cubin, 60)
    headers = [struct.unpack_from("<IIQQQQ", cubin, start + 64 * i) for i in range(count)]
    texts = headers[names][4]
    for name_at, _, _, _, at, size in headers:
        name = cubin[texts + name_at :].split(b"\0", 1)[0].decode()
        if name.startswith(".text."):
            parts = range(at, at + size, 16)
            yield name[6:], [int.from_bytes(cubin[i : i + 16], "little") for i in parts]


def bits(code: int, low: int, count: int) -> int:
    return code >> low & (1 << count) - 1


def loops(code: list[int]) -> list[list[int]]:
    """The instructions of each loop that has no other loop inside."""
    found = list[tuple[int, int]]()
    for i, one in enumerate(code):
        if bits(one, 0, 12) == BRANCH:
            distance = bits(one, 34, 48) << 8 | bits(one, 16, 8)
            distance -= bits(one, 81, 1) << 56  # its sign
            if distance < 0:
                found.append((i + 1 + distance // 4, i))
    return [
        code[a : b + 1]
        for a, b in found
        if not any((c, d) != (a, b) and a <= c and d <= b for c, d in found)
    ]


def loads_under_way(loop: list[int]) -> int:
    """The most loads that a thread has begun and not waited for."""
    begun, most = [0] * 8, 0
    for code in loop:
        waits = bits(code, 116, BARRIERS)
        begun = [0 if waits >> i & 1 else n for i, n in enumerate(begun)]
        if bits(code, 0, 12) == LOAD:
            begun[bits(code, 110, 3)] += 1
        most = max(most, sum(begun))
    return most
