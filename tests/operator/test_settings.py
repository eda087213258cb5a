import pytest

from mizzen_operator.settings import SettingsError, read_settings

NEEDED = {
    "MIZZEN_OPERATOR_NAMESPACE": "ns",
    "MIZZEN_OPERATOR_FRONTEND_IMAGE": "f:1",
    "MIZZEN_OPERATOR_WORKER_IMAGE": "w:1",
}


def test_what_is_not_set_has_its_default() -> None:
    settings = read_settings(NEEDED)
    assert (settings.http_port, settings.resync_seconds, settings.log_level) == (8080, 300, "INFO")
    assert settings.watch_namespace == ""


def test_numbers_are_numbers() -> None:
    extra = {"MIZZEN_OPERATOR_HTTP_PORT": " 9 ", "MIZZEN_OPERATOR_RESYNC_SECONDS": "1.5"}
    settings = read_settings(NEEDED | extra)
    assert (settings.http_port, settings.resync_seconds) == (9, 1.5)


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_needed_is_named(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} is not set"):
        read_settings({key: value for key, value in NEEDED.items() if key != name})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("HTTP_PORT", "x", "'x' is not a whole number from 0 to 65535"),
        ("HTTP_PORT", "1.5", "'1.5' is not a whole number"),
        ("HTTP_PORT", "70000", "'70000' is not a whole number from 0 to 65535"),
        ("RESYNC_SECONDS", "nan", "'nan' is not a number from 1 to 86400"),
        ("SERVICE_PULL_SECRETS", "a, B", "'B' is no name of a Secret"),
        ("GPU_CLASSES", "a=1Gi,b=2G", "'b=2G' is no class of GPUs: write NAME=MEMORY"),
        ("LOG_LEVEL", "loud", "'LOUD' is none of DEBUG, INFO, WARNING, ERROR"),
    ],
)
def test_a_wrong_value_is_named_with_its_remedy(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingsError, match=f"MIZZEN_OPERATOR_{name}: {message}"):
        read_settings(NEEDED | {f"MIZZEN_OPERATOR_{name}": value})


def test_two_processes_without_identity_differ() -> None:
    settings = read_settings(NEEDED)
    assert settings.identity_or_new != settings.identity_or_new
    assert read_settings(NEEDED | {"MIZZEN_OPERATOR_IDENTITY": "me"}).identity_or_new == "me"
