"""Owns typed reading of a model's numbers, whatever file they are from; owns no file format."""

from collections.abc import Mapping
from math import inf

from mizzen_worker.contracts.errors import ModelLoadError
from mizzen_worker.models.model_facts import MAX_SIZE


class TypedValues:
    """Values by key; ``place`` begins every complaint, as in ``config.json: ``."""

    def __init__(self, place: str, values: Mapping[str, object]) -> None:
        self.place = place
        self._values = values

    def __contains__(self, key: str) -> bool:
        """Tell whether the key is there, be its value null."""
        return key in self._values

    def value(self, key: str) -> object | None:
        """The value, None when absent or null."""
        return self._values.get(key)

    def integer(
        self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_SIZE
    ) -> int:
        """An integer in a range that must be there unless there is a default."""
        found = self.value(key)
        if found is None and default is not None:
            return default
        if not isinstance(found, int) or isinstance(found, bool) or not least <= found <= most:
            raise self._unusable(key, found, f"an integer from {least} to {most}")
        return found

    def number(self, key: str, default: float | None = None) -> float:
        """A number above 0 that must be there unless there is a default."""
        found = self.value(key)
        if found is None and default is not None:
            return default
        if not isinstance(found, int | float) or isinstance(found, bool) or not 0 < found < inf:
            raise self._unusable(key, found, "a number above 0")
        return float(found)

    def flag(self, key: str) -> bool:
        """A truth value, false when absent."""
        found = self.value(key)
        if found is not None and not isinstance(found, bool):
            raise self._unusable(key, found, "true or false")
        return found is True

    def _unusable(self, key: str, found: object, needed: str) -> ModelLoadError:
        return ModelLoadError(
            f"{self.place}{key} is {found!r}, {needed} is needed; "
            "download or convert the model again"
        )
