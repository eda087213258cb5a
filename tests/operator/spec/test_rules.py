"""Every rule of the table accepts its good examples and refuses its bad ones."""

import re

import pytest
from tests.operator.spec.rule_examples import RULE_EXAMPLES, SCHEMA_EXAMPLES, document

from mizzen_operator.errors import SpecError
from mizzen_operator.spec.parse import parse
from mizzen_operator.spec.rules import RULES, Rule
from mizzen_operator.spec.validate import validate

BY_ID = {rule.id: rule for rule in RULES}


def test_ids_are_unique_and_every_rule_has_examples() -> None:
    assert len(BY_ID) == len(RULES)
    assert set(RULE_EXAMPLES) == set(BY_ID)
    assert all(example.good and example.bad for example in RULE_EXAMPLES.values())


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_good_examples_are_accepted(rule: Rule) -> None:
    for patch in RULE_EXAMPLES[rule.id].good:
        assert validate(parse(document(patch))) == []


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_bad_examples_are_refused_with_the_field(rule: Rule) -> None:
    for patch in RULE_EXAMPLES[rule.id].bad:
        problems = validate(parse(document(patch)))
        message = rule.problem(parse(document(patch))).message
        named = [problem for problem in problems if problem.message == message]
        assert [problem.field for problem in named] == [rule.field]
        assert named[0].remedy


@pytest.mark.parametrize("field", SCHEMA_EXAMPLES)
def test_schema_bounds_hold_in_python(field: str) -> None:
    for patch in SCHEMA_EXAMPLES[field].good:
        assert validate(parse(document(patch))) == []
    for patch in SCHEMA_EXAMPLES[field].bad:
        with pytest.raises(SpecError) as caught:
            parse(document(patch))
        fields = [problem.field for problem in caught.value.problems]
        assert all(path.startswith(field) for path in fields), fields


def test_a_problem_shows_the_value() -> None:
    (problem,) = validate(parse(document(RULE_EXAMPLES["name"].bad[0])))
    assert problem.value == "1a"
    assert "metadata.name" in problem.sentence()
    assert "1a" in problem.sentence()


@pytest.mark.parametrize("cache", [{}, {"cache": {"size": "1Gi"}}])
def test_two_sources_are_one_problem(cache: dict[str, object]) -> None:
    source = {"pvc": {"claimName": "w"}, "s3": {"bucket": "models"}}
    patch = {"spec": {"model": {"source": source, **cache}}}
    (problem,) = validate(parse(document(patch)))
    assert problem.field == "spec.model.source"


def test_a_request_above_its_limit_is_said_in_plain_words() -> None:
    resources = {
        "requests": {"cpu": 1, "memory": "1Gi"},
        "limits": {"cpu": 1, "memory": "512Mi"},
    }
    for spec in (
        {"worker": {"resources": resources}},
        {"topology": "Split", "tokenizer": {"resources": resources}},
    ):
        (problem,) = validate(parse(document({"spec": spec})))
        assert problem.sentence() == (
            f"{problem.field}: memory request 1Gi is above its limit 512Mi; "
            "lower the request or raise the limit"
        )


def test_no_problem_shows_a_python_literal() -> None:
    for rule in RULES:
        for patch in RULE_EXAMPLES[rule.id].bad:
            value = rule.problem(parse(document(patch))).value
            assert not re.search(r"[{\[]'|: (True|False)$", value), (rule.id, value)


def test_messages_are_one_sentence_without_a_full_stop() -> None:
    for rule in RULES:
        assert re.fullmatch(r"[^\n.]+(\.[a-zA-Z]+[^\n.]*)*", rule.message), rule.id
