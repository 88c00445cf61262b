"""Every text can be printed, wherever it goes, and none of them holds a credential."""

import io
import subprocess
import sys
from pathlib import Path

import pytest

from actors.cli.options import prepare_streams
from actors.terminal.exit_codes import report, say
from relief_ray.support.errors import UserError

CLOSED = """
import os, sys
from actors.cli.options import prepare_streams
prepare_streams()
print("nobody hears this")
handle = os.open(os.devnull, os.O_RDONLY)
print(handle, file=open(sys.argv[1], "w"))
"""


@pytest.mark.parametrize("errors", ["strict", "surrogateescape", "backslashreplace"])
def test_every_text_can_be_printed(monkeypatch, errors):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii", errors=errors))
    monkeypatch.setattr(sys, "stderr", None)
    prepare_streams()
    print("1–2 ± 3 → 4 × 5 … 日 \udcff", flush=True)
    assert raw.getvalue() == b"1?2 ? 3 ? 4 ? 5 ? ? ?\n"
    say("nobody hears this")


def test_a_closed_output_is_no_number_for_the_next_file(tmp_path):
    told = tmp_path / "told"
    command = f"{sys.executable} -c '{CLOSED}' {told} >&- 2>&-"
    done = subprocess.run(["bash", "-c", command], cwd=Path(__file__).parents[3], timeout=60)
    assert done.returncode == 0 and int(told.read_text()) > 2


def test_tokens_are_masked_in_errors_and_tracebacks(capsys):
    report(UserError("tracking.uri = http://host/?token=T0KEN: cannot be reached"))
    try:
        raise KeyError("http://me:T0KEN@host/")
    except KeyError as error:
        report(error)
    say("the store answered 403 to /api?sig=T0KEN")
    shown = capsys.readouterr().err
    assert "T0KEN" not in shown and "http://host/?token=***" in shown and "http://***@host/" in shown
