import contextlib

import kopf
from kubernetes.client import Configuration

from mizzen_operator.handlers import connection_info, watch_registry, watch_settings
from mizzen_operator.spec.model import GROUP
from mizzen_operator.store import CHILD_SELECTOR, SERVICE_KIND, WATCHED_KINDS


def registry() -> kopf.OperatorRegistry:
    return watch_registry(lambda kind, event, manifest: None, Configuration)


def test_every_watched_kind_has_one_raw_event_handler_and_nothing_else() -> None:
    found = registry()
    assert [handler.id for handler in found._watching.get_all_handlers()] == [
        kind.plural for kind in WATCHED_KINDS
    ]
    for banned in (found._changing, found._spawning, found._indexing, found._webhooks):
        assert list(banned.get_all_handlers()) == []


def test_kopf_has_nothing_to_write() -> None:
    settings = watch_settings()
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
    assert settings.scanning.disabled is True
    assert settings.persistence.finalizer == f"{GROUP}/never-used"


def test_only_services_are_watched_without_a_label_selector() -> None:
    selectors = watch_settings().watching.label_selectors
    assert len(selectors) == len(WATCHED_KINDS) - 1
    assert set(selectors.values()) == {CHILD_SELECTOR}
    assert SERVICE_KIND in WATCHED_KINDS


def test_credentials_reach_kopf() -> None:
    configuration = Configuration(host="https://api:6443")
    configuration.api_key["BearerToken"] = "Bearer abc"
    configuration.ssl_ca_cert = "/ca.crt"
    info = connection_info(configuration)
    assert (info.server, info.scheme, info.token) == ("https://api:6443", "Bearer", "abc")
    assert info.ca_path == "/ca.crt"
    configuration.api_key["BearerToken"] = "abc"
    assert connection_info(configuration).token == "abc"


def test_events_are_forwarded_as_they_are() -> None:
    seen = []
    found = watch_registry(lambda *news: seen.append(news), Configuration)
    handler = next(iter(found._watching.get_all_handlers()))
    forward = handler.fn(event={"type": None, "object": {"a": 1}})
    with contextlib.suppress(StopIteration):
        forward.send(None)
    assert seen == [(SERVICE_KIND, "", {"a": 1})]
