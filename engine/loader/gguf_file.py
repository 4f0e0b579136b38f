"""The GGUF container: a memory-mapped file of metadata and tensors, read without trust.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The `gguf` package reads the same, but takes more than a second for
a vocabulary of 49 thousand tokens; this reader takes a twentieth of that, and refuses what does not fit into the file.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from engine.errors import ModelLoadError
from engine.loader.lfs_pointer import refuse_lfs_pointer

MAGIC = b"GGUF"
DEFAULT_ALIGNMENT = 32
MAX_DIMENSIONS = 4


class BlockType(NamedTuple):
    """How one kind of tensor is stored: blocks of `block_size` weights in `block_bytes` bytes."""

    name: str
    block_size: int
    block_bytes: int


# By the number that stands in the file. Types that are not here are refused.
BLOCK_TYPES = {
    0: BlockType("F32", 1, 4),
    1: BlockType("F16", 1, 2),
    2: BlockType("Q4_0", 32, 18),
    3: BlockType("Q4_1", 32, 20),
    6: BlockType("Q5_0", 32, 22),
    7: BlockType("Q5_1", 32, 24),
    8: BlockType("Q8_0", 32, 34),
    10: BlockType("Q2_K", 256, 84),
    11: BlockType("Q3_K", 256, 110),
    12: BlockType("Q4_K", 256, 144),
    13: BlockType("Q5_K", 256, 176),
    14: BlockType("Q6_K", 256, 210),
    20: BlockType("IQ4_NL", 32, 18),
    23: BlockType("IQ4_XS", 256, 136),
    30: BlockType("BF16", 1, 2),
}
_OTHER_TYPES = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S", 22: "IQ2_S",
    24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4",
    40: "NVFP4", 41: "Q1_0",
}  # fmt: skip

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING, _ARRAY = 8, 9
_U32, _U64 = _SCALARS[4], _SCALARS[10]


@dataclass(frozen=True)
class TensorInfo:
    """Where one tensor lies in the file."""

    name: str
    type: BlockType
    shape: tuple[int, ...]  # outermost first, as in PyTorch: [out_features, in_features]; the file has it the other way round
    offset: int  # bytes from the start of the file
    num_bytes: int


class GgufFile:
    """An open GGUF file. Raises ModelLoadError when it is no GGUF, is damaged or cut short, or holds a type that is not supported."""

    path: Path
    metadata: dict[str, Any]  # numbers, booleans, strings, and lists of these
    tensors: dict[str, TensorInfo]
    data_offset: int  # bytes: where the tensors' data begin, the metadata before them
    size: int  # bytes of the whole file

    def __init__(self, path: Path) -> None:
        self.path = path
        refuse_lfs_pointer(path)
        try:
            self.size = path.stat().st_size
            if self.size < 24:
                raise ModelLoadError(f"{path} is no GGUF file: it holds only {self.size} bytes; download it again")
            with path.open("rb") as file:
                # Copy-on-write rather than read-only: PyTorch takes only writable buffers. Nothing is ever written.
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelLoadError(f"cannot read {path}: {error.strerror or error}") from error
        cursor = _Cursor(path, self.data, self.size)
        try:
            num_tensors = self._read_header(cursor)
            self.tensors = self._read_tensor_infos(cursor, num_tensors)
        except (struct.error, ValueError, OverflowError, IndexError) as error:
            raise ModelLoadError(f"{path} is damaged near byte {cursor.position}: {error}; download it again") from error
        self._check_complete()

    def _read_header(self, cursor: _Cursor) -> int:
        """Read up to the end of the metadata; returns the number of tensors."""
        if self.data[:4] != MAGIC:
            raise ModelLoadError(f"{self.path} is no GGUF file: it begins with {self.data[:4]!r} instead of {MAGIC!r}")
        cursor.position = 4
        version = cursor.scalar(_U32)
        if version in (2 << 24, 3 << 24):
            raise ModelLoadError(f"{self.path} is a big-endian GGUF file: convert it to little-endian first")
        if version not in (2, 3):
            raise ModelLoadError(f"{self.path} is a GGUF file of version {version}, but versions 2 and 3 are supported")
        num_tensors, num_values = cursor.scalar(_U64), cursor.scalar(_U64)
        self.metadata = {}
        for _ in range(num_values):
            key = cursor.string()
            self.metadata[key] = cursor.value(cursor.scalar(_U32))
        return int(num_tensors)

    def _read_tensor_infos(self, cursor: _Cursor, num_tensors: int) -> dict[str, TensorInfo]:
        raw: list[tuple[str, tuple[int, ...], int, int]] = []
        for _ in range(num_tensors):
            name = cursor.string()
            num_dimensions = cursor.scalar(_U32)
            if not 1 <= num_dimensions <= MAX_DIMENSIONS:
                raise ValueError(f"tensor {name!r} has {num_dimensions} dimensions")
            shape = tuple(cursor.scalar(_U64) for _ in range(num_dimensions))[::-1]
            raw.append((name, shape, cursor.scalar(_U32), cursor.scalar(_U64)))
        alignment = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"the alignment {alignment!r} is no power of two")
        self.data_offset = -(-cursor.position // alignment) * alignment
        tensors = {}
        for name, shape, type_number, offset in raw:
            if name in tensors:
                raise ValueError(f"tensor {name!r} occurs twice")
            tensors[name] = self._tensor_info(name, shape, type_number, offset)
        return tensors

    def _tensor_info(self, name: str, shape: tuple[int, ...], type_number: int, offset: int) -> TensorInfo:
        block_type = BLOCK_TYPES.get(type_number)
        if block_type is None:
            supported = ", ".join(kind.name for kind in BLOCK_TYPES.values())
            stored = _OTHER_TYPES.get(type_number, f"number {type_number}")
            raise ModelLoadError(f"{self.path}: tensor {name!r} is stored as {stored}, which is not supported; supported are {supported}")
        num_weights = 1
        for dimension in shape:
            num_weights *= dimension
        if num_weights < 1 or shape[-1] % block_type.block_size:
            raise ValueError(f"tensor {name!r} of type {block_type.name} cannot have the shape {list(shape)}")
        num_bytes = num_weights // block_type.block_size * block_type.block_bytes
        return TensorInfo(name, block_type, shape, self.data_offset + offset, num_bytes)

    def _check_complete(self) -> None:
        last = max(self.tensors.values(), key=lambda tensor: tensor.offset + tensor.num_bytes, default=None)
        if last is None:
            raise ModelLoadError(f"{self.path} holds no tensors: it is a vocabulary or metadata only, not a model")
        missing = last.offset + last.num_bytes - self.size
        if missing > 0:
            raise ModelLoadError(
                f"{self.path} is cut short: {missing:,} bytes are missing after its {self.size:,} (tensor {last.name!r} ends there); "
                "download it again"
            )


class _Cursor:
    """Reads the parts of the metadata one after another. Nothing is allocated for a length that the file cannot hold."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self.path = path
        self.data = data
        self.size = size
        self.position = 0

    def scalar(self, kind: struct.Struct) -> Any:
        self._check_room(kind.size)
        (value,) = kind.unpack_from(self.data, self.position)
        self.position += kind.size
        return value

    def string(self) -> str:
        length = self.scalar(_U64)
        self._check_room(length)
        start = self.position
        self.position += length
        return str(self.data[start : self.position], "utf-8", "replace")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"there is no value type {kind}")
        return self.scalar(_SCALARS[kind])

    def _array(self) -> list[Any]:
        kind, count = self.scalar(_U32), self.scalar(_U64)
        if kind == _STRING:
            return self._strings(count)
        if kind not in _SCALARS:
            raise ValueError(f"arrays of value type {kind} are not supported")
        item = _SCALARS[kind]
        self._check_room(count * item.size)
        values = struct.unpack_from(f"<{count}{item.format[-1]}", self.data, self.position)
        self.position += count * item.size
        return list(values)

    def _strings(self, count: int) -> list[str]:
        """The same as `count` calls of `string`, three times as fast: vocabularies have a hundred thousand."""
        self._check_room(8 * count)
        data, position, size = self.data, self.position, self.size
        length_at = _U64.unpack_from
        strings = []
        for _ in range(count):
            (length,) = length_at(data, position)
            start = position + 8
            position = start + length
            if position > size:
                self._check_room(size)
            strings.append(str(data[start:position], "utf-8", "replace"))
        self.position = position
        return strings

    def _check_room(self, num_bytes: int) -> None:
        if num_bytes > self.size - self.position:
            raise ModelLoadError(f"{self.path} is cut short or damaged: its metadata run past its {self.size:,} bytes; download it again")
