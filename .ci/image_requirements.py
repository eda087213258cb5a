"""Cut requirements.lock down to what one image needs, hashes included.

Owns nothing but the cut: which packages an extra needs is decided by `uv pip compile`, whose
output (`name==version` lines) arrives on standard input; the versions and hashes are the lock's.
"""

import re
import sys
from pathlib import Path

_ENTRY = re.compile(r"^([A-Za-z0-9._-]+)==")


def normalised(name: str) -> str:
    """The one spelling of a package name that indices compare by."""
    return re.sub(r"[-_.]+", "-", name).lower()


def cut(lock: str, resolved: str) -> str:
    """The entries of `lock` that `resolved` names; an unknown name is an error, not a guess."""
    entries: dict[str, str] = {}  # one name may have an entry per Python version
    for block in re.split(r"\n(?=\S)", lock.strip()):
        if match := _ENTRY.match(block):
            name = normalised(match[1])
            entries[name] = f"{entries.get(name, '')}{block}\n"
    wanted = [
        normalised(match[1]) for line in resolved.splitlines() if (match := _ENTRY.match(line))
    ]
    if missing := [name for name in wanted if name not in entries]:
        message = f"requirements.lock has no entry for {', '.join(missing)}: run `make lock`"
        raise SystemExit(message)
    return "".join(entries[name] for name in sorted(set(wanted)))


if __name__ == "__main__":
    sys.stdout.write(cut(Path(sys.argv[1]).read_text(encoding="utf-8"), sys.stdin.read()))
