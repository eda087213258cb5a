"""What the local cluster decides before it touches anything."""

import json
import subprocess
from pathlib import Path

import pytest
from tests.devcluster import component_files
from tests.devcluster.archive import Archive, ArchiveError, Image, Member, write_image
from tests.devcluster.binaries import Module, key_of
from tests.devcluster.config import ClusterConfig, ConfigError, plan_nodes
from tests.devcluster.control import ControlError, ask
from tests.devcluster.folders import Folders, Lock
from tests.devcluster.image_import import Present, choose_members, is_present
from tests.devcluster.keeper import Order, decode_order
from tests.devcluster.network import hairpin_rules
from tests.devcluster.pki import identities, make_pki
from tests.devcluster.requirements import RequirementError, check_machine
from tests.devcluster.stores import take_stores
from tests.devcluster.toolchain import is_new_enough


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("name", "Demo"), ("name", "x" * 21), ("nodes", 0), ("nodes", 33)),
        *(("gpus_per_node", -1), ("node_grace_seconds", 9)),
    ],
)
def test_a_bad_configuration_names_the_field_and_the_value(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}: '?{value}"):
        ClusterConfig(**{field: value})  # type: ignore[arg-type]


def test_nodes_are_dealt_over_zones_and_racks_in_turn() -> None:
    nodes = plan_nodes(ClusterConfig(nodes=3, zones=("a", "b"), racks=("r",)))
    assert [(node.name, node.zone, node.rack) for node in nodes] == [
        ("node0", "a", "r"),
        ("node1", "b", "r"),
        ("node2", "a", "r"),
    ]
    assert len({node.address for node in nodes} | {node.pod_network for node in nodes}) == 6


def test_an_order_survives_the_command_line() -> None:
    order = Order(
        config=ClusterConfig(name="a", nodes=2, zones=("z",)),
        programs=Path("/programs"),
        pause_archive=Path("/pause.tar"),
        starter=7,
    )
    assert decode_order(order.encode()) == order


@pytest.mark.parametrize(
    ("version", "good"),
    [
        ("go version go1.26.6 linux/amd64", True),
        ("go version go1.27 linux/amd64", True),
        ("go version go1.19.8 linux/amd64", False),
        ("", False),
    ],
)
def test_a_go_is_new_enough_or_not(version: str, *, good: bool) -> None:
    assert is_new_enough(version) is good


def test_programs_are_built_anew_when_a_flag_changes() -> None:
    plain = Module(name="probe", outputs={"probe": ("probe",)})
    assert key_of(plain) == key_of(Module(name="probe", outputs={"probe": ("probe",)}))
    assert key_of(plain) != key_of(Module(name="probe", outputs=plain.outputs, tags="x"))


def test_an_archive_reads_back_as_tar_and_as_folder(tmp_path: Path) -> None:
    tar = tmp_path / "image.tar"
    write_image(tar, name="localhost/a:1", files={"a": b"content"}, entrypoint=("/a",))
    folder = tmp_path / "image"
    folder.mkdir()
    subprocess.run(["tar", "-xf", tar, "-C", folder], check=True)
    first, second = Archive(tar), Archive(folder)
    assert first.images() == second.images()
    assert first.images()[0].name == "localhost/a:1"
    assert set(first.members()) == set(second.members())
    assert sum(member.digest is not None for member in first.members()) == 3


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArchiveError, match="no such image archive"):
        Archive(tmp_path / "nothing.tar")
    (tmp_path / "folder").mkdir()
    with pytest.raises(ArchiveError, match=r"has no index\.json"):
        Archive(tmp_path / "folder").images()


def test_only_missing_layers_are_sent() -> None:
    known = Member(path="blobs/sha256/aa", size_bytes=9)
    new = Member(path="blobs/sha256/bb", size_bytes=1)
    index = Member(path="index.json", size_bytes=1)
    assert choose_members([known, new, index], {"sha256:aa"}) == [new, index]


