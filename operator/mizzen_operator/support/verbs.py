"""Owns the verbs that look at a cluster: arguments, exit codes, and where text goes.

Does not own what is read (``fleet``, ``bundle``) nor what is told (``report``). Nothing here writes
to the cluster. Exit codes: 0 every service is ready, 1 one is not, 2 it could not be read.
"""

import argparse
import asyncio
import json
import re
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.cluster.reader import ClusterReader, Selection
from mizzen_operator.errors import ClusterError
from mizzen_operator.report.document import status_document
from mizzen_operator.report.explain import explanation
from mizzen_operator.report.text import brief_line, status_text
from mizzen_operator.report.view import ServiceReport, report_of
from mizzen_operator.spec.model import KIND
from mizzen_operator.store import SERVICE_KIND
from mizzen_operator.support.archive import BundleError
from mizzen_operator.support.bundle import BundleLimits, BundlePlan, write_bundle
from mizzen_operator.support.connection import (
    Connect,
    ConnectError,
    Connection,
    Target,
    connect,
    sentence_of,
)
from mizzen_operator.support.fleet import Fleet, Wanted, read_fleet

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_EXIT_CODES = "exit code: 0 every service is ready, 1 one is not, 2 the cluster cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What the verbs take from outside; tests put fakes here."""

    connect: Connect = connect
    now: Callable[[], datetime] = lambda: datetime.now(UTC)


class _UsageError(Exception):
    """The command line asks for something that cannot be."""


def status_verb(argv: Sequence[str], around: Surroundings | None = None) -> int:
    """Show how services in a cluster are: conditions, groups, what waits for what."""
    parser = _parser("status", status_verb.__doc__, epilog=_EXIT_CODES)
    parser.add_argument("name", nargs="?", default="", help=f"one {KIND}; without it all of them")
    _add_scope(parser)
    parser.add_argument(
        *("-o", "--output"),
        choices=("text", "wide", "json"),
        default="text",
        help="wide: every condition and pod, nothing cut; json: for programs",
    )
    options = parser.parse_args(argv)
    around = around or Surroundings()

    async def act(connection: Connection) -> int:
        wanted = _wanted(options, connection)
        fleet = await _read(connection.reader, wanted)
        now = around.now()
        reports = [report_of(item.found, now) for item in fleet.services]
        if options.output == "json":
            sys.stdout.write(f"{json.dumps(status_document(reports, fleet.gaps), indent=2)}\n")
        else:
            sys.stdout.write(_status_of_all(reports, now, is_wide=options.output == "wide"))
        return _told(fleet, reports, wanted)

    return _run("status", options, around, act)


def _status_of_all(reports: Sequence[ServiceReport], now: datetime, *, is_wide: bool) -> str:
    """Those that need a look in full and first; of several, those that are well in a line each."""
    is_brief = len(reports) > 1 and not is_wide
    well = [report for report in reports if is_brief and report.is_as_wished]
    texts = [status_text(report, now, is_wide=is_wide) for report in reports if report not in well]
    if well:
        texts.append("".join(brief_line(report, now) for report in well))
    return "\n".join(texts)


def explain_verb(argv: Sequence[str], around: Surroundings | None = None) -> int:
    """Explain why a service is as it is, down to pods and events, and what would mend it."""
    parser = _parser("explain", explain_verb.__doc__, epilog=_EXIT_CODES)
    parser.add_argument("name", help=f"the {KIND}")
    _add_namespace(parser)
    options = parser.parse_args(argv)
    around = around or Surroundings()

    async def act(connection: Connection) -> int:
        wanted = _wanted(options, connection)
        fleet = await _read(connection.reader, wanted)
        now = around.now()
        reports = [report_of(item.found, now) for item in fleet.services]
        sys.stdout.write("\n".join(explanation(report, now) for report in reports))
        return _told(fleet, reports, wanted)

    return _run("explain", options, around, act)


def support_bundle_verb(argv: Sequence[str], around: Surroundings | None = None) -> int:
    """Collect objects, events, logs and versions into one archive to send to somebody."""
    parser = _parser(
        "support-bundle",
        support_bundle_verb.__doc__,
        epilog="It never holds a Secret, and what looks like a key or a token is blacked out; read"
        " it before you send it all the same. Exit code: 0 written, 2 not.",
    )
    parser.add_argument("name", nargs="?", default="", help=f"one {KIND}; without it all of them")
    _add_scope(parser)
    parser.add_argument(
        *("-o", "--output"),
        default="",
        metavar="FILE.tar.gz",
        help="what to write (default: mizzen-support-TIME.tar.gz here)",
    )
    parser.add_argument(
        "--operator-namespace",
        default="",
        metavar="NAMESPACE",
        help="where the operator runs (default: looked for everywhere)",
    )
    parser.add_argument(
        "--log-lines",
        type=_positive,
        default=BundleLimits().log_lines,
        metavar="N",
        help="last lines of each log (default: %(default)s)",
    )
    parser.add_argument(
        "--max-mib",
        type=_positive,
        default=BundleLimits().total_bytes >> 20,
        metavar="N",
        help="most MiB of text, before it is compressed (default: %(default)s)",
    )
    options = parser.parse_args(argv)
    around = around or Surroundings()

    async def act(connection: Connection) -> int:
        now = around.now()
        plan = BundlePlan(
            wanted=_wanted(options, connection, with_normal_events=True),
            file=options.output or f"mizzen-support-{now:%Y%m%d-%H%M%S}.tar.gz",
            operator_namespace=_checked(options.operator_namespace, "namespace") or None,
            limits=BundleLimits(log_lines=options.log_lines, total_bytes=options.max_mib << 20),
        )
        await write_bundle(connection.reader, plan, now=now, tell=_say)
        return 0

    return _run("support-bundle", options, around, act)


