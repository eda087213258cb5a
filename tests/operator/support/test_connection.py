"""Which cluster a command talks to, and the sentence when it cannot be reached."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from mizzen_operator.errors import UnavailableError
from mizzen_operator.support.connection import ConnectError, Target, connect, sentence_of
from mizzen_operator.support.verbs import status_verb


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port on which nobody listens, and nobody else will."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def kubeconfig(folder: Path, port: int) -> str:
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "first",
        "contexts": [
            {"name": "first", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
            {"name": "second", "context": {"cluster": "c", "user": "u"}},
        ],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {"token": "abc"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize(
    ("context", "namespace"), [("", "team"), ("first", "team"), ("second", "default")]
)
def test_the_namespace_is_that_of_the_context(
    context: str, namespace: str, tmp_path: Path, closed_port: int
) -> None:
    target = Target(kubeconfig=kubeconfig(tmp_path, closed_port), context=context)
    connection = connect(target)
    connection.close()
    assert connection.namespace == namespace
    assert connection.server == f"http://127.0.0.1:{closed_port}"


def test_a_cluster_that_does_not_answer_is_one_sentence(
    tmp_path: Path, closed_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_verb(["--kubeconfig", kubeconfig(tmp_path, closed_port)]) == 2
    assert capsys.readouterr().err == (
        f"mizzen status: cannot reach the cluster at http://127.0.0.1:{closed_port}: [Errno 111]"
        " Connection refused; check --kubeconfig, --context and the network\n"
    )


@pytest.mark.parametrize(
    ("text", "context", "words"),
    [
        ("", "", "cannot use kubeconfig"),
        ("a: [", "", "cannot use kubeconfig"),
        ("{}", "", "cannot use kubeconfig"),
        (None, "third", "third"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    text: str | None, context: str, words: str, tmp_path: Path, closed_port: int
) -> None:
    path = kubeconfig(tmp_path, closed_port)
    if text is not None:
        Path(path).write_text(text, encoding="utf-8")
    with pytest.raises(ConnectError) as caught:
        connect(Target(kubeconfig=path, context=context))
    assert words in str(caught.value)
    assert "give --kubeconfig FILE or --context" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConnectError, match="cannot use kubeconfig /nowhere"):
        connect(Target(kubeconfig="/nowhere"))


def test_an_answer_that_is_a_failure_is_told_as_it_is() -> None:
    text = sentence_of(UnavailableError("list x: HTTP 503"), "https://a")
    assert (
        text == "the cluster at https://a did not answer as it should: list x: HTTP 503; try again"
    )


def test_a_connection_is_closed_also_after_a_failure(tmp_path: Path, closed_port: int) -> None:
    connection = connect(Target(kubeconfig=kubeconfig(tmp_path, closed_port)))
    with pytest.raises(UnavailableError):
        asyncio.run(connection.reader.server_version())  # type: ignore[arg-type]
    connection.close()
    with pytest.raises(RuntimeError, match="shutdown"):
        asyncio.run(connection.reader.server_version())  # type: ignore[arg-type]
