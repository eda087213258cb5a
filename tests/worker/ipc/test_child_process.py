"""What every child process begins with."""

import resource

from mizzen_worker.ipc.child_process import allow_all_descriptors


def test_a_child_takes_all_descriptors_that_it_may_have() -> None:
    given = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (given[1] // 2, given[1]))
        allow_all_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (given[1], given[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, given)
