"""Owns telling that a pinned service could follow newer defaults of the operator.

Does not own the pin (``spec/resolve``) nor the other conditions (``judge``). Nothing is wrong with
either choice, so the condition is there only while it is true.
"""

from collections.abc import Iterator

from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.status.conditions import Verdict, yes
from mizzen_operator.status.running import UPDATE_AVAILABLE


def update_available(resolved: Resolved) -> Iterator[Verdict]:
    """One verdict if ``updatePolicy: Follow`` would change pods, none otherwise."""
    pinned, offered = resolved.pinned, resolved.offered
    images = resolved.spec.engine.images
    is_split = resolved.tokenizer is not None
    choices = (
        ("template version", True, pinned.template_version, offered.template_version),
        (
            "frontend image",
            is_split and images.frontend is None,
            pinned.frontend_image,
            offered.frontend_image,
        ),
        ("worker image", images.worker is None, pinned.worker_image, offered.worker_image),
    )
    changes = [
        f"{name} {new} in place of {old}"
        for name, is_in_use, old, new in choices
        if is_in_use and old != new
    ]
    if changes:
        yield yes(
            UPDATE_AVAILABLE,
            "PinnedToOthers",
            f"the operator's defaults are {', '.join(changes)}; spec.updatePolicy Follow takes "
            "them, which rolls the service",
        )
