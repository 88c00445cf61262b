"""Which error ends with which code."""

import errno
import json

import pytest

from actors.terminal.exit_codes import (
    BAD_INPUT,
    DISK,
    EXIT_CODES,
    INTERNAL,
    ROUND_VOID,
    Result,
    Stopped,
    exit_code,
    report,
)
from relief_ray.core.federated import RoundVoid
from relief_ray.support.errors import CoordinatorLost, UserCodeError, UserError


def disk_error(number: int) -> UserError:
    error = UserError("disk")
    error.__cause__ = OSError(number, "no")
    return error


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("x"), BAD_INPUT),
        (UserCodeError("my_file.py, line 3: x"), 7),
        (disk_error(errno.ENOSPC), DISK),
        (disk_error(errno.EIO), DISK),
        (disk_error(errno.EACCES), BAD_INPUT),
        (OSError(errno.ENOSPC, "full"), DISK),
        (OSError(errno.ENOENT, "gone"), INTERNAL),
        (RoundVoid("x"), ROUND_VOID),
        (FloatingPointError("x"), ROUND_VOID),
        (BrokenPipeError(errno.EPIPE, "x"), 141),
        (Stopped(143, "x"), 143),
        (CoordinatorLost("x"), 9),
        (KeyError("x"), INTERNAL),
    ],
)
def test_codes(error: BaseException, code: int) -> None:
    assert exit_code(error) == code
    assert code in dict(EXIT_CODES)


def test_an_internal_error_shows_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise KeyError("lost")
    except KeyError as error:
        assert report(error) == INTERNAL
    shown = capsys.readouterr().err
    assert "Traceback" in shown and "error: internal error: KeyError: 'lost'" in shown


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_a_number_that_json_has_not_is_null(capsys: pytest.CaptureFixture[str], value: float) -> None:
    Result("", {"nodes": [{"difference": value, "kept": False}], "within": 1e-4}).show(as_json=True)
    shown = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert shown == {"nodes": [{"difference": None, "kept": False}], "within": 1e-4}


def test_every_code_is_documented_in_help_and_docs(invoke) -> None:
    from pathlib import Path

    help_text = " ".join(invoke("--help").stdout.split())
    docs = (Path(__file__).parents[3] / "docs" / "cli.md").read_text()
    for code, meaning in EXIT_CODES:
        assert f"{code}: {meaning.split()[0]}" in help_text
        assert f"| {code} |" in docs
