"""A device that fails under streams: the rank hands back, ends, is started again, streams go on."""

import os
from pathlib import Path

import httpx
import pytest
from tests.worker.launched import Launched, free_port, streaming, write_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_FAILING_RUNNER = """
import sys
from pathlib import Path

if any("scheduler.process" in word for word in sys.orig_argv):
    from mizzen_worker.contracts.errors import DeviceError
    from mizzen_worker.model_executor.model_runner import ModelRunner

    plug, launch = Path({plug!r}), ModelRunner.launch

    def fail_when_unplugged(self, batch):
        if plug.exists():
            plug.unlink()
            raise DeviceError("the device is unplugged")
        return launch(self, batch)

    ModelRunner.launch = fail_when_unplugged
"""


def test_streams_go_on_after_a_device_error(tmp_path: Path) -> None:
    plug, modules = tmp_path / "plug", tmp_path / "modules"
    modules.mkdir()
    (modules / "sitecustomize.py").write_text(_FAILING_RUNNER.format(plug=str(plug)))
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    sampling = {"max_new_tokens": 1500, "temperature": 0, "ignore_eos": True}
    body: dict[str, object] = {"text": "Once upon a time", "sampling_params": sampling}
    with Launched(
        *("serve", str(write_tiny_model(tmp_path / "tiny")), "--http-port", str(port)),
        *("--threads", "1"),
        log=tmp_path / "log",
        admin_port=free_port(),
        path=modules,
    ) as served:
        served.until_ready()
        whole = httpx.post(f"{url}/generate", json=body, timeout=120).json()
        before = served.pid_of("scheduler")
        last: dict[str, object] = {}
        with streaming(url, body) as events:
            for place, event in enumerate(events):
                last = event
                if place == 2:
                    plug.touch()
        assert last["output_ids"] == whole["output_ids"]
        assert last["text"] == whole["text"]
        assert not Path(f"/proc/{before}").exists()
        log = served.log.read_text()
        assert "rank ended with exit status 1: the device is unplugged" in log
        restarts = 'mizzen_process_restarts_total{process="rank"} 1.0'
        served.until(lambda: restarts in httpx.get(f"{served.admin}/metrics").text, 20)
        assert served.terminate() == 0
    assert not os.path.exists(plug)
