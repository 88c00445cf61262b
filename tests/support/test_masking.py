from __future__ import annotations

import io
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relief_ray.records.identity import cell_id
from relief_ray.support.masking import is_chain, mask_logs, mask_text, redact

CANARY = "canary-7f3a"


@pytest.mark.parametrize("uri", ["dir::memory://b/x", "simplecache::s3://b", "zip://a::file:///new.zip"])
def test_stores_in_a_chain(uri):
    assert is_chain(uri)


@pytest.mark.parametrize(
    "uri", ["s3://b/x", "sftp://[fe80::1]/copy", "webhdfs://[2001:db8::1]:9870/x", "sftp://u:a::b@h/x"]
)
def test_an_ipv6_host_and_a_password_are_no_chain(uri):
    assert not is_chain(uri)


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        (f"https://me:{CANARY}@host:5000/x", "https://***@host:5000/x"),
        (f"postgresql://{CANARY}@db/mlflow and http://a:b@c", "postgresql://***@db/mlflow and http://***@c"),
        (f"http://h/?a=1&token={CANARY}&b=2", "http://h/?a=1&token=***&b=2"),
        (f"http://h/?sslpassword={CANARY}#x", "http://h/?sslpassword=***#x"),
        (f"postgresql://u:p/{CANARY}@h/db", "postgresql://***@h/db"),
        (f"postgresql://u:p#?{CANARY}@h:5432/db", "postgresql://***@h:5432/db"),
        (f"https://h/b/o?sv=1&sig={CANARY}%3D&se=2", "https://h/b/o?sv=1&sig=***&se=2"),
        (f"https://h/o?X-Amz-Signature={CANARY}", "https://h/o?X-Amz-Signature=***"),
        (f"https://h/?key={CANARY} and /?api-key={CANARY}", "https://h/?key=*** and /?api-key=***"),
        (f"https://h/cb#access_token={CANARY}&x=1", "https://h/cb#access_token=***&x=1"),
        (f"https;AccountName=a;AccountKey={CANARY}==;x=1", "https;AccountName=a;AccountKey=***;x=1"),
        (f"Authorization: Bearer {CANARY}", "Authorization: Bearer ***"),
        (f"{{'Authorization': 'Basic {CANARY}', 'a': 1}}", "{'Authorization': 'Basic ***', 'a': 1}"),
    ],
)
def test_mask_text(text, masked):
    assert mask_text(text) == masked
    assert mask_text(masked) == masked


@pytest.mark.parametrize(
    "text",
    [
        "sqlite:////home/me@work/mlflow.db",
        "mail me@host.org",
        "git+https://host:8443/o/r@v1 and http://[::1]:5000/a@b",
        "--set key=value: unknown key 'config_key=3'; data.units=[torso];key=2",
        "https://h/?design=1&monkey=2&keys=3",
        "authorization: token expired, the bearer of this is not known",
    ],
)
def test_what_is_no_credential_is_left_as_it_is(text):
    assert mask_text(text) == text


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


PIECES = ["://", "@", ":", "/", "?", "#", "&", ";", "token=", "key=", "authorization:", "bearer ", "a", "1", '"', " "]


@given(st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
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


def hear(monkeypatch):
    """What an ordinary handler writes of records that `mask_logs` makes; pytest's own raises where a call is wrong."""
    monkeypatch.setattr(logging, "_logRecordFactory", logging.LogRecord)
    mask_logs()
    written, logger = io.StringIO(), logging.getLogger("mlflow")
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(written)])
    monkeypatch.setattr(logger, "propagate", False)
    return written


def test_tokens_are_masked_in_tracebacks_and_stacks_that_libraries_log(monkeypatch):
    heard = hear(monkeypatch)
    try:
        raise OSError("http://h/?token=T0KEN")
    except OSError:
        logging.getLogger("mlflow").warning("x", exc_info=True)
    logging.getLogger("mlflow").warning("y", stack_info="http://me:T0KEN@h/")
    assert "OSError: http://h/?token=***" in heard.getvalue() and "T0KEN" not in heard.getvalue()
    assert "Stack (most recent call last)" in heard.getvalue()


def test_a_librarys_wrong_call_is_no_error_of_its_caller(monkeypatch, capsys):
    heard = hear(monkeypatch)
    logging.getLogger("mlflow").warning("%d", "a")
    logging.getLogger("mlflow").warning("next")
    assert heard.getvalue() == "next\n" and "--- Logging error ---" in capsys.readouterr().err
