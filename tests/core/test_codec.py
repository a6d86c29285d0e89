"""What is written is read back the same, and what cannot be is refused."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from enum import Enum

import pytest

from tailrace.core import codec
from tailrace.core import commands as do
from tailrace.core import events as ev
from tailrace.core.commands import FinishRun
from tailrace.core.errors import InvalidTransition, ReplayMismatch
from tailrace.core.fleet.instance import InstancePhase
from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.core.journal import FORMAT, Entry, OtherFormat, check_format, decode, encode, replay_all
from tailrace.core.ledger.admission import AdmissionRule, LedgerRules
from tailrace.core.ledger.ledger import BatchState
from tailrace.core.outcomes import Outcome
from tailrace.core.responses.group import GroupPhase
from tailrace.core.responses.response import Finish, Response, ResponsePhase
from tailrace.core.schedule import EpochEnd, Leftovers, Placement, Schedule, VersionCap

WORDS = (
    AdmissionRule, BatchState, EpochEnd, Finish, GroupPhase, InstancePhase, Leftovers, Outcome, Placement,
    ResponsePhase, VersionCap,
)  # fmt: skip

GROUP = GroupId("a:b", 1, 2)
RESPONSE = ResponseId(GROUP, 3, 4)
SCHEDULE = Schedule(train_source="train", batch_size=2, group_size=2, max_steps=2)


class Colour(Enum):
    RED = "red"


@dataclass(frozen=True)
class Inner:
    number: int = 7


@dataclass(frozen=True)
class Sample:
    group: GroupId
    version: Version
    colour: Colour
    name: str | None
    pair: tuple[int, str]
    one: tuple[Inner]
    chosen: tuple[ResponseId, ...] | None
    many: tuple[ResponseId, ...]
    listed: list[float]
    table: dict[GroupId, Inner]
    ordered: dict[GroupId, None]
    by_number: dict[InstanceId, bool]
    named: do.Dispatch


SAMPLE = Sample(
    group=GROUP,
    version=Version(3),
    colour=Colour.RED,
    name=None,
    pair=(1, "x"),
    one=(Inner(number=2),),
    chosen=(RESPONSE, RESPONSE._replace(member=4)),
    many=(RESPONSE, RESPONSE._replace(member=0)),
    listed=[0.5, 2.0],
    table={GROUP: Inner(number=1)},
    ordered={GROUP: None, GroupId("t", 0, 1): None},
    by_number={InstanceId(2): True},
    named=do.Dispatch(response=RESPONSE, start=5),
)


def test_a_value_is_written_in_json_and_read_back_equal() -> None:
    data = json.loads(json.dumps(codec.encode(SAMPLE)))
    assert data["group"] == "a:b:1:2"
    assert data["many"] == ["a:b:1:2:3,0:4"]
    assert data["one"] == [{"number": 2}]
    assert data["chosen"] == ["a:b:1:2:3-4:4"], "the short form, also where there may be none"
    assert data["colour"] == "red"
    assert data["table"] == {"a:b:1:2": {"number": 1}}
    assert data["by_number"] == {"2": True}
    assert data["named"] == {"response": "a:b:1:2:3:4", "start": 5}
    found = codec.decode(Sample, data)
    assert found == SAMPLE
    assert isinstance(next(iter(found.by_number)), int)
    assert isinstance(found.named, do.Dispatch)


def test_none_comes_back_where_there_may_be_ids_or_records() -> None:
    sample = replace(SAMPLE, chosen=None)
    data = json.loads(json.dumps(codec.encode(sample)))
    assert data["chosen"] is None
    assert codec.decode(Sample, data) == sample


def test_plain_containers_are_written_as_they_are() -> None:
    assert codec.encode({"a": [None, (1, 2.5)], InstanceId(3): {}}) == {"a": [None, [1, 2.5]], "3": {}}


def test_what_follows_from_the_rest_is_not_stored_and_comes_back() -> None:
    response = Response(id=RESPONSE)
    response.grow(5, Version(1))
    response.grow(7, Version(2))
    response.move(ResponsePhase.RUNNING, now=1.25)
    data = codec.encode(response)
    assert "length" not in data
    found = codec.decode(Response, json.loads(json.dumps(data)))
    assert found == response
    assert found.length == 7


@pytest.mark.parametrize("words", WORDS)
def test_what_is_stored_for_a_choice_is_its_name(words: type[Enum]) -> None:
    assert [choice.value for choice in words] == [choice.name.lower() for choice in words]


def ids(*texts: str) -> tuple[ResponseId, ...]:
    return tuple(ResponseId.parse(text) for text in texts)


@pytest.mark.parametrize(
    ("responses", "expected"),
    [
        ((), []),
        (ids("t:0:17:0:0", "t:0:17:1:0", "t:0:17:2:0", "t:0:17:5:0"), ["t:0:17:0-2,5:0"]),
        (ids("t:0:17:3:0", "t:0:18:1:0", "t:0:18:2:0"), ["t:0:17:3:0", "18:1-2"]),
        (
            ids("t:0:17:3:0", "t:0:17:3:1", "t:1:17:3:0", "u:1:17:3:0"),
            ["t:0:17:3:0", "17:3:1", "t:1:17:3:0", "u:1:17:3:0"],
        ),
        (ids("t:0:17:2:0", "t:0:17:1:0", "t:0:17:1:0"), ["t:0:17:2,1,1:0"]),
        (ids("1:2:3:0:1:0", "1:2:3:0:2:0"), ["1:2:3:0:1-2:0"]),
    ],
)
def test_ids_in_a_row_are_written_by_group_and_keep_their_order(
    responses: tuple[ResponseId, ...], expected: list[str]
) -> None:
    data = codec.encode(do.Score(responses=responses))
    assert data == {"responses": expected, "part": "function"}
    assert codec.decode(do.Score, data) == do.Score(responses=responses)


def test_records_in_a_row_are_written_in_columns_without_what_is_nothing() -> None:
    first, second = ids("t:0:17:0:0", "t:0:17:1:0")
    ends = (
        ev.Finished(response=first, length=5, finish=Finish.STOP),
        ev.Finished(response=second, length=7, finish=Finish.STOP),
    )
    report = ev.RolloutReported(instance=InstanceId(1), version=Version(2), finished=ends)
    data = codec.encode(report)
    finished = {"response": ["t:0:17:0-1:0"], "length": [5, 7], "finish": "stop"}
    assert data == {"instance": 1, "version": 2, "finished": finished}
    assert codec.decode(ev.RolloutReported, json.loads(json.dumps(data))) == report


def test_journals_that_call_a_response_a_trajectory_are_read() -> None:
    first, second = ids("t:0:17:0:0", "t:0:17:1:0")
    finished = {"trajectory": ["t:0:17:0-1:0"], "length": [5, 7], "finish": "stop"}
    report = codec.decode(ev.RolloutReported, {"instance": 1, "version": 2, "finished": finished})
    assert [(end.response, end.length) for end in report.finished] == [(first, 5), (second, 7)]
    assert codec.decode(do.Score, {"trajectories": ["t:0:17:0-1:0"]}) == do.Score(responses=(first, second))
    assert codec.decode(do.Dispatch, {"trajectory": "t:0:17:1:0", "start": 3}) == do.Dispatch(second, 3)


def test_a_column_keeps_values_that_differ_only_in_their_type_or_are_no_numbers() -> None:
    first, second = ids("t:0:17:0:0", "t:0:17:1:0")
    scores = (
        ev.Scored(response=first, outcome=Outcome.OK, score=0.5, seconds=0.0, extras=(("a", 1.0), ("b", 2.0))),
        ev.Scored(response=second, outcome=Outcome.ERROR, score=0.5, seconds=0.0, detail="broken"),
    )
    event = ev.ResponsesScored(scores=scores)
    data = json.loads(json.dumps(codec.encode(event)))
    assert data["scores"]["score"] == 0.5
    assert data["scores"]["detail"] == ["", "broken"]
    assert codec.decode(ev.ResponsesScored, data) == event


def test_a_column_of_equal_values_is_left_out_only_if_they_are_nothing() -> None:
    first, second = ids("t:0:17:0:0", "t:0:17:1:0")
    for detail, stored in (("", {}), ("broken", {"detail": "broken"})):
        scores = tuple(
            ev.Scored(response=response, outcome=Outcome.ERROR, score=0.0, seconds=0.5, detail=detail)
            for response in (first, second)
        )
        event = ev.ResponsesScored(scores=scores)
        data = json.loads(json.dumps(codec.encode(event)))
        always = {"response": ["t:0:17:0-1:0"], "outcome": "error", "score": 0.0, "seconds": 0.5}
        assert data == {"scores": always | stored, "part": "function"}
        assert codec.decode(ev.ResponsesScored, data) == event


def test_a_column_of_equal_values_that_are_no_plain_ones_names_each_of_them() -> None:
    scores = tuple(
        ev.Scored(response=each, outcome=Outcome.OK, score=0.5, seconds=0.1, extras=(("a", 1.0), ("b", 2.0)))
        for each in ids("t:0:17:0:0", "t:0:17:1:0", "t:0:17:2:0")
    )
    event = ev.ResponsesScored(scores=scores)
    assert codec.decode(ev.ResponsesScored, json.loads(json.dumps(codec.encode(event)))) == event


def test_group_ids_in_a_row_are_written_one_by_one() -> None:
    command = do.ReportDropped(filtered=(GROUP, GroupId("t", 0, 5)))
    assert codec.encode(command) == {"filtered": ["a:b:1:2", "t:0:5"]}


@dataclass(frozen=True, slots=True)
class Doubled:
    """It computes one of its fields, so records of it cannot be made without ``__init__``."""

    number: int
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * self.number)


@dataclass(frozen=True, slots=True)
class Slotted:
    number: int
    name: str = ""


@dataclass(frozen=True)
class Rows:
    plain: tuple[Inner, ...]
    named: tuple[do.Dispatch, ...]
    slotted: tuple[Slotted, ...]
    doubled: tuple[Doubled, ...]


@pytest.mark.parametrize("count", [0, 1, 2], ids=["none", "one", "two equal ones"])
def test_records_of_every_kind_come_back_from_their_columns(count: int) -> None:
    rows = Rows(
        plain=(Inner(number=4),) * count,
        named=(do.Dispatch(response=RESPONSE, start=5),) * count,
        slotted=(Slotted(number=3, name="x"),) * count,
        doubled=(Doubled(number=3),) * count,
    )
    data = json.loads(json.dumps(codec.encode(rows)))
    assert data["plain"] == ({"number": [4] * count} if count else [])
    assert codec.decode(Rows, data) == rows


def test_a_missing_field_has_its_default() -> None:
    assert codec.decode(Inner, {}) == Inner()


def test_what_an_event_or_a_command_leaves_out_is_nothing() -> None:
    parts = [part for part in (*vars(ev).values(), *vars(do).values()) if is_dataclass(part)]
    mine = [part for part in parts if part.__module__ in (ev.__name__, do.__name__)]
    defaults = {f"{p.__name__}.{f.name}": f.default for p in mine for f in fields(p) if f.default is not MISSING}
    assert "Scored.detail" in defaults
    # Scores of older releases had one part, and their journals do not name it. Journals of today always do.
    had_one = ["ResponsesScored.part", "Score.part", "AbortScores.part"]
    assert [name for name, default in defaults.items() if default] == had_one


def test_a_tuple_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        codec.decode(tuple[int, str], [1])
    with pytest.raises(ValueError, match="shorter"):
        codec.encode(replace(SAMPLE, pair=(1,)))


@pytest.mark.parametrize("annotation", [set[int], bytes, complex])
def test_a_type_that_is_not_known_is_refused_when_it_is_met(annotation: object) -> None:
    with pytest.raises(TypeError, match="cannot decode"):
        codec.decode(annotation, [])


@pytest.mark.parametrize("value", [{1}, b"x", object()])
def test_a_value_that_is_not_known_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot encode"):
        codec.encode([value])


def test_an_id_may_have_colons_in_its_source() -> None:
    assert GroupId.parse("a:b:1:2") == GROUP
    assert ResponseId.parse("a:b:1:2:3:4") == RESPONSE
    assert str(RESPONSE) == "a:b:1:2:3:4"


def test_a_journal_entry_is_one_line_without_spaces() -> None:
    entry = Entry(
        now=1.5,
        event=ev.StopRequested(reason="enough"),
        commands=(FinishRun(is_complete=False, reason="enough"),),
    )
    line = encode(entry)
    assert line == (
        '{"now":1.5,"event":{"type":"StopRequested","reason":"enough"},'
        '"commands":[{"type":"FinishRun","is_complete":false,"reason":"enough"}]}'
    )
    assert decode(line) == entry
    timed = replace(entry, decided_s=0.25)
    assert encode(timed) == line[:-1] + ',"decided_s":0.25}'
    assert decode(encode(timed)) == timed


def test_the_first_line_of_a_journal_names_its_format() -> None:
    started = Entry(now=0.0, event=ev.RunStarted(schedule=SCHEDULE), commands=())
    line = encode(started)
    assert line.startswith(f'{{"format":{FORMAT},"now":0.0,')
    check_format(line)
    assert decode(line) == started


@pytest.mark.parametrize(
    ("line", "which"),
    [('{"now":0.0}', "has no format number"), ('{"format":99}', "has format 99"), ("[]", "has no format number")],
)
def test_a_journal_of_another_format_is_refused(line: str, which: str) -> None:
    with pytest.raises(OtherFormat, match=f"the journal {which}, and this version of tailrace reads format {FORMAT}"):
        check_format(line)


def test_a_journal_begins_with_the_start_of_its_run() -> None:
    entry = Entry(now=0.0, event=ev.StopRequested(reason="enough"), commands=())
    with pytest.raises(ReplayMismatch, match="begins with RunStarted, not StopRequested"):
        replay_all([entry], lambda schedule: pytest.fail("there is no schedule"))


def test_an_illegal_move_of_something_new_says_that_it_has_no_story() -> None:
    error = InvalidTransition("group a", "open", "trained", [])
    assert str(error) == "group a: open -> trained is not legal\n  (it has no story yet)"
    assert (error.subject, error.old, error.new, error.story) == ("group a", "open", "trained", ())
    told = InvalidTransition("group a", "open", "trained", ["one", "two"])
    assert str(told).endswith("is not legal\n  one\n  two")


def test_a_schedule_of_an_older_release_is_read() -> None:
    """`keeps_deferred_tokens` has another name now, and "no bound" was said twice."""
    free = replace(SCHEDULE, leftovers=Leftovers.DEFER, launch_prompts=3, max_staleness=None, keep_deferred_tokens=True)
    data = json.loads(json.dumps(codec.encode(free)))
    old = {**data, "admission": "unbounded", "keeps_deferred_tokens": data.pop("keep_deferred_tokens")}
    assert codec.decode(Schedule, old) == free
    assert codec.decode(Schedule, codec.encode(free)) == free
    assert codec.decode(ev.RunStarted, {"schedule": old}).schedule == free


def test_the_ledger_of_an_older_checkpoint_is_read() -> None:
    old = {"batch_size": 2, "max_staleness": 0, "admission": "unbounded", "capacity": 2}
    found = codec.decode(LedgerRules, old)
    assert found == LedgerRules(batch_size=2, max_staleness=None, admission=AdmissionRule.DEADLINE, capacity=2)
    assert codec.decode(LedgerRules, codec.encode(found)) == found
    strict = {**old, "admission": "deadline"}
    assert codec.decode(LedgerRules, strict).max_staleness == 0
