#!/bin/bash
# From a bare Debian 12 to everything that `make demo` and `make test` need: installs the packages
# that are missing, finds a Python, and hands over to tests/devcluster/setup.py for all the rest.
#   .ci/setup.sh [STEP ...]        no step: all of `make setup`
set -euo pipefail
cd "$(dirname "$0")/.."

basic=(ca-certificates g++ gcc git make python3 python3-dev python3-venv)
cluster=(buildah conntrack containernetworking-plugins debootstrap iproute2 iptables kmod mount
         nftables openssl procps runc util-linux)

wanted=("${basic[@]}")
if [[ "$*" != "python" ]]; then
    wanted+=("${cluster[@]}")
fi

missing=()
if ! command -v dpkg-query >/dev/null; then
    echo "setup: this is no Debian: install by hand what .ci/setup.sh lists, then go on" >&2
else
    for package in "${wanted[@]}"; do
        state=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
        [[ "$state" == installed ]] || missing+=("$package")
    done
fi

if (( ${#missing[@]} )); then
    if (( EUID != 0 )); then
        echo "setup: ${missing[*]} must be installed, which needs root:" \
             "run \`apt-get install ${missing[*]}\` as root, then this again" >&2
        exit 1
    fi
    mkdir -p out/setup
    echo "setup: installing ${missing[*]}"
    if ! { apt-get update && DEBIAN_FRONTEND=noninteractive \
           apt-get install --yes --no-install-recommends "${missing[@]}"; } \
           < /dev/null > out/setup/packages.log 2>&1; then
        tail -n 5 out/setup/packages.log >&2
        echo "setup: the packages could not be installed: see out/setup/packages.log" >&2
        exit 1
    fi
fi

for candidate in python3.11 python3.12 python3.13 python3 /usr/bin/python3; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
        2>/dev/null; then
        exec "$candidate" -m tests.devcluster.setup "$@"
    fi
done
echo "setup: no Python 3.11, 3.12 or 3.13 with venv was found: install python3 and python3-venv" >&2
exit 1
