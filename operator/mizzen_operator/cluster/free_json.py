"""Owns the form in which objects that hold JSON without a schema are sent: as YAML; pure.

Does not own sending. The API server keeps such JSON as it was sent, blanks included. A patch of
anything else in the object writes it anew without them, which it then refuses as a change of what
must not change. What is sent as YAML it writes its own way at once.
"""

import json
import re

from mizzen_operator.store import CONTROLLER_REVISION, Manifest, ResourceKind

YAML = "application/yaml"
_NOT_PLAIN = re.compile(r"[^\x20-\x7e]")


def yaml_of(kind: ResourceKind, manifest: Manifest) -> bytes | None:
    """The manifest as YAML; None for kinds that hold no such JSON."""
    if kind != CONTROLLER_REVISION:
        return None
    text = json.dumps(manifest, ensure_ascii=False)
    # JSON's escapes for characters beyond 16 bits are not YAML's.
    return _NOT_PLAIN.sub(lambda found: f"\\U{ord(found[0]):08x}", text).encode()
