"""Every rule of datasets is broken on purpose by a loader, and named alone; a sound loader keeps all of them."""

from functools import partial

import pytest

from relief_ray.conformance.datasets import DATA_RULES, check_loader
from relief_ray.data.registry import load_own
from relief_ray.support.errors import UserError
from tests.loaders import ABSENT, BROKEN, SHIFTED, write_lab

pytestmark = pytest.mark.usefixtures("run_cache")


@pytest.fixture
def lab(write, tmp_path, monkeypatch):
    return partial(write_lab, write, tmp_path, monkeypatch)


def judge(path, **values):
    return {v.rule: v for v in check_loader(load_own(path), values)}


def test_a_sound_loader_keeps_all_rules(lab):
    verdicts = judge(lab())
    assert list(verdicts) == list(DATA_RULES)
    assert {v.status for v in verdicts.values()} == {"kept"}, verdicts


def test_every_rule_is_broken_by_one_of_these():
    assert set(BROKEN) == set(DATA_RULES)


@pytest.mark.parametrize("rule", BROKEN)
def test_a_broken_rule_is_named_alone(rule, lab):
    body, message = BROKEN[rule]
    verdicts = judge(lab(body))
    assert list(verdicts) == list(DATA_RULES)
    assert [v.rule for v in verdicts.values() if v.status == "broken"] == [rule], verdicts
    assert message in verdicts[rule].found
    assert all(v.found == f"first mend {rule!r}" for v in verdicts.values() if v.status == "not judged")


@pytest.mark.parametrize(("body", "found"), [ABSENT, *SHIFTED.values()], ids=["absent", *SHIFTED])
def test_labels_that_no_row_has_break_the_rule(body, found, lab):
    verdicts = judge(lab(body))
    assert verdicts["labels"].status == "broken" and found in verdicts["labels"].found
    assert [v.rule for v in verdicts.values() if v.status == "broken"] == ["labels"], verdicts


def test_windows_are_judged_under_the_settings(lab):
    verdicts = judge(lab(), window_s=20.0)
    assert verdicts["windows"].status == "broken" and "windows of 20 s" in verdicts["windows"].found
    with pytest.raises(UserError, match=r"windows of 0\.1 s at 10 Hz hold 1 samples"):
        judge(lab(), window_s=0.1)
