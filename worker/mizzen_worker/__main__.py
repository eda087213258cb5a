"""Runs the command with ``python -m mizzen_worker``; owns nothing."""

import sys

from mizzen_worker.cli import main

if __name__ == "__main__":
    sys.exit(main())
