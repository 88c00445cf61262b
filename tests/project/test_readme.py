"""README.md and CHANGELOG.md stay short: words, lines, length of sentences, and the parts that a newcomer looks for."""

import re

import pytest

from tests.project.tree import ROOT

MAX_WORDS, MAX_LINES, MAX_LINE, MAX_SENTENCE, MEAN_SENTENCE, MAX_CHANGES = 450, 100, 120, 25, 18, 40
README = (ROOT / "README.md").read_text(encoding="utf-8")


def prose(text):
    """A page as it is read: without code blocks, tables, comments and the targets of links."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.M | re.S)
    text = "\n".join(line for line in text.splitlines() if not line.startswith("|"))
    return re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)


def words(text):
    return [word for word in text.split() if re.search(r"\w", word)]


def sentences(text):
    """Sentences, each point of a list as at least one."""
    parts = re.split(r"\n\s*\n|\n- |\n#+ |^#+ ", prose(text))
    return [s for part in parts for s in re.split(r"(?<=[.!?])\*{0,2}\s+", " ".join(part.split()))]


def section(heading, text=README):
    return re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", text, re.M | re.S)[1]


def points(text):
    return len(re.findall(r"^- ", text, re.M))


def test_the_readme_is_short():
    assert len(words(prose(README))) <= MAX_WORDS
    assert len(README.splitlines()) <= MAX_LINES
    assert not [line for line in README.splitlines() if len(line) > MAX_LINE]
    lengths = [len(words(s)) for s in sentences(README)]
    assert max(lengths) <= MAX_SENTENCE and sum(lengths) / len(lengths) <= MEAN_SENTENCE


@pytest.mark.parametrize(("heading", "num_points"), [("Limits", 4), ("Where to go", 5)])
def test_each_part_has_its_number_of_points(heading, num_points):
    assert points(section(heading)) == num_points


def test_data_method_and_model_take_six_lines_each():
    """Besides imports."""
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.M | re.S)
    kinds = ("rr.dataset(", "(rr.FedAvg)", "(rr.PlainBackbone)")
    assert [next(kind for kind in kinds if kind in block) for block in blocks] == list(kinds)
    for block in blocks:
        assert len([line for line in block.splitlines() if line and not line.startswith(("#", "import", "from"))]) <= 6


def test_every_built_in_method_and_baseline_of_the_paper_is_named():
    methods = section("Where to go")
    cards = {path.stem for path in (ROOT / "docs" / "strategies").glob("*.md")}
    assert not [card for card in cards if card.replace("_", "-") not in methods.lower()]


def test_the_changes_of_a_release_fit_a_page():
    release = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").partition("## [0.1.0]")[2]
    lines = [line for line in release.splitlines() if line.strip()]
    assert len(lines) <= MAX_CHANGES and max(map(len, lines)) <= MAX_LINE


def test_long_sentences_are_seen():
    assert max(len(words(s)) for s in sentences("- " + "word " * 26 + "end.\n- short.")) == 27
