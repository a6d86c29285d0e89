"""Why an actor ended: Ray's errors as sentences. The texts are Ray's own."""

from __future__ import annotations

import pytest

pytest.importorskip("ray", reason="needs the extra 'ray'")

from ray import exceptions

from tailrace.runtime.ray.endings import reason_of

KILLED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: 6218\n\tip: 10.0.0.2\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker"
    " unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was"
    " killed by the OOM killer due to high memory usage, (2) ray stop --force was called."
)
NODE = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: A\nThe actor is dead because its node has"
    " died. Node Id: 29dad27a the actor's node was terminated unexpectedly: health check failed due to missing too many"
    " heartbeats"
)
MEMORY = (
    "Task was killed due to the node running low on memory. Memory on the node (IP: 10.0.0.2) was 23.00GB / 24.00GB"
    " (0.95), which exceeds the memory usage threshold of 0.95. Ray killed this worker because of the memory pressure."
)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (
            exceptions.RayActorError(None, KILLED),
            "worker 'x' on node 10.0.0.2 was killed or crashed: its worker process has died. Worker exit type:"
            " SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file",
        ),
        (
            exceptions.RayActorError(None, NODE),
            "worker 'x' on node 10.0.0.2 was lost with its node: its node has died. Node Id: 29dad27a the actor's node"
            " was terminated unexpectedly: health check failed due to missing too many heartbeats",
        ),
        (
            exceptions.RayActorError(None, NODE.replace("The actor is dead because", "The actor died because")),
            "worker 'x' on node 10.0.0.2 was lost with its node: its node has died. Node Id: 29dad27a the actor's node"
            " was terminated unexpectedly: health check failed due to missing too many heartbeats",
        ),
        (
            exceptions.OutOfMemoryError(MEMORY),
            "worker 'x' on node 10.0.0.2 was killed by Ray, because its node was short of memory: " + MEMORY,
        ),
        (
            exceptions.ActorUnavailableError("RPC error: Socket closed rpc_code: 14", None),
            "worker 'x' on node 10.0.0.2 cannot be reached any more: RPC error: Socket closed",
        ),
        (
            RuntimeError("no connection"),
            "worker 'x' on node 10.0.0.2 is lost, because Ray failed: RuntimeError: no connection",
        ),
    ],
)
def test_the_sentence_says_what_happened_and_leaves_out_general_advice(error: Exception, sentence: str) -> None:
    assert reason_of("x", " on node 10.0.0.2", error) == sentence
