"""What is special about workers that are Ray actors: surroundings, references, weights, and how they are lost."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("ray", reason="needs the extra 'ray'")

from contract.worker_story import Story
from tailrace.config.ray_settings import RayResources
from tailrace.config.reward_settings import RewardSettings
from tailrace.core.ids import GroupId, ResponseId
from tailrace.core.outcomes import Outcome
from tailrace.rewards.score_task import ScoreTask
from tailrace.runtime.launchers.worker import WorkerHandle, WorkerSpec
from tailrace.runtime.ray.launcher import RayLauncher
from tailrace.runtime.ray.resources import PlacementGroups
from tailrace.runtime.ray.samples import put_samples
from tailrace.runtime.rewards.reward_pool import RewardPool
from tailrace.workers.sample_transfer import SentSamples

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_on_this_machine")]


def start(
    logs: Path, entry: str, story: Story, init: object = None, *, name: str = "worker-0", **options: Any
) -> WorkerHandle:
    launch = RayLauncher(logs, options.pop("placement", PlacementGroups({})))
    spec = WorkerSpec(name=name, entry=f"runtime.ray.ray_workers:{entry}", init=init, **options)
    return launch(spec, hear=story.hear, lose=story.lose)


def test_environment_and_directory_are_set_before_the_import_and_output_is_in_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, "tell_surroundings", story, env={"TAILRACE_TEST_VARIABLE": "seen"})
        assert await story.message(0) == ("seen", os.getcwd())
        await worker.stop(grace_s=20.0)
        said = (tmp_path / "worker-0.log").read_text()
        assert "worker-0 runs on node " in said
        assert "a line of output\n" in said
        assert "a line of a child\n" in said

    asyncio.run(scenario())


def test_actors_of_a_ray_on_this_machine_listen_on_loopback(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        spec = WorkerSpec(name="training-0", entry="runtime.ray.ray_workers:tell_address", init=None)
        worker = RayLauncher(tmp_path, PlacementGroups({}), is_local=True)(spec, hear=story.hear, lose=story.lose)
        assert await story.message(0) == ("127.0.0.1", "lo")
        await worker.stop(grace_s=20.0)

    asyncio.run(scenario())


def test_an_actor_whose_process_is_killed_is_lost_with_a_sentence(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, "tell_node", story)
        _, pid = await story.message(0)  # type: ignore[misc]
        os.kill(pid, signal.SIGKILL)
        reason = await story.ending()
        assert reason.startswith("worker 'worker-0' on node ")
        assert "was killed or crashed: " in reason
        assert "\n" not in reason
        assert "common causes" not in reason
        assert not worker.is_alive

    asyncio.run(scenario())


def test_an_actor_that_leaves_its_process_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        start(tmp_path, "leave_at_once", story, init=71)
        assert "worker 'worker-0'" in await story.ending()

    asyncio.run(scenario())


def test_an_actor_that_waits_for_a_place_can_be_killed_and_stopped(tmp_path: Path) -> None:
    nowhere = PlacementGroups({"worker": RayResources(cpus=1000.0)})

    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, "tell_node", story, placement=nowhere)
        worker.kill()
        assert await story.ending() == "worker 'worker-0' was killed"
        await start(tmp_path, "tell_node", story, placement=nowhere).stop(grace_s=0.1)
        assert len(story.endings) == 1

    asyncio.run(scenario())


def test_a_batch_travels_by_reference(tmp_path: Path) -> None:
    async def scenario() -> None:
        story, message = Story(), put_samples(SentSamples(samples=(1, 2, 3)))  # type: ignore[arg-type]
        worker = start(tmp_path, "read_samples", story)
        worker.send(message)
        del message  # the letter holds the object
        assert await story.message(0) == 3
        await worker.stop(grace_s=20.0)

    asyncio.run(scenario())


def pulled(version: int) -> tuple[int, dict[str, object]]:
    embed = [[4.0 + version, 5.0 + version], [8.0 + version, 9.0 + version]]
    return version, {
        "embed": ("torch.float32", embed),
        "norm": ("torch.bfloat16", [float(version)] * 5),
        "step": ("torch.int64", float(version)),
    }


def test_weights_go_through_the_object_store_and_are_lost_with_their_writer(tmp_path: Path) -> None:
    async def scenario() -> None:
        written, read = Story(), Story()
        writer = start(tmp_path, "publish", written)
        address = await written.message(0)
        reader = start(tmp_path, "pull", read, init=address, name="worker-1")
        reader.send(0)
        assert await read.message(0) == "VersionNotPublished"
        for number, version in enumerate((0, 3), start=1):
            writer.send(version)
            assert await written.message(number) == version
            reader.send(version)
            assert await read.message(number) == pulled(version)
        writer.send(3)
        assert "cannot publish version 3 after version 3" in str(await written.message(3))
        writer.kill()
        await written.ending()
        reader.send(0)
        assert await read.message(3) == "WriterLost"
        late = Story()
        other = start(tmp_path, "pull", late, init=address, name="worker-2")
        other.send(0)
        assert await late.message(0) == "WriterLost"
        await asyncio.gather(reader.stop(grace_s=20.0), other.stop(grace_s=20.0))

    asyncio.run(scenario())


def test_all_that_a_worker_printed_before_it_is_stopped_is_in_the_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, "print_much_and_wait", story)
        await story.message(0)
        await worker.stop(grace_s=20.0)
        assert (tmp_path / "worker-0.log").read_text().endswith("\nthe last line\nand a word")

    asyncio.run(scenario())


def test_a_pull_copies_the_slices_of_eight_ranks_and_no_other_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        story = Story()
        worker = start(tmp_path, "pull_for_eight_ranks", story)
        most, num_bytes = await story.message(0)  # type: ignore[misc]
        assert sum(most) < 1.5 * num_bytes, [round(each / num_bytes, 2) for each in most]
        await worker.stop(grace_s=20.0)

    asyncio.run(scenario())


HANGS = """
import subprocess, time
from pathlib import Path

