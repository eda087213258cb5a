"""Run the tests (`all`) or the quick checks (`check`) and end with one honest summary.

Owns which runs there are and how their results add up; each run is a plain command that can be
repeated by hand. Not here: what is tested, and the set-up before it (.ci/setup.sh).
"""

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.devcluster.folders import REPOSITORY
from tests.devcluster.steps import Step, StepRun, run_each

TOOLS = Path(sys.executable).parent
OUT = REPOSITORY / "out"
QUICK = "not cluster and not model and not gpu and not slow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """How many tests ended how."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(
            passed=self.passed + other.passed,
            failed=self.failed + other.failed,
            skipped=self.skipped + other.skipped,
        )


def read_counts(report: Path) -> Counts:
    """Add up a JUnit report; no report counts as one failure, for its run broke down."""
    if not report.exists():
        return Counts(failed=1)
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    total = Counts()
    for suite in suites:
        tests, skipped = int(suite.get("tests", "0")), int(suite.get("skipped", "0"))
        failed = int(suite.get("failures", "0")) + int(suite.get("errors", "0"))
        total += Counts(passed=tests - skipped - failed, failed=failed, skipped=skipped)
    return total


def keep_bytecode() -> None:
    """Where nothing may be compiled beside the sources, keep what is compiled in ``out``.

    Else each process of each run compiles all that it imports: ten seconds for a model's tests.
    """
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", ""):
        os.environ.setdefault("PYTHONPYCACHEPREFIX", str(OUT / "bytecode"))


def run_all() -> int:
    """Run every test at full scale: what needs no cluster on all cores, then the one cluster's."""
    runs: tuple[tuple[str, list[str], dict[str, str]], ...] = (
        ("unit", ["-n", str(os.cpu_count() or 1), "-m", "not cluster"], {"OMP_NUM_THREADS": "1"}),
        ("cluster", ["-n", "0", "-m", "cluster"], {}),
    )
    status, total = 0, Counts()
    (OUT / "test").mkdir(parents=True, exist_ok=True)
    for name, arguments, environment in runs:
        report = OUT / "test" / f"{name}.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", *arguments, f"--junitxml={report}"]
        print(f"test: {name}: pytest {' '.join(arguments)}", flush=True)
        ended = subprocess.run(
            command,
            cwd=REPOSITORY,
            env={**os.environ, "MIZZEN_TEST_SCALE": "full", **environment},
            stdin=subprocess.DEVNULL,
            check=False,
        )
        status = status or ended.returncode
        total += read_counts(report)
    print(f"{total.passed} passed, {total.failed} failed, {total.skipped} skipped", flush=True)
    return status or int(total.failed > 0 or total.passed == 0)


def _tool(step: str, *command: str) -> Step:
    def work(context: StepRun) -> None:
        context.command([TOOLS / command[0], *command[1:]], folder=REPOSITORY)

    return Step(name=step, run=work)


def failed_tests(log: str) -> list[str]:
    """Return the lines of a pytest log that name what failed."""
    return [line for line in log.splitlines() if line.startswith(("FAILED ", "ERROR "))]


def check() -> int:
    """Run every quick check side by side, with short searches in random tests."""
    os.environ["MIZZEN_TEST_SCALE"] = "check"
    # Two workers share the cores with the linters: threads of one test would wait for another's.
    os.environ["OMP_NUM_THREADS"] = "1"
    steps = (
        _tool("format", "ruff", "format", "--check", "."),
        _tool("lint", "ruff", "check", "."),
        _tool("imports", "lint-imports"),
        _tool("types", "mypy"),
        _tool("dependencies", "deptry", "."),
        _tool("dead-code", "vulture"),
        _tool("unit", "pytest", "-q", "-n", "2", "-m", QUICK),
    )
    began = time.monotonic()
    try:
        failures = run_each(steps, logs=OUT / "check")
    except KeyboardInterrupt:
        return 130
    log = (OUT / "check" / "unit.log").read_text(encoding="utf-8")
    for line in failed_tests(log):
        print(line, file=sys.stderr)
    for failure in failures:
        print(f"\ncheck failed: {failure}", file=sys.stderr)
    outcome = f"{len(failures)} of {len(steps)} checks failed" if failures else "all checks passed"
    print(f"{log.splitlines()[-1]}\n{outcome} in {time.monotonic() - began:.0f} s")
    return int(bool(failures))


if __name__ == "__main__":
    keep_bytecode()
    sys.exit(check() if sys.argv[1:] == ["check"] else run_all())
