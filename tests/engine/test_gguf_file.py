from __future__ import annotations

import contextlib
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import new_llama, write_gguf

from engine.errors import ModelLoadError
from engine.loader.gguf_file import GgufFile
from engine.loader.gguf_model import GgufSource


def header(version: int = 3, num_tensors: int = 0, num_values: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_values)


def string(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def opened(tmp_path: Path, content: bytes) -> GgufFile:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    return GgufFile(path)


def test_it_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "values.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    values = {
        "a.uint8": (writer.add_uint8, 200),
        "a.int16": (writer.add_int16, -300),
        "a.uint64": (writer.add_uint64, 1 << 40),
        "a.float32": (writer.add_float32, 0.5),
        "a.float64": (writer.add_float64, 0.1),
        "a.bool": (writer.add_bool, True),
        "a.string": (writer.add_string, "größer 👍"),
        "a.strings": (writer.add_array, ["", "zwei", "三"]),
        "a.integers": (writer.add_array, [1, -2, 3]),
        "a.floats": (writer.add_array, [0.25, -8.0]),
    }
    for key, (add, value) in values.items():
        add(key, value)
    matrix = np.arange(12, dtype=np.float32).reshape(3, 4)
    writer.add_tensor("matrix", matrix)
    writer.add_tensor("vector", np.ones(5, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    file = GgufFile(path)
    for key, (_, value) in values.items():
        assert file.metadata[key] == value
    tensor = file.tensors["matrix"]
    assert (tensor.shape, tensor.type.name, tensor.num_bytes) == ((3, 4), "F32", 48)
    assert np.array_equal(np.frombuffer(file.data, np.float32, 12, tensor.offset).reshape(3, 4), matrix)
    assert file.tensors["vector"].shape == (5,)


def test_a_truncated_file_says_how_many_bytes_are_missing(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "whole.gguf", new_llama()).read_bytes()
    last = max(GgufFile(tmp_path / "whole.gguf").tensors.values(), key=lambda tensor: tensor.offset)
    end = last.offset + last.num_bytes
    with pytest.raises(ModelLoadError, match=r"model\.gguf is cut short: 1,000 bytes are missing.*download it again"):
        opened(tmp_path, whole[: end - 1000])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds only 0 bytes"),
        (b"PK\x03\x04" + bytes(100), "is no GGUF file: it begins with"),
        (header(version=1) + bytes(100), "version 1, but versions 2 and 3 are supported"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header(num_values=1 << 60), "cut short or damaged"),
        (header(num_tensors=1 << 60), "cut short or damaged"),
        (header(num_values=1) + struct.pack("<Q", 1 << 62), "cut short or damaged"),
        (header(num_values=1) + string(b"k") + struct.pack("<IIQ", 9, 8, 1 << 60), "cut short or damaged"),
        (header(num_values=1) + string(b"k") + struct.pack("<IIQ", 9, 4, (1 << 64) - 1), "cut short or damaged"),
        (header(num_values=1) + string(b"k") + struct.pack("<IIQ", 9, 9, 1), "arrays of value type 9"),
        (header(num_values=1) + string(b"k") + struct.pack("<I", 77) + bytes(8), "there is no value type 77"),
        (header(), "holds no tensors"),
    ],
)
def test_what_is_no_whole_gguf_is_refused_with_the_reason(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        opened(tmp_path, content)


@pytest.mark.parametrize(
    ("shape", "kind", "message"),
    [
        ((1 << 40, 1 << 40), 0, "cut short"),
        ((0, 4), 0, "cannot have the shape"),
        ((33, 4), 2, "type Q4_0 cannot have the shape"),
        ((32, 4), 21, "stored as IQ3_S, which is not supported; supported are F32"),
        ((32, 4), 999, "stored as number 999"),
        ((1, 1, 1, 1, 1), 0, "has 5 dimensions"),
    ],
)
def test_impossible_tensors_are_refused_by_name(tmp_path: Path, shape: tuple[int, ...], kind: int, message: str) -> None:
    info = string(b"blk.0.x") + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, 0)
    with pytest.raises(ModelLoadError, match=message) as caught:
        opened(tmp_path, header(num_tensors=1) + info + bytes(64))
    assert "blk.0.x" in str(caught.value)


@pytest.fixture(scope="module")
def small_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = new_llama(vocab_size=300, num_hidden_layers=1, hidden_size=32, intermediate_size=32)
    return write_gguf(tmp_path_factory.mktemp("gguf") / "small.gguf", model, gguf.GGMLQuantizationType.Q8_0)


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_no_corruption_raises_anything_but_a_load_error(small_gguf: Path, data: st.DataObject) -> None:
    content = bytearray(small_gguf.read_bytes())
    header_bytes = GgufFile(small_gguf).data_offset
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, header_bytes - 8))
        patch = data.draw(st.binary(min_size=1, max_size=8))
        content[at : at + len(patch)] = patch
    if data.draw(st.booleans()):
        del content[data.draw(st.integers(0, len(content))) :]
    damaged = small_gguf.with_name("damaged.gguf")
    damaged.write_bytes(content)
    with contextlib.suppress(ModelLoadError):
        source = GgufSource("damaged", damaged)
        source.config()
        source.chat_template()
        source.tokenizer().encode("the text")
        for _ in source.weights():
            pass