def score(response, answer):
    if response.startswith("start "):
        daemon = subprocess.check_output("setsid sleep 1000 >/dev/null & echo $!", shell=True, text=True)
        Path(response.split()[1]).write_text(daemon.strip())
    if response.endswith("hang"):
        time.sleep(1000)
    return float(response == answer)
"""


def test_a_reward_actor_that_takes_too_long_is_killed_and_replaced(tmp_path: Path) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    settings = RewardSettings.model_validate({"functions": [f"{tmp_path}/hangs.py:score"], "timeout_s": 1.0})

    async def scenario() -> None:
        results: asyncio.Queue[Any] = asyncio.Queue()
        pool = RewardPool(settings, launch=RayLauncher(tmp_path, PlacementGroups({})), on_result=results.put_nowait)
        await pool.start()
        for number, response in enumerate(("hang", "7")):
            pool.submit(task(number, response))
        async with asyncio.timeout(60.0):
            assert (await results.get()).outcome is Outcome.TIMEOUT
            good = await results.get()
        assert (good.outcome, good.score) == (Outcome.OK, 1.0)
        await pool.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize("then", ["hang", "return"])
def test_a_daemon_that_a_reward_started_dies_with_its_actor(tmp_path: Path, then: str) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    settings = RewardSettings.model_validate({"functions": [f"{tmp_path}/hangs.py:score"], "timeout_s": 3.0})

    async def scenario() -> None:
        results: asyncio.Queue[Any] = asyncio.Queue()
        pool = RewardPool(settings, launch=RayLauncher(tmp_path, PlacementGroups({})), on_result=results.put_nowait)
        await pool.start()
        pool.submit(task(0, f"start {tmp_path}/pid {then}"))
        async with asyncio.timeout(60.0):
            assert (await results.get()).outcome is (Outcome.TIMEOUT if then == "hang" else Outcome.OK)
            await pool.stop()
            while Path(f"/proc/{(tmp_path / 'pid').read_text()}").exists():  # Ray ends an actor in its own time
                await asyncio.sleep(0.01)

    asyncio.run(scenario())


def task(number: int, response: str) -> ScoreTask:
    response_id = ResponseId(GroupId("train", 0, number), 0)
    return ScoreTask(response_id=response_id, row={"prompt": "p", "answer": "7"}, response=response)
