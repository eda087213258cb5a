"""Who decides how far a role is scaled: one rule, as a table."""

import pytest

from mizzen_operator.spec.scale import RoleScale, ScaleBounds, decided_scale


def of(asked: int, propagated: int) -> RoleScale:
    return RoleScale(asked=asked, propagated=propagated)


@pytest.mark.parametrize(
    ("written", "scaler", "remembered", "wanted"),
    [
        pytest.param(2, None, None, of(2, 2), id="a new service seeds its scaler"),
        pytest.param(2, of(2, 2), of(2, 2), of(2, 2), id="nothing happened"),
        pytest.param(2, of(7, 2), of(2, 2), of(7, 2), id="somebody wrote the scaler"),
        pytest.param(2, of(7, 2), None, of(7, 2), id="the same manifest is applied again"),
        pytest.param(5, of(7, 2), of(7, 2), of(5, 5), id="the field of the service changed"),
        pytest.param(7, of(7, 2), of(7, 2), of(7, 7), id="it changed to what the scaler has"),
        pytest.param(0, of(7, 2), of(7, 2), of(0, 0), id="it changed to zero"),
        pytest.param(2, of(0, 2), of(7, 2), of(0, 2), id="the scaler went to zero"),
        pytest.param(2, None, of(7, 2), of(7, 2), id="the scaler was deleted"),
        pytest.param(5, None, of(7, 2), of(5, 5), id="deleted while the field changed"),
        pytest.param(2, None, of(2, 2), of(2, 2), id="upgraded from a release without scalers"),
        pytest.param(3, None, of(2, 2), of(3, 3), id="edited during that upgrade"),
        pytest.param(3, None, of(0, 0), of(3, 3), id="stopped before that upgrade"),
    ],
)
def test_the_scaler_wins_unless_the_field_of_the_service_changed(
    written: int, scaler: RoleScale | None, remembered: RoleScale | None, wanted: RoleScale
) -> None:
    found = decided_scale(written, scaler=scaler, remembered=remembered)
    assert found == wanted
    assert decided_scale(written, scaler=found, remembered=found) == found


@pytest.mark.parametrize(("asked", "granted"), [(0, 1), (1, 1), (50, 50), (100, 100), (101, 100)])
def test_bounds_grant_the_nearest_number(asked: int, granted: int) -> None:
    assert ScaleBounds(lowest=1, highest=100).granted(asked) == granted
