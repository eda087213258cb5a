"""Owns blacking out what may be a secret, in manifests and in free text.

Does not own what is collected (``bundle``); only text of the type `Redacted` gets into an archive.
Pure. It errs on the side of blacking out. References to Secrets stay: they hold names only.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NewType

Redacted = NewType("Redacted", str)

BLACK = "REDACTED"
_DROPPED_METADATA = frozenset({"managedFields"})
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_SECRET_WORDS = frozenset(
    {
        *("token", "secret", "password", "passwd", "pwd", "passphrase", "credential"),
        *("credentials", "key", "keys", "apikey", "auth", "authorization", "bearer", "cookie"),
        *("signature", "dsn", "jwt", "pass", "cred", "creds", "sig"),
    }
)
_SECRET_ENDS = (
    *("token", "secret", "secrets", "password", "passwords"),
    *("apikey", "accesskey", "secretkey", "privatekey"),
)
"""Of names that are written as one word, such as MYTOKEN."""
_OWN_VARIABLES = (
    *("MIZZEN_", "POD_", "NODE_", "OMP_", "TRITON_", "NVIDIA_", "CUDA_"),
    *("HOME", "PATH"),
)
"""Of other variables no value is kept, whatever they are called: their names are the users'."""
_KEPT_ANNOTATIONS = ("serving.mizzen.dev/", "deployment.kubernetes.io/", "kubernetes.io/")
"""Of other annotations no value is kept: deployers keep whole objects there."""
_PLAIN_NAMES = frozenset({"key", "secret", "keys", "serving.mizzen.dev/keys"})
"""Names of fields of Kubernetes that hold names: of an entry, of a label, of a volume; and our
label that tells which keys a pod has."""
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_FLAG = re.compile(r"(--?[A-Za-z][\w-]*)(=)?(.*)", re.DOTALL)

_NAMED = (
    r"(?:(?:api|access|secret|private|admin|account)[_-]?keys?|secrets?|passw(?:or)?ds?|pass|"
    r"passphrase|creds?|credentials?|tokens?|signature|sig|cookies?)"
)
# No pattern may begin with a repetition: on long words it would take quadratic time.
_NAMED_VALUE = re.compile(
    rf"(?i)({_NAMED}\\?[\"']?[ \t]*[:=][ \t]*)"
    r"(\\\"[^\"\\]*\\\"|\"(?:\\.|[^\"\\])*\"|'[^']*'|\[[^\]\n]*\]|"
    r"(?!\d+(?:\.\d+)?(?![\w.-]))[^\s,;&\"'}\])]+)"
)
"""A name, and what is given for it: in quotes, in quotes inside JSON, a list, or bare.

A bare number is no secret: `tokens: 512` is what a log is read for.
"""
_QUOTES = ('\\"', '"', "'")
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    # The end of a key whose beginning was cut off.
    (re.compile(r"\A(?:(?!-----BEGIN ).)*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL), BLACK),
    (
        re.compile(
            r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
            re.DOTALL,
        ),
        BLACK,
    ),
    (
        re.compile(r"(?i)(authorization[\"']?\s*[:=]\s*[\"']?)(?!REDACTED)(?:\w+ )?[^\s\"',]+"),
        rf"\1{BLACK}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {BLACK}"),
    (
        re.compile(r"(?i)(--[\w-]*(?:key|token|secret|pass|cred)[\w-]*[ \t]+)(?![-\d])[^\s\"',]+"),
        rf"\1{BLACK}",
    ),
    (re.compile(r"( -u[ \t]*)[^\s:\"']+:[^\s\"']+"), rf"\1{BLACK}"),
    (
        re.compile(
            r"(?i)(\"name\"\s*:\s*\"[^\"]{0,200}(?:key|token|secret|pass|cred|auth)[^\"]{0,200}\""
            r"\s*,\s*\"value\"\s*:\s*)\"(?:\\.|[^\"\\])*\""
        ),
        rf'\1"{BLACK}"',
    ),
    (re.compile(r"(\b[a-z][a-z0-9+]{1,12}://)[^\s/@\"']+@"), rf"\1{BLACK}@"),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?"), BLACK),
    (re.compile(r"\b(?:hf|gh[pousr]|npm|dckr_pat|github_pat)_[\w-]{12,}"), BLACK),
    (re.compile(r"\b(?:sk|glpat|xox[abprs])-[\w-]{12,}"), BLACK),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), BLACK),
)  # fmt: skip


def redacted_text(text: str) -> Redacted:
    """Free text, such as a log, without what looks like a key, a token or a password."""
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return Redacted(_NAMED_VALUE.sub(_without_value, text))


def redacted_document(value: Any) -> Redacted:
    """JSON of objects; each map with metadata in it is taken for a manifest."""
    return Redacted(f"{json.dumps(_redacted(value), indent=1, ensure_ascii=False)}\n")


def _without_value(found: re.Match[str]) -> str:
    quote = next((mark for mark in _QUOTES if found[2].startswith(mark)), "")
    return f"{found[1]}{quote}{BLACK}{quote}"


def is_secret_name(name: str) -> bool:
    """Whether something of this name (HF_TOKEN, apiKey, --admin-key) may hold a secret."""
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words)


def _redacted_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata without what only repeats the object: its literal values would come back there."""
    annotations = {
        key: _redacted(value) if key.startswith(_KEPT_ANNOTATIONS) else BLACK
        for key, value in (metadata.get("annotations") or {}).items()
        if key != _LAST_APPLIED
    }
    kept = {
        key: _redacted(value)
        for key, value in metadata.items()
        if key not in ("annotations", *_DROPPED_METADATA)
    }
    return {**kept, "annotations": annotations} if annotations else kept


def _redacted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return _redacted_map(value)
    if isinstance(value, list | tuple):
        return _redacted_list(value)
    return redacted_text(value) if isinstance(value, str) else value


def _redacted_map(value: Mapping[str, Any]) -> dict[str, Any]:
    name = value.get("name")
    # The value of a variable may be a number in a pod template, which has no schema.
    if isinstance(name, str) and isinstance(value.get("value"), str | int | float):
        # A variable of a container, or a header of a probe.
        rest = {key: _redacted(item) for key, item in value.items() if key != "value"}
        is_plain = name.startswith(_OWN_VARIABLES) and not is_secret_name(name)
        is_known = is_plain or not value["value"]
        return {**rest, "value": _redacted(value["value"]) if is_known else BLACK}
    return {key: _redacted_field(key, item) for key, item in value.items()}


def _redacted_field(key: str, value: Any) -> Any:
    if key == "metadata" and isinstance(value, Mapping):
        return _redacted_metadata(value)
    return BLACK if value and _holds_secret(key, value) else _redacted(value)


def _holds_secret(key: str, value: Any) -> bool:
    is_reference = key in _PLAIN_NAMES or key.endswith(("Name", "Names", "Ref", "Path"))
    return isinstance(value, str) and not is_reference and is_secret_name(key)


def _redacted_list(items: Sequence[Any]) -> list[Any]:
    """A list, which may be a command line: the value of a secret flag may follow it."""
    result: list[Any] = []
    is_value = False
    for item in items:
        if not isinstance(item, str):
            result.append(_redacted(item))
            is_value = False
            continue
        flag = _FLAG.fullmatch(item)
        if is_value and flag is None:
            result.append(BLACK)
            is_value = False
            continue
        is_secret = flag is not None and is_secret_name(flag[1])
        if flag is not None and is_secret and flag[2]:
            result.append(f"{flag[1]}={BLACK}")
        else:
            result.append(redacted_text(item))
        is_value = flag is not None and is_secret and not flag[2]
    return result
