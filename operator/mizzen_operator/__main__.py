"""Owns ``python -m mizzen_operator``: the package's verbs without the ``mizzen`` command."""

import sys

from mizzen_operator import cli
from mizzen_operator.prove_upgrade import prove_upgrade_verb
from mizzen_operator.support import verbs

sys.exit(cli.main(sys.argv[1:], {**cli.VERBS, "prove-upgrade": prove_upgrade_verb, **verbs.VERBS}))
