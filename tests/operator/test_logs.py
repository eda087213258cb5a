import json
import logging
import sys

from mizzen_operator.logs import JsonFormatter


def line(**extra: object) -> dict[str, object]:
    record = logging.makeLogRecord(
        {"name": "a.b", "levelno": 30, "levelname": "WARNING", "msg": "x %s", "args": ("y",)}
        | extra
    )
    found: dict[str, object] = json.loads(JsonFormatter().format(record))
    return found


def test_a_line_is_one_json_object_with_its_extra_values() -> None:
    found = line(service_uid="u", port=3)
    assert (found["level"], found["logger"], found["message"]) == ("warning", "a.b", "x y")
    assert (found["service_uid"], found["port"]) == ("u", 3)


def test_objects_in_extra_stay_out() -> None:
    assert "settings" not in line(settings=object())


def test_a_traceback_is_inside_the_line() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        found = line(exc_info=sys.exc_info())
    assert "ValueError: broken" in str(found["exception"])
