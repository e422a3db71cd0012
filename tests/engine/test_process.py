"""The engine in a child process: the same answers, and an end to everything that may happen to it."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import wait_until

pytest.importorskip("zmq")
pytest.importorskip("msgspec")

import zmq

from quire.config import Config, load
from quire.devices.facts import DeviceUnavailable
from quire.engine.async_llm import AsyncLLM
from quire.engine.client import Client
from quire.engine.launch import ChildEngine
from quire.engine.llm import LLM, EnginePlace, LoadedModel
from quire.engine.messages import Accepted, Configure, EngineDied, Failed, Loading, News
from quire.engine.process import Sockets
from quire.types.answer import Delta
from quire.types.errors import ContextTooLong
from quire.types.request import GenerateRequest, SamplingParams
from tests.engine.conftest import CHILD, ChildLLM
from tests.models.toys import some_tokens

pytestmark = pytest.mark.device

GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
ENDLESS = replace(GREEDY, max_tokens=None)
SETTINGS = {"num_blocks": 400, "max_rows": 32}


def link_of(client: Client) -> ChildEngine:
    link = client._link
    assert isinstance(link, ChildEngine)
    return link


def is_gone(pid: int) -> bool:
    """No process, and no zombie of one."""
    return not Path(f"/proc/{pid}").exists()


def test_a_child_gives_the_same_answers_as_this_process_and_leaves_nothing_behind(
    toy_folder: Path, llm: LLM, short_tmp: Path
) -> None:
    prompts = [some_tokens(n) for n in (3, 17, 40)]
    seeded = SamplingParams(seed=4, top_p=0.9, max_tokens=30, n=2, logprobs=2, prompt_logprobs=1)
    with ChildLLM(toy_folder, **SETTINGS) as child:
        pid = link_of(child.client).pid
        assert len(list(short_tmp.iterdir())) == 1 and not is_gone(pid)
        for way in (GREEDY, seeded):
            for ours, theirs in zip(llm.generate(prompts, way), child.generate(prompts, way), strict=True):
                assert ours.samples == theirs.samples and ours.prompt_logprobs == theirs.prompt_logprobs
        with pytest.raises(ContextTooLong, match=r"1100 tokens.*1088") as raised:
            child.generate([some_tokens(1100)])
        assert raised.value.num_prompt == 1100 and raised.value.field == "prompt"
        assert child.client.ready == replace(
            llm.client.ready, num_blocks=400, most_blocks=400, seconds=child.client.ready.seconds
        )
        assert child.client.counters().num_accepted == 6
    assert is_gone(pid) and list(short_tmp.iterdir()) == []
    child.close()  # a second time does nothing
    with pytest.raises(EngineDied):
        child.generate("too late")


class AsyncChildLLM(AsyncLLM):
    def __init__(self, model: Path, **settings: Any) -> None:
        self._model = LoadedModel(model, EnginePlace("cpu", False, CHILD), None, settings)


def test_asyncio_streams_from_a_child(toy_folder: Path, llm: LLM, short_tmp: Path) -> None:
    async def run() -> tuple[list[str], str]:
        async with await AsyncChildLLM.open(toy_folder, **SETTINGS) as child:
            together, pieces = await asyncio.gather(
                child.generate([f"Prompt {n}" for n in range(20)], GREEDY), collect(child.stream("Once", GREEDY))
            )
            return [each.text for each in together], pieces

    async def collect(deltas: AsyncGenerator[Delta, None]) -> str:
        return "".join([delta.text async for delta in deltas])

    texts, streamed = asyncio.run(run())
    assert texts == [each.text for each in llm.generate([f"Prompt {n}" for n in range(20)], GREEDY)]
    assert streamed == llm.generate("Once", GREEDY)[0].text


def test_a_cancel_is_acknowledged(toy_folder: Path, short_tmp: Path) -> None:
    with ChildLLM(toy_folder, **SETTINGS) as child:
        stream = child.stream("a", ENDLESS)
        next(stream)
        request_id = next(iter(child.client._recovery._live))
        assert child.client.cancel(request_id).result(60) is True
        assert child.client.cancel(request_id).result(60) is False
        assert list(stream)[-1].finish == "cancelled"
        assert child.client.counters().num_cancelled == 1


def test_without_a_restart_policy_all_requests_fail_when_the_child_is_killed(toy_folder: Path, short_tmp: Path) -> None:
    config = load({**SETTINGS}, {})
    client = Client(lambda deliver: ChildEngine(Configure(str(toy_folder), "cpu", config), deliver, entry=CHILD))
    news: list[News] = []
    for n in range(12):
        client.submit(GenerateRequest(str(n), tuple(some_tokens(9 + n)), ENDLESS), news.append)
    wait_until(lambda: len(news) > 40)

    async def streams() -> list[Any]:
        async def one(name: str) -> list[News]:
            said = []
            async for each in client.generate(GenerateRequest(name, (1, 2, 3), ENDLESS)):
                said.append(each)
                started.set()
            return said

        started = asyncio.Event()
        tasks = [asyncio.create_task(one(f"async {n}")) for n in range(5)]
        await started.wait()
        os.kill(link_of(client).pid, signal.SIGKILL)
        return await asyncio.gather(*tasks)

    streamed = [said[-1] for said in asyncio.run(streams())]
    wait_until(lambda: sum(isinstance(each, Failed) for each in news) == 12)
    ends = [each for each in (*news, *streamed) if isinstance(each, Failed)]
    assert {each.request_id for each in ends} == {str(n) for n in range(12)} | {f"async {n}" for n in range(5)}
    assert all("killed by SIGKILL" in each.error.public and each.error.code == "engine_died" for each in ends)
    assert not client.is_alive and is_gone(link_of(client).pid)
    with pytest.raises(EngineDied, match="not running"):
        client.submit(GenerateRequest("late", (1,)), news.append)
    assert client.cancel("0").result(60) is False
    with pytest.raises(EngineDied):
        client.counters()
    client.close()
    assert list(short_tmp.iterdir()) == []


def test_a_stopped_child_is_killed_when_it_does_not_end(toy_folder: Path, short_tmp: Path) -> None:
    child = ChildLLM(toy_folder, **SETTINGS)
    link = link_of(child.client)
    os.kill(link.pid, signal.SIGSTOP)
    link.close(timeout=0.3)
    assert is_gone(link.pid) and list(short_tmp.iterdir()) == []


def test_errors_while_loading_are_raised_in_the_parent(toy_folder: Path, short_tmp: Path) -> None:
    def start(model: Path, device: str = "cpu", **more: Any) -> ChildEngine:
        return ChildEngine(Configure(str(model), device, Config()), lambda said: None, **more)

    with pytest.raises(DeviceUnavailable, match="no device 'abacus'"):
        start(toy_folder, "abacus", entry=CHILD)
    with pytest.raises(Exception, match=r"nothing here|not exist|no such|No such|is missing") as raised:
        start(toy_folder / "nowhere", entry=CHILD)
    assert getattr(raised.value, "code", "") != "engine_died"
    with pytest.raises(EngineDied, match="ended with the code 7 while it loaded"):
        start(toy_folder, entry="tests.engine.child:dies")
    assert list(short_tmp.iterdir()) == []


def test_loading_is_reported_stage_by_stage(toy_folder: Path, short_tmp: Path) -> None:
    stages: list[Loading] = []
    link = ChildEngine(
        Configure(str(toy_folder), "cpu", Config()), lambda said: None, progress=stages.append, entry=CHILD
    )
    link.close()
    assert stages[0].stage == "opening the checkpoint" and len(stages) >= 3


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_child_does_not_outlive_its_parent(
    toy_folder: Path, short_tmp: Path, how: signal.Signals, is_busy: bool
) -> None:
    script = (
        f"import sys\nsys.path[:] = {sys.path!r}\n"
        "import tempfile, time\n"
        f"tempfile.tempdir = {str(short_tmp)!r}\n"
        "from tests.engine.conftest import ChildLLM\n"
        f"llm = ChildLLM({str(toy_folder)!r}, num_blocks=100)\n"
        "from quire.types.request import SamplingParams\n"
        f"streams = [llm.stream('a', SamplingParams(n=8, ignore_eos=True)) for _ in range({2 * is_busy})]\n"
        "begun = [next(stream) for stream in streams]\n"
        "print(llm.client._link.pid, flush=True)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    parent.send_signal(how)
    parent.wait()
    parent.stdout.close()
    wait_until(lambda: is_gone(pid))
    wait_until(lambda: list(short_tmp.iterdir()) == [])


def test_messages_for_a_parent_that_ends_while_they_are_sent_are_dropped() -> None:
    """Between the look whether someone listens and the sending the parent may go: the child must not wait for it."""

    class Outbox:
        num_tried = 0

        def send(self, frame: bytes, flags: int) -> None:
            assert flags == zmq.NOBLOCK
            self.num_tried += 1
            raise zmq.Again

    sockets, outbox = object.__new__(Sockets), Outbox()
    looks = iter([{outbox: zmq.POLLOUT}, {outbox: zmq.POLLOUT}, {0: zmq.POLLIN}])
    sockets._outbox, sockets._send_poller = outbox, SimpleNamespace(poll=lambda: next(looks))
    sockets.send([Accepted("a")])
    assert outbox.num_tried == 2 and next(looks, None) is None
