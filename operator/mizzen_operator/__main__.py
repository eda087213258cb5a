"""Owns ``python -m mizzen_operator``: the package's verbs without the ``mizzen`` command."""

import sys

from mizzen_operator.cli import main

sys.exit(main(sys.argv[1:]))
