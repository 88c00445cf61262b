"""`data describe --html`: one page with warnings, tables and pictures of a dataset."""

import re
from functools import partial
from pathlib import Path

import pytest

from actors.commands.data import look
from relief_ray.studies.describe import data_description
from relief_ray.support.errors import Setting, UserError
from tests.loaders import ODD, ODDITIES, write_lab


@pytest.fixture
def lab(write, tmp_path, monkeypatch, run_cache):
    return partial(write_lab, write, tmp_path, monkeypatch)


def test_the_page_has_warnings_tables_and_pictures(lab, tmp_path: Path) -> None:
    page = tmp_path / "deep" / "data.html"
    said = look(lab(ODD), 5.0, [], page)
    text = page.read_text()
    for oddity in ODDITIES:
        assert oddity.split(",")[0].replace("'", "&#x27;") in text and oddity[:20] in str(said)
    assert re.findall(r"<h2>(.*?) <a", text) == ["Warnings", "People", "Sensors"]
    assert text.count("<svg") == 2 and "<figcaption>" in text and ".csv" not in text
    assert not re.search(r"(src|href)=['\"](?!#)", text), "it needs nothing else"


def test_people_and_sensors_are_rows(lab) -> None:
    """Three bouts of 40 s; the third person has another unit, and lacks the ankle's sensor."""
    body = """
def mine(spec, members, path, subject):
    made = parse(spec, members, path, subject)
    made.signal[:, 2] *= 50 if subject == 3 else 1
    return made
MINE = replace(GOOD, parse=mine, spec=replace(SPEC, lacks={3: ("ankle",)}, max_abs=(9.0, 9.0, 9.0)))
"""
    facts = data_description(lab(body), [Setting("data.stride_s", 5.0)]).facts
    third = facts["people"][2]
    assert {key: third[key] for key in ("subject", "rows", "bouts", "shortest_s", "longest_s", "classes")} == {
        "subject": 3,
        "rows": 1200,
        "bouts": 3,
        "shortest_s": 40.0,
        "longest_s": 40.0,
        "classes": 3,
    }
    assert third["windows"] == facts["people"][0]["windows"] > third["tested"] == 3 and third["mixed"] == 0.0
    sensors = {(row["subject"], row["sensor"]): row for row in facts["quality"]}
    assert (3, "ankle") not in sensors and len(sensors) == 11
    assert sensors[3, "hip"]["outside"] > 0.5 and sensors[3, "hip"]["level"] > 40 * sensors[1, "hip"]["level"]
    assert sensors[3, "wrist"]["outside"] == 0.0


def test_a_page_that_cannot_be_written_is_refused(lab, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"data\.html: cannot write"):
        look(lab(), 5.0, [], tmp_path / "file" / "data.html")
