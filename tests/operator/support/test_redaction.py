"""Nothing that looks like a secret passes; references and everyday numbers do."""

import json
from typing import Any

import pytest

from mizzen_operator.support.redaction import (
    BLACK,
    is_secret_name,
    redacted_document,
    redacted_text,
)

HIDDEN = "s3cr3tV4lue"


@pytest.mark.parametrize(
    "text",
    [
        f"api_key={HIDDEN}&x=1",
        f"HF_TOKEN={HIDDEN}",
        f"x-api-key: {HIDDEN}",
        f'{{"token": "{HIDDEN}"}}',
        f'{{"message": "{{\\"api_key\\": \\"{HIDDEN}\\"}}"}}',
        f"password: '{HIDDEN} {HIDDEN}'",
        f'db_password = "a \\" {HIDDEN}"',
        f"Authorization: Bearer {HIDDEN}",
        f'"authorization": "Basic {HIDDEN}"',
        f"got bearer {HIDDEN}",
        f"https://user:{HIDDEN}@example.com/x",
        f"s3://b/k?X-Amz-Signature={HIDDEN}&y=1",
        f"-----BEGIN RSA PRIVATE KEY-----\n{HIDDEN}\n-----END RSA PRIVATE KEY-----",
        f"-----BEGIN PRIVATE KEY-----\n{HIDDEN} and then it was cut",
        f"{HIDDEN}\n-----END EC PRIVATE KEY-----",
        f"eyJhbGciOiJI.eyJzdWIiOiIx.{HIDDEN}",
        f"hf_{HIDDEN}{HIDDEN}",
        f"sk-{HIDDEN}{HIDDEN}",
        f"ghp_{HIDDEN}{HIDDEN}",
        f"client_secret={HIDDEN}",
        f"refresh-token : {HIDDEN}",
        f"curl -u user:{HIDDEN} https://example.com",
        f"started with --hf-token {HIDDEN}",
        f"--admin-key {HIDDEN} --port 1",
        f"?sig={HIDDEN}",
        f"api_keys=[{HIDDEN}, a{HIDDEN}]",
        f"tokens: {HIDDEN}",
        f"DB_PASS={HIDDEN}",
        f'{{"name":"MY_TOKEN","value":"{HIDDEN}"}}',
    ],
)
def test_a_secret_in_free_text_is_blacked_out(text: str) -> None:
    for around in (text, f"before {text} after", f"one\n{text}\nthree"):
        found = redacted_text(around)
        assert HIDDEN not in found
        assert BLACK in found
        assert redacted_text(found) == found


@pytest.mark.parametrize(
    "text",
    [
        '{"max_tokens": 12, "kv_tokens": 3, "message": "admitted"}',
        "tokenizer pods are not all ready",
        "secretName: chat-curve",
        "loading /models/m.gguf 45%",
        "0/4 nodes are available: 4 Insufficient nvidia.com/gpu.",
        "prefix key of 3 pages",
        "generated tokens: 512, --kv-tokens 4096",
        "https://example.com/a?b=c",
    ],
)
def test_everyday_text_stays(text: str) -> None:
    assert redacted_text(text) == text


def test_json_in_logs_stays_json() -> None:
    line = json.dumps({"token": HIDDEN, "n": 1, "api_key": "a"})
    assert json.loads(redacted_text(line)) == {"token": BLACK, "n": 1, "api_key": BLACK}


@pytest.mark.parametrize(
    ("name", "is_secret"),
    [
        ("HF_TOKEN", True), ("AWS_SECRET_ACCESS_KEY", True), ("apiKey", True),
        ("DB_PASSWORD", True), ("MYTOKEN", True), ("DB_PASS", True), ("AWS_SECRETKEY", True),
        ("API_CREDS", True), ("PASSWORDS", True), ("--admin-key", True), ("Authorization", True),
        ("--kv-tokens", False), ("--tokenizer-workers", False), ("MONKEY", False),
        ("MIZZEN_ROLE", False), ("--max-chunk-tokens", False), ("--curve-dir", False),
    ],
)  # fmt: skip
def test_names_tell_what_may_be_secret(name: str, *, is_secret: bool) -> None:
    assert is_secret_name(name) is is_secret


def document(value: Any) -> Any:
    return json.loads(redacted_document(value))


