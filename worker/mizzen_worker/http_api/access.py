"""Owns who may use which route: keys, read from files, compared in constant time; owns no routes.

A file holds one key a line, so that an old and a new one are both taken while clients change over.
The admin key opens everything, an API key everything but administration, which without admin keys
does not exist.
"""

import enum
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.http_api.refusals import AccessError

MIN_KEY_CHARS = 16
_BEARER = "bearer "
_HEADERS = "Authorization: Bearer KEY, or X-Api-Key: KEY"


class Gate(enum.Enum):
    """What opens a route."""

    OPEN = "open"
    """Nothing: probes."""
    API = "api"
    """An API key, where there are any."""
    ADMIN = "admin"
    """The admin key; without one the route does not exist."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessKeys:
    """Keys of one front process; none of a kind means that kind is not asked for."""

    api: tuple[bytes, ...] = ()
    admin: tuple[bytes, ...] = ()

    def check(self, gate: Gate, headers: Mapping[str, str]) -> None:
        """Raise ``AccessError`` when the headers bring no key that opens the gate."""
        if gate is Gate.OPEN or (gate is Gate.API and not self.api):
            return
        given = _given_key(headers)
        if given is not None:
            is_admin = _is_any(given, self.admin)
            if is_admin or (gate is Gate.API and _is_any(given, self.api)):
                return
        what = "the admin key" if gate is Gate.ADMIN else "an API key"
        fault = "brings none" if given is None else "brings a wrong one"
        msg = f"this route needs {what} and the request {fault}; send {_HEADERS}"
        raise AccessError(msg)


def read_access_keys(api_key_file: str | None, admin_key_file: str | None) -> AccessKeys:
    """Read the key files that the flags name; raises ``ConfigError``."""
    return AccessKeys(
        api=read_keys(api_key_file, flag="--api-key-file"),
        admin=read_keys(admin_key_file, flag="--admin-key-file"),
    )


def read_keys(path: str | None, *, flag: str) -> tuple[bytes, ...]:
    """Read the keys of a file; raises ``ConfigError`` naming the flag, never showing a key."""
    if path is None:
        return ()
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{flag}: {path} cannot be read: {error}; give a text file with one key a line"
        raise ConfigError(msg) from error
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        msg = f"{flag}: {path} holds no key; write one a line"
        raise ConfigError(msg)
    for place, key in enumerate(keys, start=1):
        if len(key) < MIN_KEY_CHARS or not key.isascii() or any(char.isspace() for char in key):
            msg = (
                f"{flag}: key {place} of {path} is shorter than {MIN_KEY_CHARS} characters, or "
                "holds spaces or letters beyond ASCII; write a longer, plain one"
            )
            raise ConfigError(msg)
    return tuple(key.encode() for key in keys)


def _given_key(headers: Mapping[str, str]) -> bytes | None:
    authorization = headers.get("authorization", "")
    if authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip().encode()
    key = headers.get("x-api-key")
    return None if key is None else key.encode()


def _is_any(given: bytes, keys: Iterable[bytes]) -> bool:
    """Compare with every key, so that the time tells nothing about which is near."""
    found = False
    for key in keys:
        found |= hmac.compare_digest(given, key)
    return found
