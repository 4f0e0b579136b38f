"""Tile sizes that were measured, per kernel, device and number of rows: a table in the repository, read once; nothing is tuned at start-up.

`tuning.json` beside this file is written by `python -m loadtest.tune_gpu`. Its keys are kernels, then devices ("sm_90"; "any" serves those
that are not in it), then classes of rows. The class "fixed" is for `deterministic`, where the tile may not depend on the number of rows.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import NamedTuple

import torch

TABLE = Path(__file__).with_name("tuning.json")
CLASSES = ((16, "rows_16"), (64, "rows_64"))  # up to so many rows
LARGEST_CLASS = "rows_many"
FIXED = "fixed"


class Tiles(NamedTuple):
    """One program's share of a product, and how it is compiled."""

    rows: int  # of activations
    columns: int  # output features
    num_warps: int
    num_stages: int  # depth of the pipeline of loads


def row_class(num_rows: int | None) -> str:
    """The class of so many rows; None: of any number."""
    if num_rows is None:
        return FIXED
    return next((name for limit, name in CLASSES if num_rows <= limit), LARGEST_CLASS)


def tiles_for(kernel: str, device: torch.device, num_rows: int | None) -> Tiles:
    """What the table says for `num_rows` rows on this device; None asks for what serves any number of rows."""
    return read_table(TABLE)[kernel, device_key(device), row_class(num_rows)]


@functools.cache
def device_key(device: torch.device) -> str:
    """The row of the table for a device. One that is no GPU is the interpreter's."""
    if device.type != "cuda":
        return "any"
    key = "sm_{}{}".format(*torch.cuda.get_device_capability(device))
    return key if any(device == key for _, device, _ in read_table(TABLE)) else "any"


@functools.cache
def read_table(path: Path) -> dict[tuple[str, str, str], Tiles]:
    """By (kernel, device, class); a device has those of "any" where it has none of its own."""
    entries = json.loads(path.read_text())
    table = {}
    for kernel, devices in entries.items():
        for device, classes in devices.items():
            for name, tiles in {**devices["any"], **classes}.items():
                table[kernel, device, name] = Tiles(*tiles)
    return table


def write_entry(path: Path, kernel: str, device: str, classes: dict[str, Tiles]) -> None:
    """Replace what the table in `path` says of one kernel on one device."""
    entries = json.loads(path.read_text())
    entries.setdefault(kernel, {})[device] = {name: list(tiles) for name, tiles in classes.items()}
    kernels = []
    for name, devices in sorted(entries.items()):
        rows = [
            f'    "{device}": {{\n' + ",\n".join(f'      "{row}": {json.dumps(tiles)}' for row, tiles in sorted(found.items())) + "\n    }"
            for device, found in sorted(devices.items())
        ]
        kernels.append(f'  "{name}": {{\n' + ",\n".join(rows) + "\n  }")
    path.write_text("{\n" + ",\n".join(kernels) + "\n}\n")
