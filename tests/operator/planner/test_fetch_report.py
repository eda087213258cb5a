"""What is read out of a termination message, whatever is in it."""

import json

import pytest

from mizzen_operator.planner.fetch_report import MAX_SENTENCE, WeightsReason, report_of


def test_a_report_of_the_downloader_is_read_whole() -> None:
    report = report_of(
        '{"reason": "RateLimited", "message": "429.", "resolvedRevision": "abc", "bytes": 7}'
    )
    assert report.reason is WeightsReason.RATE_LIMITED
    assert (report.sentence, report.revision, report.size_bytes) == ("429", "abc", 7)


@pytest.mark.parametrize("reason", ["Done", "Interrupted", "Downloading", "SourceChanged", 3, None])
def test_only_reasons_of_failure_that_it_knows_are_taken_from_it(reason: object) -> None:
    assert report_of(f'{{"reason": {json.dumps(reason)}}}').reason is None


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("Traceback\nMemoryError: 5\n", "MemoryError: 5"),
        ("[1, 2]", "[1, 2]"),
        ('{"reason": ', '{"reason":'),
        ("", ""),
        ("x" * 4000, "x" * MAX_SENTENCE),
    ],
)
def test_anything_else_is_a_sentence(text: str, sentence: str) -> None:
    report = report_of(text)
    assert (report.reason, report.sentence) == (None, sentence)


def test_values_of_another_type_are_passed_over() -> None:
    report = report_of('{"message": null, "bytes": "many", "resolvedRevision": null}')
    assert (report.sentence, report.size_bytes, report.revision) == ("", 0, "")
