"""Writing of files. Owns the way it is done: to a temporary name in the same folder, then renamed."""

import os
import tempfile
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """Put `text` at `path`, whole or not at all. Raises OSError."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
