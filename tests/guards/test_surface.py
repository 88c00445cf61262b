"""What users can name is what ``surface.txt`` says; a wanted change writes it anew and is seen in its diff."""

from dataclasses import dataclass
from typing import Literal

from tests.guards import surface


def test_what_users_can_name_is_what_it_was():
    known = surface.FILE.read_text(encoding="utf-8").splitlines()
    changed = surface.differences(known, surface.lines())
    assert not changed, "\n".join(["wanted? `python -m tests.guards.surface --write`", *changed])


def test_every_kind_of_item_is_there():
    known = surface.FILE.read_text(encoding="utf-8").splitlines()
    assert known == sorted(set(known))
    for line in (
        "command relief-ray run --set PATH=VALUE list[str] | None = None",
        "exit code 0: done",
        "grid smoke",
        "method relief: RELIEF (RELIEF, V0)",
        "preset quick",
        "rr.StrategyConfig.weighting: Literal['uniform', 'samples'] = 'uniform'",
        "file rounds.jsonl: metrics.f1: float | None",
        "environment RELIEF_DATA",
        "rr.Run.fold: int (property)",
    ):
        assert line in known
    assert any(line.startswith("key training.epochs: ") for line in known)


@dataclass
class Inner:
    rows: dict[int, tuple[Literal["a", "b"], ...]]


@dataclass
class Outer:
    inner: tuple[Inner, ...] = ()
    note: "str | None" = None

    def told(self, word: str = "x", *, others: "dict[str, int] | None" = None) -> Inner | None: ...


def test_fields_and_methods_are_listed_with_types_and_defaults(monkeypatch):
    monkeypatch.setattr(surface, "OURS", (__name__.partition(".")[0],))
    assert list(surface._stored(Outer, "")) == [
        "inner: tuple[Inner, ...] = ()",
        "inner[].rows: dict[int, tuple[Literal['a', 'b'], ...]]",
        "note: str | None = None",
    ]
    assert list(surface._named("rr.Outer", Outer)) == [
        "rr.Outer: class",
        "rr.Outer.inner: tuple[Inner, ...] = ()",
        "rr.Outer.note: str | None = None",
        "rr.Outer.told(self, word: str = 'x', *, others: dict[str, int] | None = None) -> Inner | None",
    ]


def test_lines_that_are_gone_and_new_are_told():
    assert surface.differences(["a", "b", "c"], ["a", "c", "d"]) == ["-b", "+d"]
    assert surface.differences(["a"], ["a"]) == []
