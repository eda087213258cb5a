"""Owns `python -m tests.devcluster`; see cli.py."""

import sys

from tests.devcluster.cli import main

if __name__ == "__main__":
    sys.exit(main())
