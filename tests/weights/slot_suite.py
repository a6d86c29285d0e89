"""What a channel of two slots promises beyond ``channel_suite``: file, checksums, and whom a publish waits for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tailrace.core.ids import Version
from tailrace.weights.channel import CorruptWeights, WriterLost
from tailrace.weights.sharding.transfer_plan import Transfer
from tailrace.weights.slots.control_file import RECORD_OFFSETS
from tailrace.weights.slots.slot_locks import ReaderWait
from tailrace.weights.slots.two_slots import WeightWriter, layout_of
from weights.channel_kinds import SlotKind
from weights.channel_suite import PARTS, assert_holds, create
from weights.contents import weights


def test_a_publish_waits_for_those_who_read_what_it_overwrites_and_a_pull_for_nobody(
    kind: SlotKind, tmp_path: Path
) -> None:
    writer = create(kind, tmp_path / "w")
    writer.publish(Version(0), weights(0))

    def publish_twice() -> None:
        writer.publish(Version(1), weights(1))
        writer.publish(Version(2), weights(2))

    def meddle() -> None:
        thread.start()
        while reader.latest_version() != 1:
            time.sleep(0.001)
        thread.join(0.1)
        assert thread.is_alive(), "version 2 has overwritten version 0 while it was read"
        assert_holds(kind.reader(tmp_path / "w").fetch_whole(Version(0)), 1)

    thread = threading.Thread(target=publish_twice)
    reader = kind.meddled_reader(tmp_path / "w", meddle)
    assert_holds(reader.fetch_whole(Version(0)), 0)
    thread.join()
    assert_holds(reader.fetch_whole(Version(0)), 2)


def test_a_reader_that_does_not_move_on_is_overtaken_and_its_copy_not_believed(kind: SlotKind, tmp_path: Path) -> None:
    file = kind.file(tmp_path / "w", layout_of(weights(0)))
    writer = WeightWriter(file, ReaderWait(file.locks, limit_s=0.0))
    writer.publish(Version(0), weights(0))

    def meddle() -> None:
        writer.publish(Version(1), weights(1))
        writer.publish(Version(2), weights(2))

    assert_holds(kind.meddled_reader(tmp_path / "w", meddle).fetch_whole(Version(0)), 2)


@pytest.mark.parametrize("where", ["tensor", "table"])
def test_changed_bytes_are_noticed(kind: SlotKind, tmp_path: Path, where: str) -> None:
    file = kind.file(tmp_path / "w", layout_of(weights(0)))
    WeightWriter(file).publish(Version(0), weights(7))
    if where == "tensor":
        kind.change_byte(file, 1, 4, 1000)  # type: ignore[arg-type]
    else:
        file.table(1)[0] ^= 1
    with pytest.raises(CorruptWeights, match="differ from their checksums"):
        kind.reader(tmp_path / "w").fetch_whole(Version(0))


def test_a_torn_announcement_falls_back_to_the_version_before(kind: SlotKind, tmp_path: Path) -> None:
    writer = create(kind, tmp_path / "w")
    writer.publish(Version(0), weights(0))
    writer.publish(Version(1), weights(1))
    with (tmp_path / "w").open("r+b") as file:
        file.seek(RECORD_OFFSETS[0] + 10)
        file.write(b"\xff")
    assert_holds(kind.reader(tmp_path / "w").fetch_whole(Version(0)), 0)


def test_a_channel_made_anew_is_noticed_by_its_readers(kind: SlotKind, tmp_path: Path) -> None:
    first = create(kind, tmp_path / "w")
    first.publish(Version(5), weights(5))
    reader = kind.reader(tmp_path / "w")
    assert_holds(reader.fetch_whole(Version(0)), 5)
    second = create(kind, tmp_path / "w")
    second.publish(Version(2), weights(2))
    assert_holds(reader.fetch_whole(Version(0)), 2)


def test_closing_the_writer_removes_the_file_and_a_reader_never_gets_wrong_weights(
    kind: SlotKind, tmp_path: Path
) -> None:
    writer = create(kind, tmp_path / "w")
    writer.publish(Version(0), weights(0))
    reader = kind.reader(tmp_path / "w")
    assert_holds(reader.fetch_whole(Version(0)), 0)
    writer.close()
    assert not (tmp_path / "w").exists()
    if kind.outlives_its_writer:
        assert_holds(reader.fetch_whole(Version(0)), 0)
    else:
        with pytest.raises(WriterLost, match="the process that published the weights has ended"):
            reader.fetch_whole(Version(0))
    reader.close()


def test_a_changed_byte_is_noticed_by_those_who_copy_a_part_of_its_tensor_only(kind: SlotKind, tmp_path: Path) -> None:
    file = kind.file(tmp_path / "w", layout_of(weights(0)))
    WeightWriter(file).publish(Version(0), weights(0))
    kind.change_byte(file, 1, 0, 3)  # type: ignore[arg-type]
    reader = kind.reader(tmp_path / "w")
    damaged, sound = (Transfer(slice=part, sender="parameter server", receiver="engine") for part in PARTS[:2])
    assert reader.fetch(Version(0), [sound]).version == 0
    with pytest.raises(CorruptWeights, match="differ from their checksums"):
        reader.fetch(Version(0), [sound, damaged])


def test_a_file_that_is_no_channel_is_refused(kind: SlotKind, tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"x" * 5000)
    with pytest.raises(ValueError, match="not a weight channel"):
        kind.reader(tmp_path / "w")
