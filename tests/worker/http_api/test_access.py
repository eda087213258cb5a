"""Keys: what each opens, what their files may be, and that none is ever told."""

from pathlib import Path

import pytest

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.http_api.access import AccessKeys, Gate, read_keys
from mizzen_worker.http_api.refusals import AccessError

API, ADMIN, OLD = "a" * 20, "b" * 20, "c" * 20
KEYS = AccessKeys(api=(API.encode(), OLD.encode()), admin=(ADMIN.encode(),))


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.mark.parametrize(
    ("gate", "headers"),
    [
        (Gate.OPEN, {}),
        (Gate.API, bearer(API)),
        (Gate.API, bearer(OLD)),
        (Gate.API, {"x-api-key": API}),
        (Gate.API, {"authorization": f"bearer  {API} "}),
        (Gate.API, bearer(ADMIN)),
        (Gate.ADMIN, bearer(ADMIN)),
    ],
)
def test_a_key_opens_its_gate(gate: Gate, headers: dict[str, str]) -> None:
    KEYS.check(gate, headers)


@pytest.mark.parametrize(
    ("gate", "headers", "sentence"),
    [
        (Gate.API, {}, "needs an API key and the request brings none"),
        (Gate.API, bearer("d" * 20), "brings a wrong one"),
        (Gate.API, bearer(API[:-1]), "brings a wrong one"),
        (Gate.API, {"authorization": f"Basic {API}"}, "brings none"),
        (Gate.ADMIN, bearer(API), "needs the admin key"),
        (Gate.ADMIN, {}, "brings none"),
    ],
)
def test_another_does_not(gate: Gate, headers: dict[str, str], sentence: str) -> None:
    with pytest.raises(AccessError, match=sentence):
        KEYS.check(gate, headers)


def test_without_api_keys_nobody_needs_one() -> None:
    AccessKeys(admin=(ADMIN.encode(),)).check(Gate.API, {})


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    assert read_keys(None, flag="--f") == ()
    path.write_text(f"\n {API} \n{OLD}\n")
    assert read_keys(str(path), flag="--f") == (API.encode(), OLD.encode())
    for text, sentence in (
        ("", "holds no key"),
        (f"{API}\nshort\n", "key 2 of"),
        ("ä" * 20, "ASC"),
    ):
        path.write_text(text)
        with pytest.raises(ConfigError, match=sentence) as refused:
            read_keys(str(path), flag="--f")
        assert str(refused.value).startswith("--f: ")
        assert "short" not in str(refused.value).replace("shorter", "")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(str(tmp_path / "none"), flag="--f")
