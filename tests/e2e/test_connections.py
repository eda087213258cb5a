"""The kernel's table is read rightly, and rules are told from each other; no cluster is needed."""

import pytest
from tests.e2e.connections import Connection, Rule, is_allowed, is_let_by, parse, rules_of
from tests.operator.documents import resolved

from mizzen_operator.render import labels
from mizzen_operator.render.network_policy import network_policies

TABLE = """\
ipv4     2 tcp      6 86390 ESTABLISHED src=10.1.0.2 dst=10.96.0.7 sport=40000 dport=80 \
src=10.1.0.3 dst=10.1.0.2 sport=30000 dport=40000 [ASSURED] mark=0 zone=0 use=2
ipv4     2 udp      17 29 src=10.1.0.2 dst=10.1.0.9 sport=5000 dport=53 [UNREPLIED] \
src=10.1.0.9 dst=10.1.0.2 sport=53 dport=5000 mark=0 zone=0 use=2
ipv4     2 icmp     1 29 src=10.1.0.2 dst=10.1.0.3 type=8 code=0 id=1 \
src=10.1.0.3 dst=10.1.0.2 type=0 code=0 id=1 mark=0 zone=0 use=2
"""
TOKENIZER, WORKER, STRANGER = "10.1.0.2", "10.1.0.3", "10.1.0.9"
SERVICE = resolved(topology="Split")
POLICIES = network_policies(SERVICE, have_followers=False)
PODS = {
    TOKENIZER: labels.role_selector(SERVICE, labels.ROLE_TOKENIZER),
    WORKER: labels.role_selector(SERVICE, labels.ROLE_WORKER),
}


def test_the_kernels_table_is_read_with_services_translated() -> None:
    assert list(parse(TABLE)) == [
        Connection("TCP", TOKENIZER, WORKER, 30000),
        Connection("UDP", TOKENIZER, STRANGER, 53),
    ]


@pytest.mark.parametrize(
    ("connection", "rules"),
    [
        (
            Connection("TCP", TOKENIZER, WORKER, 30001),
            {
                Rule("demo-tokenizer", "Egress", "TCP", 30001),
                Rule("demo-worker", "Ingress", "TCP", 30001),
            },
        ),
        (
            Connection("UDP", WORKER, STRANGER, 53),
            {Rule("demo-worker", "Egress", "UDP", 53)},
        ),
        (
            Connection("TCP", STRANGER, TOKENIZER, 30000),
            {Rule("demo-tokenizer", "Ingress", "TCP", 30000)},
        ),
    ],
)
def test_a_connection_is_let_by_the_rules_that_are_for_it(
    connection: Connection, rules: set[Rule]
) -> None:
    assert is_allowed(POLICIES, connection, PODS)
    letting = {r for r, only in rules_of(POLICIES) if is_let_by(r, only, connection, PODS)}
    assert letting == rules


@pytest.mark.parametrize(
    "connection",
    [
        Connection("UDP", TOKENIZER, WORKER, 30001),
        Connection("TCP", WORKER, TOKENIZER, 30000),
        Connection("TCP", STRANGER, WORKER, 30001),
        Connection("TCP", WORKER, STRANGER, 443),
    ],
)
def test_what_nobody_needs_is_not_let(connection: Connection) -> None:
    assert not is_allowed(POLICIES, connection, PODS)
