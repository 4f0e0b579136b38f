"""Command-line options that name a program of another environment."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path


def program(name: str) -> str:
    """The path of something that can be run. Raises ArgumentTypeError with what is wrong."""
    found = shutil.which(str(Path(name).expanduser()))
    if found is None:
        raise argparse.ArgumentTypeError(f"there is no program {name}")
    return found
