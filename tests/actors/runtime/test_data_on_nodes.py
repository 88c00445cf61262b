"""Two raylets, the second with a cache and a data folder of its own: the same bits, wherever windows come from."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("two_nodes.py")
MINE = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS")


@pytest.mark.slow
@pytest.mark.ray
def test_a_node_finds_its_own_data_or_is_sent_rows_or_refuses(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k not in MINE} | {"PYTHONPATH": str(PROGRAM.parents[3])}
    command = [sys.executable, str(PROGRAM), str(tmp_path / "nodes")]
    program = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=540, check=False)
    assert program.returncode == 0, program.stderr
    done = json.loads(program.stdout.splitlines()[-1])
    assert done["excerpt"]["records"] == done["excerpt-inline"]["records"]
    assert [name.partition("-")[0] for name in done["excerpt"]["parsed"]] == ["dsa_mini"], "parsed there, and once"
    assert done["sent"]["records"] == done["shards"]["records"] == done["inline"]["records"]
    kinds = {name: done[name]["facts"]["data_nodes"] for name in ("excerpt", "sent", "shards")}
    assert kinds == {"excerpt": {"own": 1}, "sent": {"none": 1}, "shards": {"shard": 1}}
    with_rows, without = done["sent"]["moved"], done["shards"]["moved"]
    sent_bytes = done["sent"]["facts"]["data_sent_bytes"]
    assert sent_bytes > 3000 and with_rows[0] >= without[0] + sent_bytes, "rows travel"
    assert with_rows[1:] == without[1:], "and once"
    assert (
        "'lab:MINE' not found" in done["refused"]["refused"] and "runtime.data = 'node'" in done["refused"]["refused"]
    )
    assert "shard of client 2 alone" in done["stranger"]["refused"] and "client.3" in done["stranger"]["refused"]
