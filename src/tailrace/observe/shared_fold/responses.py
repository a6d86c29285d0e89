"""The responses of a run that are in progress, and where each of them runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tailrace.core.ids import GroupId, InstanceId, ResponseId, Version
from tailrace.observe.shared_fold.news import News
from tailrace.observe.shared_fold.records import InstanceRecord, ResponseRecord, RunState


class ResponseRecords:
    """Owns the records of responses, and finds them by group and by instance."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        self.generating: dict[InstanceId, None] = {}
        """Instances that hold at least one unfinished response."""
        self._num_running: dict[str, int] = {}
        """Responses that an instance runs, by their source."""
        self._tokens_held: dict[str, int] = {}
        """Tokens of these responses, by their source."""
        self._groups: dict[GroupId, dict[ResponseId, ResponseRecord]] = {}
        """Responses in progress, by group; never an empty group."""
        for response in state.responses.values():
            if not response.is_dropped:
                self._groups.setdefault(response.id.group, {})[response.id] = response
            if response.instance is not None:
                self._run_on(response, response.instance)

    def in_progress(self) -> Iterator[ResponseRecord]:
        """All responses that are not dropped."""
        return (response for members in self._groups.values() for response in members.values())

    def of_groups(self, groups: Iterable[GroupId]) -> list[ResponseRecord]:
        """The responses in progress of these groups."""
        return [response for group in groups for response in self._groups.get(group, {}).values()]

    def num_running(self, source: str) -> int:
        """How many responses to prompts of this source the instances hold."""
        return self._num_running.get(source, 0)

    def num_tokens_held(self, source: str) -> int:
        """How many tokens the responses to prompts of this source have that the instances hold."""
        return self._tokens_held.get(source, 0)

    def sources_running(self) -> list[str]:
        """The sources of the responses that the instances hold."""
        return [source for source, count in self._num_running.items() if count]

    def running_on(self, instance: InstanceId, response_id: ResponseId) -> ResponseRecord | None:
        """The response, if this instance runs it."""
        response = self._state.responses.get(response_id)
        return response if response is not None and response.instance == instance else None

    def submit(self, response_id: ResponseId, start: int, instance: InstanceId, news: News) -> None:
        """The instance runs the response from here on. Earlier attempts of the same member are dropped."""
        members = self._groups.setdefault(response_id.group, {})
        if (response := members.get(response_id)) is None:
            response = members[response_id] = ResponseRecord(id=response_id, length=start)
            self._state.responses[response_id] = response
        self._run_on(response, instance)
        if response_id.attempt:
            same = [other for other in members.values() if other.id.member == response_id.member]
            self.drop([other for other in same if other.id.attempt < response_id.attempt], news)

    def grow(self, response: ResponseRecord, length: int, version: Version) -> int:
        """Add the tokens that the instance of the response reports, and return how many are new."""
        new = response.grow(length, version)
        self._tokens_held[response.id.group.source] += new
        return new

    def stop(self, instance: InstanceId, response_ids: Iterable[ResponseId]) -> None:
        """The instance is asked to interrupt these responses."""
        for response_id in response_ids:
            if (response := self.running_on(instance, response_id)) is not None:
                response.is_stopping = True

    def leave(self, response: ResponseRecord, news: News) -> None:
        """The response does not run any more."""
        assert response.instance is not None
        running = self._instance(response.instance).running
        del running[response.id]
        source = response.id.group.source
        self._num_running[source] -= 1
        self._tokens_held[source] -= response.length
        if not running:
            del self.generating[response.instance]
        response.instance, response.is_stopping = None, False
        if response.is_dropped:
            self._remove(response, news)

    def drop(self, responses: Iterable[ResponseRecord], news: News) -> None:
        """Take these out of progress. One that an instance still runs is remembered until it has stopped."""
        for response in responses:
            if response.is_dropped:
                continue
            response.is_dropped = True
            self._leave_group(response)
            news.dropped.append(response)
            news.wasted.append((response, response.length))
            if response.instance is None:
                self._remove(response, news)

    def take(self, response_ids: Iterable[ResponseId]) -> list[ResponseRecord]:
        """Remove these, which are trained or evaluated, from progress."""
        responses = [self._state.responses.pop(response_id) for response_id in response_ids]
        for response in responses:
            self._leave_group(response)
        return responses

    def _run_on(self, response: ResponseRecord, instance: InstanceId) -> None:
        response.instance = instance
        running, source = self._instance(instance).running, response.id.group.source
        if response.id not in running:
            self._num_running[source] = self.num_running(source) + 1
            self._tokens_held[source] = self.num_tokens_held(source) + response.length
        running[response.id] = response
        self.generating[instance] = None

    def _instance(self, number: InstanceId) -> InstanceRecord:
        found = self._state.instances.get(number)
        return self._state.instances.setdefault(number, InstanceRecord()) if found is None else found

    def _remove(self, response: ResponseRecord, news: News) -> None:
        """The response is dropped and runs nowhere: no more is going to be heard of it."""
        del self._state.responses[response.id]
        news.gone.append(response)

    def _leave_group(self, response: ResponseRecord) -> None:
        members = self._groups[response.id.group]
        del members[response.id]
        if not members:
            del self._groups[response.id.group]
