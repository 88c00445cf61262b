"""Test what ``run`` does with runs of other code: refused in words, taken as they are, or computed again."""

import importlib
import sys
from pathlib import Path

import pytest

import relief_ray as rr
from relief_ray.records.run_folder import read_run
from tests.own import METHOD
from tests.studies.conftest import SMALL

BEFORE, AFTER = "before[j] + alpha *", "before[j] + 0.5 * alpha *"


@pytest.fixture
def words(write, run_cache, tmp_path, monkeypatch):
    """Arguments of a study of the user's own method, which has one run in its folder."""
    name = write(METHOD)
    monkeypatch.syspath_prepend(str(Path.cwd()))
    words = {"strategies": f"{name}:Mine", "backbone": SMALL, "rounds": 1, "out": tmp_path / "own", "quiet": True}
    rr.run("quick", **words)
    return words


def edit(words: dict[str, object], old: str = BEFORE, new: str = AFTER) -> str:
    """Edit the method's file as a user does; return the module's name."""
    name = str(words["strategies"]).partition(":")[0]
    file = Path(f"{name}.py")
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))
    return name


def start_python_again(name: str) -> None:
    """What a new process does for this module: import it anew."""
    del sys.modules[name]
    importlib.invalidate_caches()


@pytest.mark.ci
def test_a_run_of_an_edited_method_is_refused_with_what_changed_and_the_ways_on(words):
    folder, name = words["out"], edit(words)
    start_python_again(name)
    with pytest.raises(rr.UserError) as refused:
        rr.run("quick", **words)
    message = str(refused.value)
    assert message.startswith(f"{folder / f'{name}.Mine-s0'}: holds a run of other code or weights: {name}.py ")
    assert "rerun_stale=True" in message and "out='DIR'" in message and "other_code=True" in message
    before = rr.run("quick", other_code=True, **words).run(words["strategies"])
    again = rr.run("quick", rerun_stale=True, **words).run(words["strategies"])
    assert again.ledger[-1].model_sha256 != before.ledger[-1].model_sha256, "the new code was computed"
    (aside,) = (folder / "stale").iterdir()
    assert read_run(aside).own_sources != again.record.own_sources
    assert len(rr.run("quick", **words).frame) == 1, "it is today's now"


@pytest.mark.ci
def test_a_file_that_is_edited_under_a_running_python_is_refused_before_its_old_code_runs(words):
    name = edit(words)
    for more in ({}, {"rerun_stale": True}):
        with pytest.raises(rr.UserError, match=rf"{name}\.py was edited after this process had imported it.*restart"):
            rr.run("quick", **words, **more)
    importlib.reload(sys.modules[name])
    rr.run("quick", rerun_stale=True, **words)
    edit(words, AFTER, BEFORE)
    with pytest.raises(rr.UserError, match="was edited after"):
        rr.run("quick", **words)


@pytest.mark.ci
def test_a_helper_beside_the_file_counts_as_well(write, run_cache, tmp_path, monkeypatch):
    helper = write("SHARE = 0.5\n")
    name = write(f"from {helper} import SHARE\n{METHOD}")
    monkeypatch.syspath_prepend(str(Path.cwd()))
    words = {"strategies": f"{name}:Mine", "backbone": SMALL, "rounds": 1, "out": tmp_path / "own", "quiet": True}
    rr.run("quick", **words)
    Path(f"{helper}.py").write_text("SHARE = 0.25\n")
    with pytest.raises(rr.UserError, match=rf"^{helper}\.py was edited after"):
        rr.run("quick", **words)
