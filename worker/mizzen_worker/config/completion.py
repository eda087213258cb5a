"""Owns completion scripts for three shells, written from the table of options. Pure."""

from collections.abc import Sequence

from mizzen_worker.config.option import SERVING_ROLES, Option, Role
from mizzen_worker.config.options import options_of

SHELLS = ("bash", "zsh", "fish")


def completion_script(shell: str, verbs: Sequence[str]) -> str:
    """Write the script of one shell; ``verbs`` are all that are registered."""
    writers = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    return writers[shell](verbs)


def _bash(verbs: Sequence[str]) -> str:
    cases = "\n".join(
        f'    {role.value}) words="--config {" ".join(o.flag for o in options_of(role))}" ;;'
        for role in Role
    )
    choices = "\n".join(
        f'    {option.flag}) COMPREPLY=($(compgen -W "{" ".join(option.choices)}" -- "$current"));'
        " return ;;"
        for option in sorted(
            {o.flag: o for r in Role for o in options_of(r) if o.choices}.values(),
            key=lambda option: option.flag,
        )
    )
    return f"""\
_mizzen() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W "{" ".join(verbs)} --help --version" -- "$current"))
    return
  fi
  case "$previous" in
{choices}
  esac
  case "${{COMP_WORDS[1]}}" in
{cases}
    show-config) words="{" ".join(role.value for role in SERVING_ROLES)}" ;;
    completion) words="{" ".join(SHELLS)}" ;;
  esac
  case "$current" in
    -*) COMPREPLY=($(compgen -W "$words --help" -- "$current")) ;;
    *) COMPREPLY=($(compgen -W "$words" -- "$current") $(compgen -f -- "$current")) ;;
  esac
}}
complete -o filenames -F _mizzen mizzen
"""


def _zsh(verbs: Sequence[str]) -> str:
    cases = "\n".join(
        "    {}) _arguments -s {} '*:file:_files' ;;".format(
            role.value, " ".join(_zsh_argument(option) for option in options_of(role))
        )
        for role in Role
    )
    return f"""\
#compdef mizzen
_mizzen() {{
  local -a verbs=({" ".join(verbs)})
  if (( CURRENT == 2 )); then
    compadd -- $verbs --help --version
    return
  fi
  local verb=${{words[2]}}
  shift words
  (( CURRENT-- ))
  case $verb in
{cases}
    show-config) compadd -- {" ".join(role.value for role in SERVING_ROLES)} ;;
    completion) compadd -- {" ".join(SHELLS)} ;;
  esac
}}
compdef _mizzen mizzen
"""


def _zsh_argument(option: Option) -> str:
    text = option.help.replace("'", "").replace("[", "(").replace("]", ")").replace(":", " ")
    if option.is_switch:
        return f"'{option.flag}[{text}]'"
    values = f"({' '.join(option.choices)})" if option.choices else "_files"
    return f"'{option.flag}[{text}]:{option.metavar}:{values}'"


def _fish(verbs: Sequence[str]) -> str:
    lines = [
        "complete -c mizzen -f",
        f"complete -c mizzen -n __fish_use_subcommand -a '{' '.join(verbs)}'",
        "complete -c mizzen -n '__fish_seen_subcommand_from show-config' "
        f"-a '{' '.join(role.value for role in SERVING_ROLES)}'",
        f"complete -c mizzen -n '__fish_seen_subcommand_from completion' -a '{' '.join(SHELLS)}'",
    ]
    for role in Role:
        seen = f"-n '__fish_seen_subcommand_from {role.value}'"
        lines.append(f"complete -c mizzen {seen} -F")
        for option in options_of(role):
            text = option.help.replace("'", "")
            takes = "" if option.is_switch else " -r"
            choices = f" -f -a '{' '.join(option.choices)}'" if option.choices else ""
            name = option.flag.removeprefix("--")
            lines.append(f"complete -c mizzen {seen} -l {name}{takes}{choices} -d '{text}'")
    return "\n".join(lines) + "\n"
