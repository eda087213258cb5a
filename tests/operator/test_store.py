from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mizzen_operator.render.labels import SERVICE_UID
from mizzen_operator.store import (
    POD,
    SERVICE_KIND,
    ObjectRef,
    ObjectUid,
    ObjectVersion,
    ServiceUid,
    Store,
    StoredObject,
    stored_object,
)


def pod(uid: str, version: int, *, service: str | None = "s1", **extra: Any) -> StoredObject:
    labels = {} if service is None else {SERVICE_UID: service}
    metadata = {"name": f"pod-{uid}", "namespace": "ns", "uid": uid, "labels": labels}
    return stored_object(
        POD, {"metadata": {**metadata, "resourceVersion": str(version)}, **extra}
    )  # fmt: skip


def listed(uid: str, version: int) -> ObjectVersion:
    ref = ObjectRef(kind=POD, namespace="ns", name=f"pod-{uid}")
    return ObjectVersion(ref=ref, uid=ObjectUid(uid), resource_version=version)


def uids(store: Store, service: str = "s1") -> list[str]:
    return [child.uid for child in store.children(ServiceUid(service))]


def test_paths_of_core_and_named_groups() -> None:
    assert POD.path(namespace=None) == "/api/v1/pods"
    assert SERVICE_KIND.path(namespace="a", name="b") == (
        "/apis/serving.mizzen.dev/v1alpha1/namespaces/a/inferenceservices/b"
    )


def test_an_older_version_never_replaces_a_newer_one() -> None:
    store = Store()
    assert store.observe(pod("a", 5, new=True))
    assert not store.observe(pod("a", 4))
    assert not store.observe(pod("a", 5))
    assert store.children(ServiceUid("s1"))[0].manifest["new"]


def test_versions_compare_as_numbers() -> None:
    store = Store()
    store.observe(pod("a", 9))
    assert store.observe(pod("a", 10))


def test_a_deleted_object_is_not_revived_by_older_news() -> None:
    store = Store()
    store.observe(pod("a", 5))
    assert store.forget(ObjectUid("a"), at_version=7) is not None
    assert not store.observe(pod("a", 6))
    assert uids(store) == []


def test_an_object_that_came_back_into_scope_is_seen_again() -> None:
    store = Store()
    store.forget(ObjectUid("a"), at_version=7)
    assert store.observe(pod("a", 8))


def test_old_news_of_a_deletion_does_not_remove_newer_knowledge() -> None:
    store = Store()
    store.observe(pod("a", 8))
    assert store.forget(ObjectUid("a"), at_version=7) is None
    assert uids(store) == ["a"]


def test_children_follow_a_changed_label() -> None:
    store = Store()
    store.observe(pod("a", 1, service="s1"))
    store.observe(pod("a", 2, service="s2"))
    assert (uids(store, "s1"), uids(store, "s2")) == ([], ["a"])
    store.observe(pod("a", 3, service=None))
    assert uids(store, "s2") == []


def test_a_service_is_its_own_key_and_not_its_own_child() -> None:
    store = Store()
    metadata = {"name": "x", "namespace": "ns", "uid": "s1", "resourceVersion": "1"}
    store.observe(stored_object(SERVICE_KIND, {"metadata": metadata}))
    assert store.service_uids() == (ServiceUid("s1"),)
    assert store.service(ServiceUid("s1")) is not None
    assert uids(store) == []


def test_own_writes_are_visible_at_once_and_expected_from_the_watch() -> None:
    store = Store()
    store.wrote(pod("a", 7), now_s=10.0)
    assert uids(store) == ["a"]
    assert store.oldest_expectation_s(now_s=25.0) == 15.0
    store.observe(pod("a", 6))
    assert store.oldest_expectation_s(now_s=25.0) == 15.0
    store.observe(pod("a", 7))
    assert store.oldest_expectation_s(now_s=25.0) == 0.0


def test_an_own_write_that_the_watch_showed_first_is_no_expectation() -> None:
    store = Store()
    store.observe(pod("a", 7))
    store.wrote(pod("a", 7), now_s=10.0)
    assert store.oldest_expectation_s(now_s=25.0) == 0.0


