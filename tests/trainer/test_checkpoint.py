from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from tailrace.config.algorithm_settings import AlgorithmSettings
from tailrace.config.trainer_settings import TrainerSettings
from tailrace.trainer.batch import Sample
from tailrace.trainer.checkpoints import checkpoint
from tailrace.trainer.ranks.ranks import Alone
from tailrace.trainer.trainer import Trainer

MakeTrainer = Callable[..., Trainer]
MakeGroups = Callable[..., list[list[Sample]]]
SETTINGS = TrainerSettings(learning_rate=1e-3, warmup_steps=2, lr_schedule="cosine", weight_decay=0.01)


def train(trainer: Trainer, make_groups: MakeGroups, steps: range) -> list[dict[str, float]]:
    return [trainer.train(make_groups(step, version=step)).metrics for step in steps]


@pytest.mark.parametrize("saved_after", [0, 1, 3])
def test_training_on_from_a_checkpoint_equals_never_having_stopped(
    make_trainer: MakeTrainer, make_groups: MakeGroups, tmp_path: Path, saved_after: int
) -> None:
    algorithm = AlgorithmSettings(kl_loss_coef=0.01)
    whole, first, second = (make_trainer(settings=SETTINGS, algorithm=algorithm) for _ in range(3))
    expected = train(whole, make_groups, range(5))
    train(first, make_groups, range(saved_after))
    first.save(tmp_path / "step")
    second.load(tmp_path / "step")
    assert second.version == saved_after
    assert train(second, make_groups, range(saved_after, 5)) == expected[saved_after:]
    for (name, mine), (_, theirs) in zip(second.named_weights(), whole.named_weights(), strict=True):
        assert torch.equal(mine, theirs), name


def test_a_checkpoint_is_a_hugging_face_directory(
    make_trainer: MakeTrainer, make_groups: MakeGroups, tmp_path: Path, model_path: Path
) -> None:
    trainer = make_trainer()
    train(trainer, make_groups, range(1))
    trainer.save(tmp_path / "step")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "step")
    for name, tensor in trainer.named_weights():
        assert torch.equal(loaded.state_dict()[name], tensor)
    for companion in ("tokenizer_config.json", "generation_config.json"):
        assert (tmp_path / "step" / companion).read_bytes() == (model_path / companion).read_bytes()


def test_a_checkpoint_holds_no_pickle(make_trainer: MakeTrainer, make_groups: MakeGroups, tmp_path: Path) -> None:
    trainer = make_trainer()
    train(trainer, make_groups, range(1))
    trainer.save(tmp_path / "step")
    assert {file.suffix for file in (tmp_path / "step").iterdir()} <= {".json", ".safetensors"}


