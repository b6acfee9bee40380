"""Reports on disk: whole, or not at all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path


def write_reports(folder: Path, texts: Mapping[str, str]) -> list[Path]:
    """The files that were written; a folder that can't be written to is told, and is no reason to show nothing."""
    written = []
    for name, text in texts.items():
        path = folder / name
        temp = path.with_name(f".{name}.tmp")
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if path.exists() and not path.is_file():  # /dev/stdout: written to, never replaced by a file
                path.write_text(text, encoding="utf-8", errors="replace")
            else:
                temp.write_text(text, encoding="utf-8", errors="replace")
                temp.replace(path)
            written.append(path)
        except OSError as error:
            print(f"{path} was not written: {error.strerror}", file=sys.stderr)
    return written
