"""The evidence as one HTML page: offline, without scripts, every text of the file escaped. From the file alone.

Owns the page; must not judge or read anything but the evidence and its own templates. The content policy allows
the page's own style by its digest, and nothing else.
"""

import base64
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final

from jinja2 import DictLoader, Environment, StrictUndefined, select_autoescape
from markupsafe import Markup

from leaseproof.evidence.model import Evidence
from leaseproof.report import view

_FOLDER: Final = files("leaseproof.report") / "templates"


def render_html(evidence: Evidence) -> str:
    """The whole page."""
    style = (_FOLDER / "report.css").read_text(encoding="utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    page = _templates().get_template("report.html.j2")
    return page.render(view=view.View(evidence), evidence=evidence, style=Markup(style), policy=policy)  # noqa: S704


@cache
def _templates() -> Environment:
    source = (_FOLDER / "report.html.j2").read_text(encoding="utf-8")
    templates = Environment(
        loader=DictLoader({"report.html.j2": source}),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        finalize=_plain,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        label=view.label,
        provisional=view.provisional_of,
        reason=view.short_reason_of,
        evidence=view.evidence_of,
        negative=view.negative_of,
        took=view.took,
        servers=view.servers_of,
        first_sentence=view.first_sentence,
        word=_word,
        seconds=_seconds,
    )
    return templates


def _plain(value: object) -> object:
    """What an expression of the template gives, as it may be shown; the page's own markup stays."""
    return value if isinstance(value, Markup) else view.plain(str(value), keep="\n\t")


def _word(result: str) -> str:
    """A result as the name of a style class; it comes from a fixed list."""
    return result.lower().replace(" ", "-")


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if value < 10 else f"{value:.0f} s"