def test_other_settings_are_refused_by_name(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer(settings=SETTINGS).save(tmp_path / "step")
    changed = make_trainer(settings=SETTINGS.model_copy(update={"weight_decay": 0.5}))
    with pytest.raises(ValueError, match=r"trainer\.weight_decay was 0\.01 and is 0\.5"):
        changed.load(tmp_path / "step")


def test_a_setting_that_an_older_checkpoint_does_not_name_had_its_old_value(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    make_trainer(settings=SETTINGS).save(tmp_path / "step")
    state = json.loads((tmp_path / "step" / "trainer_state.json").read_text())
    for name in ("trainer.max_grad_norm", "algorithm.loss", "model.lora_rank"):
        state["settings"].pop(name, None)
    (tmp_path / "step" / "trainer_state.json").write_text(json.dumps(state))
    make_trainer(settings=SETTINGS).load(tmp_path / "step")
    changed = make_trainer(settings=SETTINGS.model_copy(update={"max_grad_norm": 2.0}))
    with pytest.raises(ValueError, match=r"trainer\.max_grad_norm was 1\.0 and is 2\.0"):
        changed.load(tmp_path / "step")


def test_a_step_that_is_repeated_after_a_change_of_the_rate_has_its_old_one(
    make_trainer: MakeTrainer, make_groups: MakeGroups, tmp_path: Path
) -> None:
    """The critic's rate follows the policy's, so both are given."""
    algorithm = AlgorithmSettings(advantage_estimator="gae")
    first = make_trainer(settings=SETTINGS, algorithm=algorithm)
    first.save(tmp_path / "step")
    [taken] = train(first, make_groups, range(1))
    changed = SETTINGS.model_copy(update={"learning_rate": 5e-3, "lr_schedule": "constant"})
    second = make_trainer(settings=changed, algorithm=algorithm)
    second.load(tmp_path / "step")
    second.accumulate(make_groups(0, version=0))
    repeated = second.finish_step(rates={"actor": taken["actor/lr"], "critic": taken["critic/lr"]})
    assert repeated.metrics == taken
    for (name, mine), (_, theirs) in zip(second.named_weights(), first.named_weights(), strict=True):
        assert torch.equal(mine, theirs), name


def test_settings_of_where_and_in_which_pieces_it_computes_are_free_to_change(
    make_trainer: MakeTrainer, tmp_path: Path
) -> None:
    make_trainer(settings=SETTINGS).save(tmp_path / "step")
    changes = {
        "threads": 1,
        "max_tokens_per_gpu": 64,
        "gradient_checkpointing": True,
        "weight_channel": "shared-memory",
    }
    changed = make_trainer(settings=SETTINGS.model_copy(update=changes))
    changed.load(tmp_path / "step")
    state = json.loads((tmp_path / "step" / "trainer_state.json").read_text())
    state["settings"]["trainer.max_tokens_per_gpu"] = 32  # earlier versions noted it
    (tmp_path / "step" / "trainer_state.json").write_text(json.dumps(state))
    changed.load(tmp_path / "step")


def test_a_checkpoint_of_another_format_is_refused(make_trainer: MakeTrainer, tmp_path: Path) -> None:
    make_trainer().save(tmp_path / "step")
    state = json.loads((tmp_path / "step" / "trainer_state.json").read_text())
    (tmp_path / "step" / "trainer_state.json").write_text(json.dumps(state | {"format": 99}))
    with pytest.raises(ValueError, match="format 99"):
        make_trainer().load(tmp_path / "step")


def test_saving_in_the_middle_of_a_step_is_refused(
    make_trainer: MakeTrainer, make_groups: MakeGroups, tmp_path: Path
) -> None:
    trainer = make_trainer()
    trainer.accumulate(make_groups()[:1])
    with pytest.raises(ValueError, match="between steps"):
        trainer.save(tmp_path / "step")


def test_a_model_directory_with_missing_weights_is_refused(
    make_trainer: MakeTrainer, untied_model_path: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "model"
    shutil.copytree(untied_model_path, broken)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    with pytest.raises(ValueError, match=r"holds no weights for model\.layers\.2"):
        make_trainer(path=broken)


GONE = "gone"


class TwoThreads(Alone):
    """Two ranks that are threads."""

    size = 2

    def __init__(self, index: int, boxes: list[Queue[Any]]) -> None:
        self.index, self._mine, self._other = index, boxes[index], boxes[1 - index]

    def gather(self, thing: Any, *, by_samples: bool = False) -> list[Any]:
        self._other.put(thing)
        found = self._mine.get()
        assert found != GONE, "this rank would wait for ever"
        return [thing, found] if self.index == 0 else [found, thing]

    def leave(self) -> None:
        self._other.put(GONE)


@pytest.mark.parametrize("guilty", [0, 1])
def test_a_checkpoint_that_one_rank_cannot_write_fails_on_all_with_its_reason(
    make_trainer: MakeTrainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, guilty: int
) -> None:
    monkeypatch.setattr(checkpoint.sharded_checkpoint, "save", lambda *_: None)
    boxes: list[Queue[Any]] = [Queue(), Queue()]
    folders = [tmp_path / "first", tmp_path / "second"]
    # The first rank finds a directory where a file of its own goes; the second a file where the directory goes.
    if guilty == 0:
        (folders[0] / checkpoint.STATE_FILE).mkdir(parents=True)
    else:
        folders[1].touch()
    trainers = [make_trainer(), make_trainer()]
    errors: dict[int, str] = {}

    def save(rank: int) -> None:
        ranks = trainers[rank]._ranks = TwoThreads(rank, boxes)
        try:
            trainers[rank].save(folders[rank])
        except (OSError, AssertionError) as error:
            errors[rank] = str(error)
        ranks.leave()

    threads = [threading.Thread(target=save, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert str(folders[guilty]) in errors[guilty]
    assert errors == {0: errors[guilty], 1: errors[guilty]}
