"""Owns the flag reference of the documentation, written from the table of options. Pure.

``python -m mizzen_worker.config.reference > docs/reference/flags.md`` writes it again.
"""

import sys

from mizzen_worker.config.option import Role
from mizzen_worker.config.options import options_of


def flag_reference() -> str:
    """Write the page."""
    lines = [
        "# Flags",
        "",
        "Each flag is also a key of the YAML file given with `--config FILE`, without the dashes",
        "in front; a flag wins over the file. `mizzen show-config VERB` prints what each resolves",
        "to and where the value is from. This page is generated:",
        "`python -m mizzen_worker.config.reference > docs/reference/flags.md`.",
    ]
    for role in Role:
        lines += [
            "",
            f"## mizzen {role.value}",
            "",
            "| flag | default | meaning |",
            "|---|---|---|",
        ]
        for option in options_of(role):
            words = "\\|".join(option.choices) or option.metavar
            value = "" if option.is_switch else f" {words}"
            default = "-" if option.default is None else f"`{option.default}`"
            lines.append(f"| `{option.flag}`{value} | {default} | {option.help} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(flag_reference())
