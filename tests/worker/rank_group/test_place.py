"""Who runs which rank, and who may join whom, in one sentence each."""

import pytest
from msgspec import structs
from tests.worker.rank_group.groups import hello, place_of

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.rank_group.place import local_ranks, objection


@pytest.mark.parametrize("nodes", range(1, 9))
def test_nodes_share_all_ranks_equally_and_the_first_has_the_leader(nodes: int) -> None:
    for size in range(nodes, 33, nodes):
        shares = [local_ranks(size, nodes=nodes, node_rank=node) for node in range(nodes)]
        assert [rank for share in shares for rank in share] == list(range(size))
        assert len({len(share) for share in shares}) == 1


@pytest.mark.parametrize(("size", "nodes"), [(1, 2), (3, 2), (8, 3)])
def test_ranks_that_nodes_cannot_share_are_refused(size: int, nodes: int) -> None:
    with pytest.raises(ConfigError, match=rf"{size} ranks .* {nodes} nodes.* multiple of {nodes}"):
        local_ranks(size, nodes=nodes, node_rank=0)


def test_a_mismatch_is_told_with_both_values(tmp_path: object) -> None:
    own = hello(place_of(0, tmp_path))  # type: ignore[arg-type]
    other = hello(place_of(1, tmp_path))  # type: ignore[arg-type]
    assert objection(other, own) is None
    for changed, words in (
        ({"wire_version": 9}, "rank 1 has wire version 9 and the leader 2; run all ranks of a"),
        ({"group_id": "h"}, "rank 1 has group h and the leader g; a rank must be sent to its own"),
        ({"epoch": "2"}, "rank 1 has epoch 2 and the leader 3; the older one has to be started"),
        ({"size": 4}, "rank 1 has --tensor-parallel-size 4 and the leader 2; give all ranks"),
        ({"agreed": {"model": "sha"}}, "rank 1 has --page-size None and the leader 16; give all"),
        ({"agreed": {**own.agreed, "model": "x"}}, "rank 1 has model x and the leader sha; give"),
        ({"agreed": {**own.agreed, "--new": "1"}}, "rank 1 has --new 1 and the leader None; give"),
        ({"rank": 0}, "rank 0 is none of the followers 1 to 1"),
        ({"rank": 2}, "rank 2 is none of the followers 1 to 1"),
    ):
        reason = objection(structs.replace(other, **changed), own)
        assert reason is not None
        assert reason.startswith(words)
