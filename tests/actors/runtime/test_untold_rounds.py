"""A coordinator keeps the rounds that its driver has not heard of, and no others."""

from __future__ import annotations

from types import SimpleNamespace

from actors.runtime.coordinator import UntoldRounds


def rounds(*numbers: int) -> list[SimpleNamespace]:
    return [SimpleNamespace(round=number) for number in numbers]


def test_what_was_heard_is_forgotten_and_nothing_else():
    untold = UntoldRounds()
    untold.add(rounds(0, 1, 2, 3))
    assert [r.round for r in untold.later(1, heard=False)] == [2, 3], "asked about another run: nothing is forgotten"
    assert [r.round for r in untold.later(-1, heard=True)] == [0, 1, 2, 3], "an answer may get lost"
    assert [r.round for r in untold.later(1, heard=True)] == [2, 3]
    untold.add(rounds(4))
    assert [r.round for r in untold.later(-1, heard=True)] == [2, 3, 4], "0 and 1 are gone"
    untold.clear()
    assert untold.later(-1, heard=True) == ()
