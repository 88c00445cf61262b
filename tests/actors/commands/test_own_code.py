"""Code that a record names: whoever began the run is not asked, anybody else types ``--own-code``."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from relief_ray.records.run_folder import read_run
from relief_ray.support.files import cache_root
from tests.actors.conftest import SMALL, Invoke
from tests.own import METHOD, Write, write

__all__ = ["write"]
COUNTED = 'from pathlib import Path\nPath("imported").open("a").write("x")\n'


def imports() -> int:
    """How often the plug-in was imported so far."""
    return len(Path("imported").read_text()) if Path("imported").exists() else 0


def as_new_process(name: str) -> None:
    sys.modules.pop(name, None)


@pytest.mark.ci
def test_own_code_runs_where_it_was_begun_or_is_let_in(write: Write, invoke: Invoke) -> None:
    name = write(COUNTED + METHOD)
    words = ["run", "quick", "--strategies", f"{name}:Mine", "--rounds", 1, "--out", "study", *SMALL]
    assert invoke(*words).exit_code == 0
    (run,) = Path("study").glob("*/run.json")
    folder, file = run.parent, Path(f"{name}.py")
    looks = (["explain", folder, "--round", 1, "--client", 0], ["model", "describe", folder], ["fleet", "show", folder])
    goes_on = (["resume", "study"], ["resume", folder], ["model", "evaluate", folder])

    def tried(words: list[object], *more: str) -> tuple[int, int, str]:
        """Exit code, imports, and what was said."""
        as_new_process(name)
        before = imports()
        result = invoke(*words, *more)
        return result.exit_code, imports() - before, result.output

    # Whoever began it is asked nothing; where the record is enough, nothing is imported.
    code, number, said = tried(["config", folder, "strategy.alpha"])
    assert (code, number) == (0, 0) and "strategy.alpha = 0.5" in said
    assert tried(["data", "describe", folder])[:2] == (0, 0)
    for words in (*goes_on, *looks):
        assert tried(words)[:2] == (0, 1), words

    # The same files from somebody else: another machine's cache knows nothing of the run.
    begun = cache_root() / "begun"
    shutil.move(begun, "elsewhere")
    for words in (*goes_on, *looks):
        code, number, said = tried(words)
        assert (code, number) == (2, 0) and "--own-code" in said and name in said, said
        assert tried(words, "--own-code")[:2] == (0, 1), words
    shutil.rmtree(begun, ignore_errors=True)
    shutil.move("elsewhere", begun)

    # Another file under the name: never where its hash is not the record's, whoever began the run.
    recorded = read_run(folder).own_sources[file.name]
    file.write_text(COUNTED + METHOD.replace("0.5", "0.25"))
    for words in (*goes_on, *looks):
        code, number, said = tried(words, "--own-code")
        assert (code, number) == (2, 0) and recorded[:12] in said.replace("\n", ""), said
    assert "--other-code" in tried(["resume", "study"])[2], "a run goes on with a mended file where that is typed"
    assert tried(["resume", "study"], "--other-code")[:2] == (0, 1)