def test_deletion_ends_an_expectation() -> None:
    store = Store()
    store.wrote(pod("a", 7), now_s=10.0)
    store.forget(ObjectUid("a"), at_version=8)
    assert store.oldest_expectation_s(now_s=99.0) == 0.0


def test_diff_finds_missed_deletions_creations_and_changes() -> None:
    store = Store()
    for seen in (pod("gone", 1), pod("changed", 2), pod("same", 3), pod("younger", 50)):
        store.observe(seen)
    diff = store.diff(
        POD, [listed("changed", 8), listed("same", 3), listed("new", 9)], list_version=20
    )
    assert [known.uid for known in diff.gone] == ["gone"]
    assert [item.uid for item in diff.outdated] == ["changed", "new"]


def test_a_listed_object_that_was_deleted_meanwhile_is_not_read_again() -> None:
    store = Store()
    store.observe(pod("a", 1))
    store.forget(ObjectUid("a"), at_version=2)
    assert store.diff(POD, [listed("a", 1)], list_version=5).outdated == ()


def test_freshness_needs_every_kind() -> None:
    store = Store()
    kinds = (POD, SERVICE_KIND)
    store.listed(POD, now_s=0.0)
    assert not store.is_synced(kinds)
    assert store.stale_kinds(kinds, now_s=5.0, max_age_s=10.0) == (SERVICE_KIND,)
    store.listed(SERVICE_KIND, now_s=20.0)
    assert store.is_synced(kinds)
    assert store.stale_kinds(kinds, now_s=20.0, max_age_s=10.0) == (POD,)


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["observe", "wrote", "forget"]),
            st.sampled_from(["a", "b"]),
            st.integers(1, 9),
            st.sampled_from(["s1", "s2", None]),
        )
    )
)
def test_any_order_of_news_leaves_the_newest_and_a_true_index(steps) -> None:
    store = Store()
    newest: dict[str, tuple[int, str | None, bool]] = {}
    for step, uid, version, service in steps:
        known_version = newest.get(uid, (0, None, False))[0]
        if step == "forget":
            store.forget(ObjectUid(uid), at_version=version)
            if version >= known_version:
                newest[uid] = (version, None, False)
            continue
        seen = pod(uid, version, service=service)
        store.observe(seen) if step == "observe" else store.wrote(seen, now_s=0.0)
        if version > known_version:
            newest[uid] = (version, service, True)
    living = {uid: service for uid, (_, service, is_there) in newest.items() if is_there}
    for service in ("s1", "s2"):
        assert uids(store, service) == sorted(uid for uid in living if living[uid] == service)
    assert store.num_objects(POD) == len(living)


def test_of_a_pod_only_what_facts_are_read_from_is_kept() -> None:
    store = Store()
    spec = {"nodeName": "n1", "containers": [{"name": "a"}], "affinity": {"a": {}}, "priority": 0}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    store.observe(pod("a", 5, spec=spec, status=status))
    manifest = store.children(ServiceUid("s1"))[0].manifest
    assert manifest["spec"] == {"nodeName": "n1", "priority": 0}
    assert manifest["status"] == status


def test_managed_fields_are_packed_and_come_back() -> None:
    fields = [{"manager": "m", "operation": "Apply", "fieldsV1": {"f:spec": {"f:a": {}}}}]
    metadata = {"name": "s", "namespace": "ns", "uid": "u", "resourceVersion": "7"}
    manifest = {"metadata": {**metadata, "managedFields": fields}, "spec": {"list": [{"a": 1}]}}
    store = Store()
    assert store.observe(stored_object(SERVICE_KIND, manifest))
    known = store.service(ServiceUid("u"))
    assert known is not None
    assert known.managed_fields == fields
    assert known.manifest == {"metadata": metadata, "spec": {"list": [{"a": 1}]}}


def test_equal_texts_of_different_objects_are_one() -> None:
    store = Store()
    for uid in ("a", "b"):
        text = "".join(["a text ", "that is made twice"])
        store.observe(pod(uid, 5, status={"message": text}))
    first, second = (child.manifest["status"] for child in store.children(ServiceUid("s1")))
    assert first["message"] is second["message"]
