from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.records.identity import cell_id
from relief_ray.records.redact import mask_text, redact

CANARY = "canary-7f3a"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"https://me:{CANARY}@host:5000/x", "https://***@host:5000/x"),
        (f"postgresql://{CANARY}@db/mlflow and http://a:b@c", "postgresql://***@db/mlflow and http://***@c"),
        (f"http://h/?a=1&token={CANARY}&b=2", "http://h/?a=1&token=***&b=2"),
        (f"http://h/?sslpassword={CANARY}#x", "http://h/?sslpassword=***#x"),
        ("sqlite:////home/me@work/mlflow.db", "sqlite:////home/me@work/mlflow.db"),
        ("mail me@host.org", "mail me@host.org"),
    ],
)
def test_mask_text(text, masked):
    assert mask_text(text) == masked
    assert mask_text(masked) == masked


def test_keys_that_name_a_credential_lose_their_value_and_others_keep_theirs():
    config = {
        "tracking": {"uri": f"http://u:{CANARY}@h", "API_KEY": CANARY, "password": CANARY},
        "hubs": [{"auth_token": CANARY}, f"ftp://x:{CANARY}@h"],
        "num_tokens": 3,
        "token_table": False,
        "tokens": "kept",
        "secret": "",
    }
    clean = redact(config)
    assert CANARY not in json.dumps(clean)
    assert clean["tracking"] == {"uri": "http://***@h", "API_KEY": "***", "password": "***"}
    assert (clean["num_tokens"], clean["token_table"], clean["tokens"], clean["secret"]) == (3, False, "kept", "")


def test_a_record_never_holds_a_planted_secret(scenario):
    uri = f"http://me:{CANARY}@h"
    run = scenario.make_run(
        config={"tracking": {"uri": uri, "token": CANARY}}, note=f"cannot reach {uri}", warnings=[uri]
    )
    assert CANARY not in run.model_dump_json()
    assert "http://***@h" in run.note


def test_the_cell_does_not_depend_on_credentials():
    assert cell_id({"uri": "http://a:1@h"}, "d") == cell_id({"uri": "http://b:2@h"}, "d")
    assert cell_id({"uri": "http://a:1@h"}, "d") != cell_id({"uri": "http://a:1@g"}, "d")


@given(st.text())
def test_masking_twice_changes_nothing(text):
    assert mask_text(mask_text(text)) == mask_text(text)
