#!/bin/bash
# Ends every local cluster of this user and gives back the disk that set-up and the demo took.
set -euo pipefail
cd "$(dirname "$0")/.."
cache="${XDG_CACHE_HOME:-$HOME/.cache}/mizzen"

for record in "$cache"/cells/*.lock; do
    [[ -e "$record" ]] || continue
    name=$(basename "$record" .lock)
    echo "clean: ending cluster $name"
    ended=""
    for python in .venv/bin/python python3.11 python3.12 python3.13 python3; do
        command -v "$python" >/dev/null || continue
        if "$python" -m tests.devcluster down --name "$name"; then
            ended=yes
            break
        fi
    done
    if [[ -z "$ended" ]]; then
        echo "clean: cluster $name could not be ended, so nothing was removed: see above" >&2
        exit 1
    fi
done
# What a killed build left mounted would otherwise keep its folder.
awk -v below="$cache/" 'index($2, below) == 1 {print $2}' /proc/self/mounts | sort -r |
    while read -r mounted; do umount "$mounted"; done
chmod -R u+w "$cache" 2>/dev/null || true
rm -rf "$cache" .venv out build ./*.egg-info .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
find operator worker tests -name __pycache__ -prune -exec rm -rf {} +
find operator worker -maxdepth 1 -name '*.egg-info' -exec rm -rf {} +
echo "clean: removed $cache, .venv and the caches of the tools"
