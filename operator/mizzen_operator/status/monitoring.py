"""Owns the judgement whether the monitoring that a service asked for is there.

Does not own the other conditions (``judge``). Serving does not depend on it, so Ready does not.
"""

from collections.abc import Iterator

from mizzen_operator.observed import Observed
from mizzen_operator.render.kinds import MONITORING
from mizzen_operator.render.monitoring import MONITORING_API, asked_kinds
from mizzen_operator.render.names import monitoring_name
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.status.conditions import Verdict, no, yes
from mizzen_operator.status.lacks import Remedy, lack_sentence
from mizzen_operator.status.running import MONITORING_READY

_REMEDY = Remedy(
    source=f"the Prometheus Operator, which brings {MONITORING_API}", chart_value=MONITORING
)


def monitoring_ready(resolved: Resolved, observed: Observed) -> Iterator[Verdict]:
    """One verdict if monitoring is asked for, none otherwise."""
    asked = asked_kinds(resolved)
    if not asked:
        return
    name = monitoring_name(resolved)
    lacking = [(kind, observed.lacking[kind]) for kind in asked if kind in observed.lacking]
    if lacking:
        why = lacking[0][1]
        kinds = [kind for kind, reason in lacking if reason is why]
        fields = " and ".join(asked[kind] for kind in kinds)
        what = lack_sentence(why, " or ".join(kinds), name, _REMEDY)
        off = f"or set {'it' if len(kinds) == 1 else 'them'} to false"
        yield no(MONITORING_READY, why.value, f"{fields}: {what}, {off}")
        return
    there = {
        child.kind
        for child in observed.children
        if child.name == name and observed.owns(child) and not child.deleting
    }
    missing = [kind for kind in asked if kind not in there]
    if missing and resolved.spec.paused:
        yield no(
            MONITORING_READY, "Paused", f"spec.paused is true: {missing[0]} {name} is not made"
        )
        return
    if missing:
        yield no(MONITORING_READY, "NotApplied", f"{missing[0]} {name} does not exist yet")
        return
    yield yes(MONITORING_READY, "Applied", f"{', '.join(asked)} {name}")
