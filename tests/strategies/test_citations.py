"""BibTeX: complete and well formed, and every method's key has an entry."""

import re

import pytest

from relief_ray.strategies import DESCRIBED
from relief_ray.strategies.citations import cite, read_entries
from relief_ray.support.errors import UserError

ENTRIES = read_entries()
OTHERS = {"reiss2012pamap2", "banos2014mhealth", "altun2010dsa", "barshan2014dsa", "goswami2024moment", "hu2022lora"}
TOOLS = {"moritz2018ray", "zaharia2018mlflow", "paszke2019pytorch"}


def braces_balance(text):
    depth = 0
    for sign in re.findall(r"[{}]", text):
        depth += 1 if sign == "{" else -1
        assert depth >= 0
    return depth == 0


def test_every_method_data_set_and_tool_has_an_entry_and_no_other():
    methods = {preset.config.citation for preset in DESCRIBED.values()} - {None}
    assert len(methods) == 12 and set(ENTRIES) == methods | OTHERS | TOOLS


def test_every_built_in_method_with_a_paper_cites_it():
    uncited = {name for name, preset in DESCRIBED.items() if preset.config.citation is None}
    assert uncited == {name for name, preset in DESCRIBED.items() if preset.kind == "bound"}


@pytest.mark.parametrize("key", sorted(ENTRIES))
def test_entry_is_well_formed(key):
    text = ENTRIES[key]
    assert re.match(rf"@(inproceedings|article|misc)\{{{key},\n", text)
    assert braces_balance(text)
    for field in ("author", "title", "year"):
        assert len(re.findall(rf"^  {field} = \{{.+\}},?$", text, flags=re.M)) == 1
    assert text.isascii()
    assert "\\\\" not in text


def test_entry_by_hand():
    assert cite(["reiss2012pamap2"]) == (
        "@inproceedings{reiss2012pamap2,\n"
        "  author = {Reiss, Attila and Stricker, Didier},\n"
        "  title = {{Introducing a New Benchmarked Dataset for Activity Monitoring}},\n"
        "  booktitle = {International Symposium on Wearable Computers (ISWC)},\n"
        "  pages = {108--109},\n"
        "  year = {2012}\n"
        "}"
    )


def test_cite_keeps_the_order_and_drops_repeats():
    keys = ["wu2026relief", "mcmahan2017fedavg", "guo2025fedsalora", "mcmahan2017fedavg"]
    assert re.findall(r"@\w+\{(\w+),", cite(keys)) == keys[:3]


def test_unknown_key_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"'mcmahan2017fedavgm'.*mcmahan2017fedavg"):
        cite(["mcmahan2017fedavg", "mcmahan2017fedavgm"])


def test_without_methods_nothing_is_cited():
    assert cite([]) == ""
