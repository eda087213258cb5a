"""``python -m tests.soak --minutes 10``: run a soak and end with 1 when a promise was broken."""

import argparse
import sys

from tests.soak.run import SoakOptions, run_soak


def main() -> int:
    """Run it as asked."""
    parser = argparse.ArgumentParser(prog="tests.soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--users", type=int, default=24)
    parser.add_argument("--kill-every", type=float, default=30.0)
    parser.add_argument("--least", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("flags", nargs="*", help="further flags of `mizzen serve`, after --")
    asked = parser.parse_args()
    options = SoakOptions(
        duration_s=asked.minutes * 60,
        num_users=asked.users,
        kill_every_s=asked.kill_every,
        least=asked.least,
        seed=asked.seed,
        flags=tuple(asked.flags),
    )
    verdict = run_soak(options)
    print("\n".join(verdict.lines()))
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
