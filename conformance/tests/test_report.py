"""Reports come from the evidence file alone, work offline, and nothing in the file becomes markup."""

import base64
import hashlib
import html
import re
from collections.abc import Callable
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console
from samples import CHECKS, DIRTY, KIT, control_of, good_facts, row, sample

from leaseproof.cli.table import show
from leaseproof.evidence.merge import merge
from leaseproof.evidence.model import Evidence
from leaseproof.report.files import write_reports
from leaseproof.report.html import render_html
from leaseproof.report.markdown import escape, render_markdown
from leaseproof.report.view import View, evidence_of, first_sentence, label, negative_of, plain

GOOD = sample()
UNSEEN = "\x1b\r\x07\x9b\u202e\u2066\u200b\u2800\u3164\ufe0f\U000e0041"
HOSTILE = "</pre><script>alert(1)</script><img src=x onerror=alert(1)>\" ' | `x` [a](http://b) @someone \x1b[31m"
HOSTILE += f" :white_check_mark: $x$ {UNSEEN}"


class Page(HTMLParser):
    """What a browser would see: elements, attributes, text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def attributes(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def hostile() -> Evidence:
    """Every text that comes from outside of the kit is hostile."""
    facts = good_facts()
    facts[0] |= {"outcome": "refuted", "because": HOSTILE, "detail": HOSTILE, "notes": {HOSTILE[:60]: HOSTILE}}
    facts.append({"kind": "trouble", "what": HOSTILE})
    subject = DIRTY.model_copy(update={"name": HOSTILE, "version": HOSTILE, "changes": (HOSTILE,)})
    return sample(
        facts,
        before=subject,
        after=subject,
        environment=HOSTILE,
        tiers={"kind": HOSTILE},
        footnotes=[HOSTILE],
        controls=[control_of(claim, says=HOSTILE) for claim in CHECKS],
    )


def test_the_page_opens_with_the_verdict_and_the_records() -> None:
    page = Page(render_html(GOOD))
    text = " ".join(" ".join(page.texts).split())
    places = [text.index(one) for one in ("4 of 65 claims passed", "T1 Cancel order", "The matrix", "Claim by claim")]
    assert places == sorted(places)
    for record in GOOD.records:
        assert f"{record.id} {record.title}" in text


def test_the_page_says_all_of_each_claim() -> None:
    page = render_html(GOOD)
    for one in GOOD.claims:
        part = page[page.index(f'<article class="claim" id="{one.id}"') :].partition("</article>")[0]
        for told in (one.must, one.failure_surface, one.negative_case, one.owner, one.command, one.reason):
            assert html.escape(told, quote=False).replace("'", "&#39;").replace('"', "&#34;") in part
    part = page[page.index('<article class="claim" id="LOCK-1"') :].partition("</article>")[0]
    for told in ("LOCK-1 test_root_before_descendants", "breaks_lock_1", "55P03", "sample/repository.py:7", "pg18"):
        assert told in part


def test_the_page_needs_nothing_and_allows_nothing() -> None:
    text = render_html(GOOD)
    page = Page(text)
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)
    assert style is not None
    digest = base64.b64encode(hashlib.sha256(style.group(1).encode()).digest()).decode()
    policy = next(one["content"] for one in page.attributes("meta") if "http-equiv" in one)
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert not {"script", "link", "img", "iframe", "object", "form"} & {tag for tag, _ in page.elements}
    for _, attributes in page.elements:
        assert not any(name.startswith("on") or name in {"style", "src"} for name in attributes)
        assert (attributes.get("href") or "#").startswith("#")
    assert "url(" not in style.group(1)
    assert "@import" not in style.group(1)


def test_links_lead_to_parts_of_the_page() -> None:
    page = Page(render_html(GOOD))
    targets = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    links = {(attributes["href"] or "").removeprefix("#") for attributes in page.attributes("a")}
    assert links == targets == {one.id for one in GOOD.claims}


def test_nothing_of_the_file_becomes_markup_of_the_page() -> None:
    page, plain_page = Page(render_html(hostile())), Page(render_html(GOOD))
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain_page.elements} | {"details", "summary", "pre"}
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "img"})
    assert any("<script>" in text for text in page.texts)


def test_nothing_of_the_file_becomes_markup_of_markdown() -> None:
    text = render_markdown(hostile())
    assert "<script" not in text
    assert "<img" not in text
    assert "](http" not in text
    assert "@someone" not in text
    assert set(re.findall(r"</?[a-z]+", text)) == {
        *("<details", "</details", "<summary", "</summary", "<sub", "</sub"),
    }
    assert ":white_check_mark" not in text
    assert "&#58;&#8203;white_check_mark:" in text
    assert "&#64;&#8203;someone" in text
    assert "$" not in text
    tables = [line for line in text.splitlines() if line.startswith("| ")]
    assert {line.count("|") for line in tables} <= {5, 6}


@pytest.mark.parametrize("character", list("\\`*[]|~<>&@#!"))
def test_special_characters_of_markdown_are_escaped(character: str) -> None:
    assert escape(f"a{character} b") == f"a&#{ord(character)}; b"


def shown(evidence: Evidence) -> str:
    """What `verify` prints."""
    screen = Console(file=StringIO(), width=140, color_system=None)
    show(evidence, screen, Path(HOSTILE))
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


@pytest.mark.parametrize("render", [render_html, render_markdown, shown])
def test_no_character_of_the_file_is_unseen_or_moves_others(render: Callable[[Evidence], str]) -> None:
    text = render(hostile())
    assert [one for one in UNSEEN if one in text] == []
    assert "x1b" in text
    assert "u202e" in text
    assert {one for one in text if not one.isprintable()} <= {"\n"}


def test_markdown_stays_readable() -> None:
    assert escape("test_levels_in_order: did_not_wait") == "test_levels_in_order: did_not_wait"
    assert escape("_a_ http://x www.x") == "&#95;a&#95; http&#58;//x www&#46;x"
    assert escape("a\n  b") == "a b"
    assert escape("x" * 400).endswith("…")


def test_markdown_opens_with_verdict_and_records_and_folds_the_rest() -> None:
    lines = render_markdown(GOOD).splitlines()
    assert lines[0] == "## 4 of 65 claims passed, none failed"
    assert "| T1 | Cancel order | Not run | 3 of 18 |" in lines
    assert "| A2 | Lease behaviour unchanged | Passed | 1 of 1 |" in lines
    assert lines.index("<details><summary>Matrix</summary>") < lines.index(
        "| LOCK-1 | Passed | 2 checks passed; breaks_lock_1 caught (55P03) | 2 checks | breaks_lock_1 caught (55P03) |"
    )


def refuted() -> Evidence:
    first, *rest = good_facts()
    return sample([{**first, "outcome": "refuted", "because": "did_not_wait"}, *rest])


def test_headlines() -> None:
    assert View(GOOD).headline == "4 of 65 claims passed, none failed"
    assert View(refuted()).headline == "1 of 65 claims failed"
    assert View(sample(good_facts()[1:])).headline == "Nothing failed, but 1 claim could not be decided"
    assert View(sample(before=DIRTY, after=DIRTY)).headline == "Not evidence: uncommitted changes"
    assert View(sample([])).headline == "No claim was tried"
    assert View(sample(before=DIRTY, after=DIRTY)).under_headline == (
        "Every claim is Not run. Provisional outcomes: 4 Passed, 61 Not run."
    )
    assert View(GOOD).core == "38 of 38 core claims apply, 4 of 38 core claims Passed"
    assert View(sample(before=DIRTY, after=DIRTY)).core_passed == "4 of 38 core claims Passed (provisional)"


@pytest.mark.parametrize("render", [render_html, render_markdown])
def test_a_report_without_a_complete_record_says_that_none_can_be_decided(render: Callable[[Evidence], str]) -> None:
    said = "No design record is complete, so a decision on a record is not possible yet."
    assert said in render(sample([]))
    assert said not in render(GOOD)
    assert said not in render(refuted())


def test_what_a_check_said_stands_in_the_claims_own_part_alone() -> None:
    first, *rest = good_facts()
    raw = "Answer(value=None, lines=['x'])"
    evidence = sample([{**first, "outcome": "refuted", "because": "wrong", "detail": raw}, *rest])
    page = render_html(evidence)
    above, below = page.split("<h2>Claim by claim</h2>")
    assert "lines=[" not in above
    assert "lines=[" in below
    assert "2 of 18 claims Passed; LOCK-1 Failed (refuted), and 15 more" in above
    assert "lines=" not in render_markdown(evidence).split("<summary>Matrix")[1].split("<summary>Checks")[0]


def test_rows_in_words() -> None:
    lock_1 = row(GOOD, "LOCK-1")
    assert (label(lock_1), evidence_of(lock_1)) == ("Passed", "2 checks")
    assert negative_of(lock_1) == "breaks_lock_1 caught (55P03)"
    assert label(row(GOOD, "LOCK-3")) == "Not run"
    assert label(row(sample(tiers={"pg": "no PostgreSQL"}), "LOCK-1")) == "Inspected · Not run"
    facts = good_facts()
    facts[0]["notes"], facts[1]["notes"] = {"schedules": 14}, {"schedules": 6}
    assert evidence_of(row(sample(facts), "LOCK-1")) == "2 checks, 20 schedules"
    assert first_sentence("One. Two. Three.") == "One."
    assert first_sentence("One.") == "One."
    assert plain("a\x1b[31m\n") == "a\\x1b[31m\\n"


def test_the_page_names_the_kit_of_each_environment() -> None:
    other = KIT.model_copy(update={"version": "0.2.0", "commit": "f" * 40})
    evidence = merge([("a", GOOD), ("b", sample(run="r0000002", environment="pg15"))])
    second = evidence.environments[1].model_copy(update={"kit": other})
    page = render_html(evidence.model_copy(update={"environments": (evidence.environments[0], second)}))
    assert "Kit: leaseproof 0.1.0, commit cccccccccccc (clean)" in page
    assert "Kit: leaseproof 0.2.0, commit ffffffffffff (clean)" in page


def test_long_words_can_break_on_a_small_screen() -> None:
    style = re.search(r"<style>(.*?)</style>", render_html(GOOD), re.DOTALL)
    assert style is not None
    assert "overflow-wrap: anywhere" in style.group(1).partition("body {")[2].partition("}")[0]
    columns = re.findall(r"\.(?:facts|seen li) {[^}]*grid-template-columns: ([^;]+);", style.group(1))
    assert len(columns) == 4
    assert all(one.replace("minmax(0, 1fr)", "").find("fr") == -1 for one in columns), columns


def test_the_files_are_written_whole(tmp_path: Path) -> None:
    written = write_reports(GOOD, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evidence.html", "evidence.json", "evidence.md"]
    assert written["json"].read_text() == GOOD.text
    assert written["html"].read_text() == render_html(GOOD)
