"""The report's files beside each other: evidence.json, .html and .md. Owns their names; each is whole or not there."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from leaseproof.evidence.model import Evidence
from leaseproof.files import write_text
from leaseproof.report.html import render_html
from leaseproof.report.markdown import render_markdown

FORMATS: Final[Mapping[str, Callable[[Evidence], str]]] = {
    "json": lambda evidence: evidence.text,
    "md": render_markdown,
    "html": render_html,
}


def write_reports(evidence: Evidence, folder: Path, name: str = "evidence") -> dict[str, Path]:
    """Write every format, the evidence itself first; format to file. Raises OSError."""
    written = {}
    for kind, render in FORMATS.items():
        path = folder / f"{name}.{kind}"
        write_text(path, render(evidence))
        written[kind] = path
    return written
