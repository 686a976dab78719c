"""What an adapter says of itself is checked before anything is tried."""

import sys
from pathlib import Path

import pytest
import toy

from leaseproof.loading import LONGEST, WrongSystem, load_system


@pytest.mark.parametrize("attribute", ["name", "version"])
@pytest.mark.parametrize("text", ["", " ", "a\x1b[31m", "a\nb", "a\u202eb", "a\u200bb", "x" * (LONGEST + 1)])
def test_a_name_or_version_that_can_not_be_shown_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, attribute: str, text: str
) -> None:
    toy.write_system(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "toy_system", raising=False)
    system = load_system("toy_system:system").system
    monkeypatch.setattr(system, attribute, text)
    with pytest.raises(WrongSystem, match=f"its '{attribute}' must be 1 to {LONGEST} characters") as found:
        load_system("toy_system:system")
    assert "\x1b" not in str(found.value)
