from __future__ import annotations

import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.masking import mask_logs, mask_text, redact
from relief_ray.records.identity import cell_id

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


def test_the_cell_does_not_depend_on_credentials():
    assert cell_id({"uri": "http://a:1@h"}, "d") == cell_id({"uri": "http://b:2@h"}, "d")
    assert cell_id({"uri": "http://a:1@h"}, "d") != cell_id({"uri": "http://a:1@g"}, "d")


@given(st.text())
def test_masking_twice_changes_nothing(text):
    assert mask_text(mask_text(text)) == mask_text(text)


def test_tokens_are_masked_in_what_libraries_log(caplog, monkeypatch):
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)
    mask_logs()
    mask_logs()
    with caplog.at_level(logging.WARNING):
        logging.getLogger("urllib3").warning("retry of %s after %d s", "http://me:word@host/api?token=T0KEN&x=1", 3)
        logging.getLogger("urllib3").warning("again: %s", "/?token=T0KEN/api/2.0")
        logging.getLogger("urllib3").warning("%s %s", "plain", "words")
    masked = ["retry of http://***@host/api?token=***&x=1 after 3 s", "again: /?token=***"]
    assert caplog.messages == [*masked, "plain words"]
