"""docs/api.md, executed: the blocks run one after the other as they stand there, in a folder of the user's."""

import re
import sys
from pathlib import Path

import pytest

import relief_ray as rr

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
MARK = "# file: "


@pytest.fixture(scope="module")
def executed(run_cache, tmp_path_factory):
    """The names that the page's blocks define; one printed text per block."""
    folder, names, before = tmp_path_factory.mktemp("user"), {"__name__": "page"}, set(sys.modules)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        for block in BLOCKS:
            if block.startswith(MARK):
                (folder / block.splitlines()[0].removeprefix(MARK)).write_text(block)
            else:
                exec(compile(block, "docs/api.md", "exec"), names)
        yield names | {"folder": folder}
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


@pytest.mark.slow
def test_every_block_runs(executed):
    assert len(BLOCKS) == 8
    assert [len(executed[name].runs) for name in ("study", "again", "later", "small", "mine")] == [4, 6, 6, 2, 3]
    assert (executed["folder"] / "timeline.png").stat().st_size > 10_000
    report = executed["folder"] / "report"
    assert "relief" in (report / "index.html").read_text() and (report / "tables" / "e1-main.csv").exists()


@pytest.mark.slow
def test_what_the_page_says_of_its_results(executed):
    assert isinstance(executed["study"].gain("relief").mean, float)
    reasons = executed["run"].explain(round=3, client=4)
    assert executed["run"].config.training.epochs == 1 and "Client 4 in round 3 of 4" in str(reasons)
    paths = [run.strategy for run in executed["mine"].runs]
    assert paths == ["fedavg", "my_average:HalfStep", "my_average:HalfStep"]
    assert list(executed["mine"].runs[1].record.own_sources) == ["my_average.py"]
    assert executed["rules"].ok and executed["same"].ok


def test_the_table_of_words_is_complete():
    """Every keyword of ``run`` and every public member of a study is on the page."""
    import inspect

    words = set(re.findall(r"`(\w+)[`(]", PAGE))
    parameters = {name for name in inspect.signature(rr.run).parameters if name not in ("experiment", "settings")}
    assert parameters <= words
    members = {name for name in vars(rr.Study) if not name.startswith("_")} | {"folder"}
    assert members <= words
