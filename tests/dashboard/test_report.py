"""The page: self-contained, small, and showing exactly the numbers of the folds."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from core.world import World
from observe.runs import advance_until, write_checkpoint, write_journal
from tailrace.core import events as ev
from tailrace.core.ids import ResponseId, Version
from tailrace.core.schedule import EvalSet, Leftovers, Schedule, Stream
from tailrace.dashboard import samples, tables
from tailrace.dashboard.page import even_columns
from tailrace.dashboard.report import write_report
from tailrace.observe.account import Account
from tailrace.observe.journal.run_files import RunFiles
from tailrace.store.payload_store import PayloadStore
from tailrace.store.segment import Segment

SCHEDULE = Schedule(
    train_source="train",
    batch_size=2,
    group_size=3,
    max_steps=5,
    num_instances=2,
    eval_sets=(EvalSet(name="heldout", num_prompts=2, group_size=2),),
    eval_interval=2,
)


class Page(HTMLParser):
    """What a browser would load, and the idle seconds of every lane."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.idle: dict[str, float] = {}
        self.ids: set[str] = set()
        self.text: list[str] = []
        self._is_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attributes}
        self.loaded += [found[name] for name in ("src", "href") if name in found and not found[name].startswith("#")]
        self.ids.add(found.get("id", ""))
        self._is_script = tag in ("script", "style")
        if "data-lane" in found:
            self.idle[found["data-lane"]] = float(found["data-idle"])

    def handle_endtag(self, tag: str) -> None:
        self._is_script = self._is_script and tag not in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self._is_script:
            self.text.append(data)

    @property
    def words(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.text))


def finished() -> World:
    world = World(SCHEDULE, random.Random(1))
    world.run()
    return world


def streamed() -> World:
    """Training beside rollout, in short and in long rounds."""
    schedule = replace(SCHEDULE, max_steps=12, launch_prompts=4, leftovers=Leftovers.DEFER, stream=Stream.ALWAYS)
    world = World(schedule, random.Random(1), num_prompts=29)
    assert world.run().is_complete
    return world


def crashed() -> World:
    world = World(SCHEDULE, random.Random(1))
    world.tell(ev.RunStarted(schedule=SCHEDULE))
    advance_until(world, lambda w: w.coordinator.version == 3 and any(w.running.values()))
    return world


def barely_begun() -> World:
    world = World(SCHEDULE, random.Random(1))
    world.tell(ev.RunStarted(schedule=SCHEDULE))
    return world


def page_of(run: Path) -> Page:
    return Page(write_report(run).read_text(encoding="utf-8"))


@pytest.mark.parametrize(("make", "status"), [(finished, "finished"), (crashed, "stopped"), (barely_begun, "stopped")])
def test_the_idle_seconds_on_the_page_are_those_of_the_journal(tmp_path: Path, make: object, status: str) -> None:
    world = make()  # type: ignore[operator]
    page = page_of(write_journal(tmp_path / "run", world.entries))
    lanes = Account.of(world.entries).timeline.lanes()
    assert page.idle == pytest.approx({lane.name: lane.idle_s for lane in lanes}, abs=1e-6)
    assert len(page.idle) == 4
    assert f"run {status}" in page.words
    assert "chart-timeline" in page.ids


