"""BibTeX: complete, well formed, and keyed by the names that configurations use."""

import re

import pytest

from relief_ray.citations import ENTRIES, cite
from relief_ray.errors import UserError

METHODS = {
    *("fedavg", "fedprox", "fedel", "fedicu", "darkdistill", "harmony"),
    *("pilot", "fedsa_lora", "helora", "fedlease", "relief"),
}


def braces_balance(text):
    depth = 0
    for sign in re.findall(r"[{}]", text):
        depth += 1 if sign == "{" else -1
        assert depth >= 0
    return depth == 0


def test_every_method_data_set_and_tool_has_an_entry():
    assert ENTRIES.keys() >= METHODS | {"pamap2", "mhealth", "dsa", "moment", "lora", "ray", "mlflow", "pytorch"}


@pytest.mark.parametrize("key", sorted(ENTRIES))
def test_entry_is_well_formed(key):
    text = ENTRIES[key].bibtex()
    assert re.match(r"@(inproceedings|article|misc)\{[a-z0-9]+,\n", text)
    assert braces_balance(text)
    for field in ("author", "title", "year"):
        assert len(re.findall(rf"^  {field} = \{{.+\}},?$", text, flags=re.M)) == 1
    assert text.isascii()
    assert "\\\\" not in text


def test_labels_are_unique():
    labels = [entry.label for entry in ENTRIES.values()]
    assert len(labels) == len(set(labels))


def test_entry_by_hand():
    assert cite(["pamap2"]) == (
        "@inproceedings{reiss2012pamap2,\n"
        "  author = {Reiss, Attila and Stricker, Didier},\n"
        "  title = {{Introducing a New Benchmarked Dataset for Activity Monitoring}},\n"
        "  booktitle = {International Symposium on Wearable Computers (ISWC)},\n"
        "  pages = {108--109},\n"
        "  year = {2012}\n"
        "}"
    )


def test_cite_keeps_the_order_and_drops_repeats():
    labels = re.findall(r"@\w+\{(\w+),", cite(["relief", "FedAvg", "FedSA-LoRA", "fedavg"]))
    assert labels == ["wu2026relief", "mcmahan2017fedavg", "guo2025fedsalora"]


def test_excerpts_cite_their_source():
    assert cite(["dsa_mini"]) == cite(["dsa"])
    assert cite(["dsa"]).count("@article") == 2
    assert cite(["mhealth_partial"]) == cite(["mhealth"])


def test_unknown_key_is_refused_with_the_choice():
    with pytest.raises(UserError, match=r"'fedavgm'.*fedavg"):
        cite(["fedavg", "fedavgm"])


def test_nothing_asked_nothing_cited():
    assert cite([]) == ""
