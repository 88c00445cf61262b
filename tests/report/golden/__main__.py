"""Golden pages: what `report` and `compare` say of a few results, and every number of it, kept to be compared with.

    python -m tests.report.golden [NAME..]            what is written today, where it differs from what is kept
    python -m tests.report.golden [NAME..] --write    keep what is written today
    python -m tests.report.golden --numbers FOLDER..  every number of a report and comparison of results, as lines

Exit status of the first: 1 where anything differs. `tests/report/golden/kept` holds a folder for each fixture.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.report.golden.fixtures import FIXTURES, Fixture, place
from tests.report.golden.kept import differences, keep
from tests.report.golden.outputs import outputs, written


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.report.golden", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"Of {', '.join(FIXTURES)}; by default all.")
    parser.add_argument("--write", action="store_true", help="Keep what is written today.")
    parser.add_argument("--numbers", nargs="+", metavar="FOLDER", help="Runs, grids or committed results.")
    chosen = parser.parse_args()
    if chosen.numbers:
        print("\n".join(numbers_of(chosen.numbers)))
        return 0
    if unknown := [name for name in chosen.names if name not in FIXTURES]:
        parser.error(f"no fixture {', '.join(unknown)}; there are {', '.join(FIXTURES)}")
    is_equal = True
    for name in chosen.names or FIXTURES:
        with tempfile.TemporaryDirectory() as folder:
            made = outputs(name, Path(folder).resolve())
        if chosen.write:
            keep(name, made)
            print(f"{name}: {len(made.texts)} pages and {len(made.numbers)} numbers are kept")
            continue
        found = differences(name, made)
        is_equal = is_equal and not found
        print("\n".join([f"{name}: {'differs' if found else 'equal'}", *found]), flush=True)
    return 0 if is_equal else 1


def numbers_of(results: list[str]) -> list[str]:
    """The lines of results anywhere, reported in a folder that is removed afterwards."""
    places = [str(Path(folder).resolve()) for folder in results]
    with tempfile.TemporaryDirectory() as folder, place(Path(folder).resolve()):
        return list(written(places, Fixture(make=lambda: places)).numbers)


if __name__ == "__main__":
    sys.exit(main())
