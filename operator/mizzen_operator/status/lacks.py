"""Owns the sentence about a kind of object that was asked for and that the cluster lacks.

Does not own which kinds are asked for, nor what it means to the service (``monitoring``,
``routes``).
"""

from dataclasses import dataclass

from mizzen_operator.observed import Lack

_BY_LACK = {
    Lack.NOT_INSTALLED: "this cluster does not know {kinds}; install {source}",
    Lack.NOT_ALLOWED: "the operator has no right to {kinds}; install its chart with "
    "{chart_value}=true",
    Lack.NO_ANSWER: "the API server gives no list of {kinds}; wait, its error is in the operator's "
    "log",
    Lack.NAME_TAKEN: "the name {name} is taken: this service does not own the {kinds} that has it "
    "in this namespace; delete or rename that",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """What makes a kind available."""

    source: str
    """What brings the API, and which."""
    chart_value: str
    """Value of the operator's chart that gives the right to it."""


def lack_sentence(why: Lack, kinds: str, name: str, remedy: Remedy) -> str:
    """Why objects of these kinds are not there, and what to do."""
    return _BY_LACK[why].format(
        kinds=kinds, name=name, source=remedy.source, chart_value=remedy.chart_value
    )