def test_literal_variables_are_blacked_out_and_references_stay() -> None:
    reference = {"secretKeyRef": {"name": "hub", "key": "token", "optional": False}}
    env = [
        {"name": "HF_TOKEN", "value": HIDDEN},
        {"name": "API_KEY", "valueFrom": reference},
        {"name": "OMP_NUM_THREADS", "value": "4"},
        {"name": "EMPTY_TOKEN", "value": ""},
    ]
    found = document({"kind": "Pod", "spec": {"containers": [{"name": "m", "env": env}]}})
    (container,) = found["spec"]["containers"]
    assert container["env"] == [
        {"name": "HF_TOKEN", "value": BLACK},
        {"name": "API_KEY", "valueFrom": reference},
        {"name": "OMP_NUM_THREADS", "value": "4"},
        {"name": "EMPTY_TOKEN", "value": ""},
    ]


def test_of_variables_that_are_not_ours_no_value_is_kept() -> None:
    names = ("LEVEL", "MINIO_ROOT_PASS", "ACCESSKEY", "TOKENS", "ANYTHING")
    env = [{"name": name, "value": HIDDEN} for name in names]
    assert document({"env": env})["env"] == [{"name": name, "value": BLACK} for name in names]


def test_a_number_is_a_value_too() -> None:
    found = document({"podTemplate": {"env": [{"name": "PIN", "value": 1234}]}})
    assert found["podTemplate"]["env"] == [{"name": "PIN", "value": BLACK}]


def test_of_annotations_that_are_not_ours_no_value_is_kept() -> None:
    annotations = {"kapp.k14s.io/original": f'{{"x":"{HIDDEN}"}}', "serving.mizzen.dev/a": "1"}
    found = document({"kind": "Pod", "metadata": {"annotations": annotations}})
    assert found["metadata"]["annotations"] == {
        "kapp.k14s.io/original": BLACK,
        "serving.mizzen.dev/a": "1",
    }


def test_secret_flags_are_blacked_out_in_both_spellings() -> None:
    args = ["--api-key", HIDDEN, f"--admin-key={HIDDEN}", "--kv-tokens", "4096", "--token", "--x"]
    assert document({"args": args})["args"] == [
        "--api-key", BLACK, f"--admin-key={BLACK}", "--kv-tokens", "4096", "--token", "--x",
    ]  # fmt: skip


def test_copies_of_the_object_in_its_metadata_are_dropped() -> None:
    applied = json.dumps({"spec": {"env": [{"name": "HF_TOKEN", "value": HIDDEN}]}})
    metadata = {
        "name": "chat",
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": applied,
            "example.com/token": HIDDEN,
            "serving.mizzen.dev/applied-hash": "ab12",
        },
        "managedFields": [{"manager": "x"}],
    }
    found = document({"kind": "List", "items": [{"kind": "Pod", "metadata": metadata}]})
    assert found["items"][0]["metadata"] == {
        "name": "chat",
        "annotations": {"example.com/token": BLACK, "serving.mizzen.dev/applied-hash": "ab12"},
    }


def test_structure_that_only_names_secrets_stays() -> None:
    spec = {
        "imagePullSecrets": [{"name": "registry"}],
        "automountServiceAccountToken": False,
        "volumes": [
            {"name": "curve", "secret": {"secretName": "c", "items": [{"key": "a", "path": "a"}]}}
        ],
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
    }
    metadata = {"labels": {"serving.mizzen.dev/keys": "j59qkw"}}
    assert document({"metadata": metadata, "spec": spec}) == {"metadata": metadata, "spec": spec}


def test_other_fields_of_secret_names_and_texts_are_blacked_out() -> None:
    found = document({"password": HIDDEN, "status": {"message": f"bad token={HIDDEN}"}, "n": 3})
    assert found == {"password": BLACK, "status": {"message": f"bad token={BLACK}"}, "n": 3}


@pytest.mark.timeout(600)
def test_long_lines_take_no_long_time() -> None:
    """Minutes would be a sign of quadratic time; it takes about a tenth of a second."""
    for unit in ("x", "a.", "token", "a://", "key: ", "-----BEGIN PRIVATE KEY-----"):
        redacted_text(unit * (100_000 // len(unit)))
