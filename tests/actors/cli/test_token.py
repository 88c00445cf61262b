"""Commands that join a cluster let Ray show the token of the home folder, whatever they import."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
# Whatever the command does after its options are read is left out; Ray must not have been imported by then.
PROGRAM = """
import os, sys
from actors.cli import options
def stop(name):
    assert "ray" not in sys.modules, "Ray has read its variables already"
    print(os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN_PATH"))
    raise SystemExit
options.import_module = stop
from actors.cli.main import main
sys.argv = ["relief-ray", *sys.argv[1:]]
main()
"""


@pytest.mark.ci
@pytest.mark.parametrize(
    "words", [["run", "demo"], ["grid", "smoke"], ["grid", "smoke", "--dry-run"], ["conformance"]], ids=" ".join
)
@pytest.mark.parametrize("address", [["--address", "10.0.0.1:6379"], []], ids=["joins", "alone"])
def test_the_token_is_known_before_ray_is_imported(tmp_path, words, address):
    token = tmp_path / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("a" * 64)
    token.chmod(0o600)
    env = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")} | {"HOME": str(tmp_path)}
    program = [sys.executable, "-c", PROGRAM, *words, *address]
    done = subprocess.run(program, env=env | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == (["token", str(token)] if address else ["None", "None"]), done.stderr