VERBS: Mapping[str, Callable[[Sequence[str]], int]] = {
    "status": status_verb,
    "explain": explain_verb,
    "support-bundle": support_bundle_verb,
}


def _parser(verb: str, text: str | None, *, epilog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"mizzen {verb}", description=text, epilog=epilog)
    parser.add_argument(
        "--kubeconfig",
        default="",
        metavar="FILE",
        help="address and credentials of the cluster (default: KUBECONFIG, else ~/.kube/config)",
    )
    parser.add_argument(
        "--context", default="", metavar="NAME", help="context of the kubeconfig to use"
    )
    return parser


def _add_namespace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        *("-n", "--namespace"),
        default="",
        metavar="NAMESPACE",
        help="where to look (default: the context's namespace)",
    )


def _add_scope(parser: argparse.ArgumentParser) -> None:
    _add_namespace(parser)
    parser.add_argument(
        *("-A", "--all-namespaces"), action="store_true", help="look in every namespace"
    )


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if not 1 <= number <= 1_000_000:
        message = f"{text!r} is not a whole number from 1 to 1000000"
        raise argparse.ArgumentTypeError(message)
    return number


def _wanted(
    options: argparse.Namespace, connection: Connection, *, with_normal_events: bool = False
) -> Wanted:
    everywhere = vars(options).get("all_namespaces", False)
    name = _checked(options.name, "name")
    if everywhere and (name or options.namespace):
        message = "-A looks in every namespace: leave out " + ("the name" if name else "-n")
        raise _UsageError(message)
    namespace = _checked(options.namespace, "namespace") or connection.namespace
    return Wanted(
        namespace=None if everywhere else namespace,
        name=name,
        with_normal_events=with_normal_events,
    )


def _checked(text: str, what: str) -> str:
    if text and not _NAME.fullmatch(text):
        message = f"{text!r} is no {what}: use lower-case letters, digits, '-' and '.'"
        raise _UsageError(message)
    return text


async def _read(reader: ClusterReader, wanted: Wanted) -> Fleet:
    """The fleet; a name or a kind that is not there is told in the words of this command."""
    try:
        return await read_fleet(reader, wanted)
    except NotFoundError as error:
        raise _UsageError(await _what_is_missing(reader, wanted)) from error


async def _what_is_missing(reader: ClusterReader, wanted: Wanted) -> str:
    try:
        listed = await reader.list_objects(SERVICE_KIND, Selection(namespace=wanted.namespace))
    except NotFoundError:
        return (
            f"this cluster does not know the kind {KIND}: install the operator (helm install"
            " mizzen charts/mizzen), or give another --context"
        )
    names = [item["metadata"]["name"] for item in listed.items][:10]
    there = f"there are {', '.join(names)}" if names else "there is none"
    return (
        f"{KIND} {wanted.name} is not in namespace {wanted.namespace}: {there} (-n looks elsewhere)"
    )


def _told(fleet: Fleet, reports: Sequence[ServiceReport], wanted: Wanted) -> int:
    for gap in fleet.gaps:
        _say(f"not shown: {gap}")
    if not reports:
        where = "this cluster" if wanted.namespace is None else f"namespace {wanted.namespace}"
        hint = "" if wanted.namespace is None else " (-A looks in all)"
        _say(f"no {KIND} in {where}{hint}")
    return 0 if all(report.is_ready for report in reports) else 1


def _run(
    verb: str,
    options: argparse.Namespace,
    around: Surroundings,
    act: Callable[[Connection], Coroutine[None, None, int]],
) -> int:
    """Connect, act, and put every failure into one sentence."""

    try:
        connection = around.connect(Target(kubeconfig=options.kubeconfig, context=options.context))
    except ConnectError as error:
        return _fail(verb, str(error))
    try:
        return asyncio.run(act(connection))
    except (_UsageError, BundleError) as error:
        return _fail(verb, str(error))
    except ClusterError as error:
        return _fail(verb, sentence_of(error, connection.server))
    except KeyboardInterrupt:
        _say(f"mizzen {verb}: interrupted")
        return 130
    finally:
        connection.close()


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _fail(verb: str, sentence: str) -> int:
    _say(f"mizzen {verb}: {sentence}")
    return 2