def test_the_page_loads_nothing_and_is_small(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", finished().entries)
    path = write_report(run, tmp_path / "elsewhere.html")
    assert path == tmp_path / "elsewhere.html"
    assert Page(path.read_text(encoding="utf-8")).loaded == []
    assert path.stat().st_size < 3_000_000


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", crashed().entries)
    with (run / "journal.jsonl").open("a") as journal:
        journal.write('{"now": 99999, "eve')
    assert "3 of 5 steps" in page_of(run).words


def test_the_page_says_what_the_stop_note_says(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", crashed().entries)
    assert "then it stopped: its process ended without a word." in page_of(run).words
    (run / "stopped.json").write_text(json.dumps({"reason": "No space left on device (journal.jsonl)"}))
    assert "then it stopped: No space left on device (journal.jsonl)." in page_of(run).words


@pytest.mark.parametrize("most", [6, 4])
def test_no_tile_stands_alone_in_its_row(most: int) -> None:
    for count in range(1, 13):
        columns = even_columns(count, most)
        assert 1 <= columns <= most
        assert count <= columns or count % columns != 1, f"{count} tiles in rows of {columns}"
    assert (even_columns(7, 6), even_columns(7, 4), even_columns(7, 2), even_columns(0, 6)) == (4, 4, 2, 1)


def test_one_evaluation_and_one_step_show_their_value_and_no_change() -> None:
    account = Account.of(crashed().entries)
    (first, second), step = account.evaluations[:2], account.steps[0]
    assert tables.tiles(account)[0][1] == "mean reward, first \N{RIGHTWARDS ARROW} last"
    change = f"{first['eval/heldout/avg@2']:.3f} \N{RIGHTWARDS ARROW} {second['eval/heldout/avg@2']:.3f}"
    assert (change, "heldout/avg@2") in tables.tiles(account)
    account.steps, account.evaluations = [step], [first]
    tiles = tables.tiles(account)
    assert (f"{step['reward/mean']:.3f}", "mean reward") in tiles
    assert (f"{first['eval/heldout/avg@2']:.3f}", "heldout/avg@2") in tiles


def test_one_step_is_one_step(tmp_path: Path) -> None:
    world = World(replace(SCHEDULE, max_steps=1), random.Random(1))
    world.run()
    page = page_of(write_journal(tmp_path / "run", world.entries))
    assert "1 of 1 step in" in page.words
    assert "last 1 step responses" in page.words
    assert "1 steps" not in page.words


@pytest.mark.long
def test_five_hundred_steps_stay_small(tmp_path: Path) -> None:
    schedule = Schedule(train_source="train", batch_size=1, group_size=2, max_steps=500)
    world = World(schedule, random.Random(2))
    world.run()
    path = write_report(write_journal(tmp_path / "run", world.entries))
    assert path.stat().st_size < 5_000_000
    assert "500 of 500 steps" in Page(path.read_text(encoding="utf-8")).words


def write_payload(run: Path, world: World, token: int = 1) -> None:
    with PayloadStore.open(run / "payload") as store:
        for entry in world.entries:
            if isinstance(entry.event, ev.RolloutReported):
                for part in (*entry.event.progressed, *entry.event.finished):
                    held = store.length(part.response)
                    if part.length > held:
                        store.append([segment(part.response, held, part.length - held, token)])


def segment(response: ResponseId, start: int, count: int, token: int) -> Segment:
    return Segment(
        response_id=response,
        start=start,
        version=Version(0),
        tokens=np.full(count, token, np.int32),
        logprobs=np.zeros(count, np.float32),
        mask=np.ones(count, np.uint8),
    )


def test_responses_that_are_no_longer_held_are_said_to_be_gone(tmp_path: Path) -> None:
    page = page_of(write_journal(tmp_path / "run", finished().entries))
    assert "The payload store holds no whole response" in page.words


def test_responses_are_shown_with_prompt_and_score_and_cannot_break_the_page(tmp_path: Path) -> None:
    world = finished()
    run = write_journal(tmp_path / "run", world.entries)
    write_payload(run, world)
    write_tokenizer(write_checkpoint(run, SCHEDULE, world.entries, 5))
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": f"<b>prompt {n}", "answer": "1"}) + "\n" for n in range(7)))
    (run / "config.json").write_text(json.dumps({"data": {"train": str(prompts)}}))
    page = page_of(run)
    account = Account.of(world.entries)
    shown = samples.load(RunFiles.find(run), account.fates)
    assert shown
    for sample in shown:
        note = account.fates.groups[sample.response_id.group].responses[sample.response_id]
        assert (sample.score, sample.length) == (note.score, note.length)
        assert sample.text.split() == ["</script><i>"] * note.length
        assert sample.prompt == f"<b>prompt {sample.response_id.group.prompt}"
        assert f"score {note.score:.3f}" in page.words
        assert sample.prompt in page.words
    assert "</script><i>" in page.words, "the text is shown, not obeyed"


def write_tokenizer(checkpoint: Path) -> None:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    tokenizer = Tokenizer(WordLevel({"a": 0, "</script><i>": 1}, unk_token="a"))
    tokenizer.save(str(checkpoint / "tokenizer.json"))


def test_without_a_tokenizer_the_tokens_are_shown(tmp_path: Path) -> None:
    world = finished()
    run = write_journal(tmp_path / "run", world.entries)
    write_payload(run, world, token=7)
    shown = samples.load(RunFiles.find(run), Account.of(world.entries).fates)
    assert shown[0].text == "tokens " + " ".join(["7"] * shown[0].length)


def test_payload_is_read_while_its_writer_is_at_work_and_a_torn_end_is_left_alone(tmp_path: Path) -> None:
    response = ResponseId.parse("train:0:1:0:0")
    with PayloadStore.open(tmp_path) as store:
        store.append([segment(response, 0, 4, 3), segment(response, 2, 3, 5)])
        (file,) = tmp_path.glob("*.bin")
        whole = file.read_bytes()
        file.write_bytes(whole + whole[:20])
        assert samples.read_tokens(tmp_path, {response}) == {response: [3, 3, 5, 5, 5]}
        assert file.read_bytes() == whole + whole[:20]


def test_what_was_changed_on_the_way_is_shown_with_its_step(tmp_path: Path) -> None:
    run = write_journal(tmp_path / "run", finished().entries)
    changed = [
        {"setting": "schedule.max_steps", "value": 4, "before": 2},
        {"setting": "eval:hard", "value": {"name": "hard"}, "before": None},
        {"source": "file of reward function 'r.py:f'"},
    ]
    (run / "changes.json").write_text(json.dumps({"changes": [{"from_step": 3, "changed": changed}]}))
    page = page_of(run)
    assert "from step 3: schedule.max_steps is 4, before 2" in page.words
    assert "from step 3: evaluation set 'hard' is new" in page.words
    assert "from step 3: the file of reward function 'r.py:f' was edited" in page.words