def test_an_image_is_present_in_its_own_version_only() -> None:
    present = Present(image_digests={"a:1": "sha256:aa"}, blobs=frozenset())
    assert is_present([Image(name="a:1", digest="sha256:aa")], present)
    assert not is_present([Image(name="a:1", digest="sha256:bb")], present)
    assert not is_present([Image(name="b:1", digest="sha256:aa")], present)


def test_without_root_one_sentence_says_what_else_works(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(RequirementError, match=r"needs root.*CLUSTER=current.*mizzen serve MODEL"):
        check_machine(Folders(root=tmp_path))


def test_a_cache_folder_that_the_cell_cannot_see_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("pathlib.Path.exists", lambda self: True)
    with pytest.raises(RequirementError, match="XDG_CACHE_HOME: /var/lib/cache lies below"):
        check_machine(Folders(root=Path("/var/lib/cache/mizzen")))


def test_stores_are_lent_once_and_the_lowest_first(tmp_path: Path) -> None:
    first = take_stores(tmp_path, 2)
    second = take_stores(tmp_path, 1)
    assert [store.path.name for store in (*first, *second)] == ["0", "1", "2"]
    first[1].lock.release()
    assert [store.path.name for store in take_stores(tmp_path, 2)] == ["1", "3"]


def test_cells_of_one_name_in_two_places_are_two_cells(tmp_path: Path) -> None:
    first, second = Folders(root=tmp_path / "a"), Folders(root=tmp_path / "b")
    assert first.cell("x").key == first.cell("x").key
    assert first.cell("x").key != second.cell("x").key


def test_a_lock_is_held_by_one(tmp_path: Path) -> None:
    lock = Lock.try_take(tmp_path / "lock", note="me")
    assert lock is not None
    assert Lock.try_take(tmp_path / "lock") is None
    assert (tmp_path / "lock").read_text() == "me"
    lock.release()
    assert Lock.try_take(tmp_path / "lock") is not None


def test_whoever_has_to_wait_for_a_lock_says_so_first(tmp_path: Path) -> None:
    path, said = tmp_path / "lock", []

    def say() -> None:
        said.append("waiting")
        first.release()

    first = Lock.take(path, before_waiting=say)
    assert said == []
    Lock.take(path, before_waiting=say)
    assert said == ["waiting"]


def test_asking_nobody_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="stop: nobody answers at"):
        ask(tmp_path / "none.sock", "stop")


def test_every_certificate_is_the_authoritys_and_names_its_user(tmp_path: Path) -> None:
    nodes = plan_nodes(ClusterConfig(nodes=1))
    folder = tmp_path / "pki"
    make_pki(folder, nodes)
    for identity in identities(nodes):
        file = str(folder / f"{identity.file}.crt")
        verified = ["openssl", "verify", "-CAfile", str(folder / "ca.crt"), file]
        subprocess.run(verified, check=True, capture_output=True)
        shown = ["openssl", "x509", "-in", file, "-noout", "-subject", "-ext", "basicConstraints"]
        text = subprocess.check_output(shown, text=True)
        assert f"CN = {identity.user}" in text
        assert "CA:FALSE" in text


def test_no_file_gives_a_way_out_or_skips_verification() -> None:
    node = plan_nodes(ClusterConfig())[0]
    network = json.loads(component_files.cni_network(node, Path("/ipam")))
    routes = network["plugins"][0]["ipam"]["routes"]
    assert {"dst": "0.0.0.0/0"} not in routes
    assert "forward" not in component_files.corefile(Path("/kubeconfig"))
    # CoreDNS takes a space for the end of a word.
    assert 'kubeconfig "/a b/k" coredns' in component_files.corefile(Path("/a b/k"))
    text = component_files.kubeconfig(
        server="https://x", ca=b"ca", certificate=b"c", key=b"k", cluster="c"
    )
    assert "insecure" not in text


def test_every_pod_address_may_reach_itself() -> None:
    rules = hairpin_rules(plan_nodes(ClusterConfig(nodes=2)))
    for address in ("198.18.1.2", "198.18.2.254"):
        assert f"{address} . {address}" in rules
