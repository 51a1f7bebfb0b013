"""The docs can be read: sentences are short. (`make style` checks spelling, test_docs and test_site check links.)"""

from __future__ import annotations

import re
from pathlib import Path
from statistics import mean

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [page for page in sorted((ROOT / "docs").rglob("*.md")) if page.parent.name != "history"]


def sentences(text: str) -> list[str]:
    """The sentences of a page's paragraphs and lists, without code, tables and headings; code is one word."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S)
    text = "\n".join("" if line.lstrip().startswith(("|", "#", "!", ":::")) else line for line in text.splitlines())
    text = re.sub(r"`[^`]*`", "code", re.sub(r"\]\([^)]*\)", "]", text))
    paragraphs = re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text)
    found = [one for part in paragraphs for one in re.split(r"(?<=[.!?:;])\s+", part)]
    return [one for one in found if len(one.split()) > 2]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sentences_are_short(page: Path) -> None:
    lengths = sorted(len(one.split()) for one in sentences(page.read_text()))
    assert lengths and mean(lengths) <= 16 and lengths[int(0.95 * len(lengths))] <= 33, page.name


def test_words_are_counted_as_a_reader_would() -> None:
    page = "# A title, no\n\nOne two three. Four `a b c` five six!\n\n- seven eight nine\n\n| a | table | no |\n"
    assert sentences(page) == ["One two three.", "Four code five six!", "- seven eight nine"]
