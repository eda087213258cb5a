"""Owns ``mizzen check-install``: does the operator work, are the definitions those of its release.

Does not own either fact: the operator's own probe and the API server's OpenAPI document tell them.
``helm test`` runs it in the operator's image, under an account without any right. Exit codes: 0
fine, 1 something is wrong, 2 the command line or the connection.
"""

import argparse
import asyncio
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mizzen_operator.cli import fail, one_line
from mizzen_operator.cluster.definitions import sentence_of
from mizzen_operator.errors import ClusterError
from mizzen_operator.spec.served import absent_kinds, missing_fields
from mizzen_operator.store import Manifest
from mizzen_operator.support.connection import ConnectError, Connection, Target, connect
from mizzen_operator.support.connection import sentence_of as why

PROBE_TIMEOUT_S = 5.0
RETRY_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Everything outside that the command touches."""

    connect: Callable[[Target], Connection]
    probe: Callable[[str], str]
    """What is wrong, by the answer of a URL; empty if nothing is."""
    clock: Callable[[], float]
    sleep: Callable[[float], None]


def check_install_verb(argv: Sequence[str]) -> int:
    """Check that an installed operator works and that the definitions are those of its release."""
    outside = Surroundings(connect=connect, probe=_probe, clock=time.monotonic, sleep=time.sleep)
    return check_install(argv, outside)


def check_install(argv: Sequence[str], outside: Surroundings) -> int:
    """The verb over its surroundings."""
    options = _parser().parse_args(argv)
    try:
        connection = outside.connect(Target(kubeconfig=options.kubeconfig, context=options.context))
    except ConnectError as error:
        return fail(2, f"mizzen check-install: {one_line(error)}")
    try:
        document = asyncio.run(connection.reader.served_definitions())
    except ClusterError as error:
        return fail(2, f"mizzen check-install: {why(error, connection.server)}")
    finally:
        connection.close()
    problems = [*_definition_problems(document)]
    if options.operator:
        problems += _operator_problems(options.operator, options.timeout, outside)
    for problem in problems:
        sys.stdout.write(f"wrong: {problem}\n")
    if not problems:
        sys.stdout.write("the definitions are those of this release\n")
        if options.operator:
            sys.stdout.write("the operator is ready\n")
    return 1 if problems else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mizzen check-install",
        description=check_install_verb.__doc__,
        epilog="example: mizzen check-install --operator http://mizzen-operator.mizzen-system:8080",
    )
    parser.add_argument(
        "--operator",
        default="",
        metavar="URL",
        help="where the operator serves its probes; without it only the definitions are checked",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="how long the operator may take to be ready (default: %(default)g)",
    )
    parser.add_argument("--kubeconfig", default="", metavar="FILE", help="instead of the default")
    parser.add_argument("--context", default="", metavar="NAME", help="instead of the current one")
    return parser


def _definition_problems(document: Manifest) -> Iterator[str]:
    absent = absent_kinds(document)
    if absent:
        yield (
            f"the cluster does not serve {' and '.join(absent)}: apply the files in crds/ of this "
            "release, or helm upgrade with installCrds=true"
        )
    missing = missing_fields(document)
    if missing:
        yield sentence_of(missing)


def _operator_problems(url: str, timeout_s: float, outside: Surroundings) -> list[str]:
    deadline_s = outside.clock() + timeout_s
    while problem := outside.probe(f"{url.rstrip('/')}/readyz"):
        if outside.clock() >= deadline_s:
            return [f"the operator at {url} is not ready after {timeout_s:g} s: {problem}"]
        outside.sleep(RETRY_S)
    return []


def _probe(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        return f"{url} is no address: write http://HOST:PORT"
    try:
        with urllib.request.urlopen(url, timeout=PROBE_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        with error:
            return " ".join(error.read(4096).decode(errors="replace").split()) or str(error)
    except OSError as error:
        return f"no answer: {one_line(error)}"
