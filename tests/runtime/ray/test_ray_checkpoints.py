"""Checkpoints that are gathered from another node: no file of an earlier one is copied."""

from __future__ import annotations

import tempfile
from pathlib import Path
from queue import SimpleQueue

import pytest

pytest.importorskip("ray", reason="needs the extra 'ray'")

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.model_settings import ModelSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.core.ids import Version
from tailrace.runtime.ray.checkpoints import GatheringLink
from tailrace.workers.messages import ModelInit, Save, Saved, SaveFailed, TrainingInit

pytestmark = pytest.mark.ray
RUN = Path("/controller/run/checkpoints")


class Queues:
    """A link whose other end is the test."""

    def __init__(self) -> None:
        self.to_worker: SimpleQueue[object] = SimpleQueue()
        self.sent: list[object] = []

    def receive(self, timeout: float | None = None) -> object | None:
        return self.to_worker.get()

    def send(self, message: object) -> None:
        self.sent.append(message)


class Notes:
    """A courier that notes what it would copy."""

    def __init__(self, node: str, *, is_broken: bool = False) -> None:
        self.node, self._is_broken = node, is_broken
        self.delivered: list[tuple[Path, list[str]]] = []

    def deliver(self, here: Path, there: Path) -> None:
        if self._is_broken:
            raise OSError("the disk is full")
        self.delivered.append((there, sorted(path.name for path in here.iterdir())))

    def fetch(self, there: Path, here: Path) -> None:
        raise AssertionError("nothing is fetched")


def init_of(run: str, rank: int) -> TrainingInit:
    policy = ModelInit(
        name="policy",
        model_path=Path("model"),
        checkpoint=None,
        model=ModelSettings(),
        trainer=TrainerSettings(),
        algorithm=AlgorithmSettings(),
        temperature=1.0,
        max_response_length=8,
        max_steps=1,
        seed=0,
        channel_name=run,
    )
    return TrainingInit(models=(policy,), rank=rank, num_shards=2)


class Rank:
    def __init__(self, courier: Notes, index: int = 0, run: str = "run") -> None:
        self.queues = Queues()
        self.link = GatheringLink(self.queues, courier, init_of(run, index))  # type: ignore[arg-type]

    def asked_to_save(self, name: str) -> Path:
        """The folder that it is told to write into."""
        self.queues.to_worker.put(Save(model="policy", version=Version(1), directory=RUN / name))
        message = self.link.receive()
        assert isinstance(message, Save)
        message.directory.mkdir(parents=True, exist_ok=True)
        return message.directory

    def saved(self) -> object:
        self.link.send(Saved(model="policy", version=Version(1), seconds=1.0))
        return self.queues.sent[-1]


@pytest.fixture(autouse=True)
def _own_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.mark.parametrize("killed_in", ["step_1.partial", "step_2.partial"])
def test_files_that_a_killed_worker_left_are_neither_copied_nor_kept(tmp_path: Path, killed_in: str) -> None:
    killed = Rank(Notes("a")).asked_to_save(killed_in)
    (killed / "__3_0.distcp").touch()
    courier = Notes("a")
    rank = Rank(courier)
    assert not (killed / "__3_0.distcp").exists()
    (rank.asked_to_save("step_2.partial") / "model.safetensors").touch()
    assert isinstance(rank.saved(), Saved)
    assert courier.delivered == [(RUN / "step_2.partial", ["model.safetensors"])]
    assert not list(tmp_path.glob("tailrace-checkpoint-*")), "files stay on the disk of the node"


def test_ranks_write_into_one_folder_and_only_the_first_removes_and_copies_files() -> None:
    courier = Notes("a")
    first = Rank(courier)
    folder = first.asked_to_save("step_1.partial")
    (folder / "__0_0.distcp").touch()
    second = Rank(courier, index=1)
    assert second.asked_to_save("step_1.partial") == folder
    (folder / "__1_0.distcp").touch()
    assert isinstance(second.saved(), Saved)
    assert courier.delivered == []
    first.saved()
    assert courier.delivered == [(RUN / "step_1.partial", ["__0_0.distcp", "__1_0.distcp"])]


@pytest.mark.parametrize(("node", "run"), [("b", "run"), ("a", "other run")])
def test_another_run_has_another_folder(node: str, run: str) -> None:
    file = Rank(Notes("a")).asked_to_save("step_1") / "model.safetensors"
    file.touch()
    assert Rank(Notes(node), run=run).asked_to_save("step_1") != file.parent
    assert file.exists()


def test_a_checkpoint_that_cannot_be_copied_has_failed_and_its_files_are_removed(tmp_path: Path) -> None:
    rank = Rank(Notes("a", is_broken=True))
    (rank.asked_to_save("step_1.partial") / "model.safetensors").touch()
    assert rank.saved() == SaveFailed(model="policy", version=Version(1), reason="the disk is full")
    assert not list(tmp_path.glob("tailrace-checkpoint-*"))
