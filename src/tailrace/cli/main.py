"""The ``tailrace`` command: ``_VERBS`` lists the module of each verb."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from typing import Protocol

from tailrace.cli import (
    advise,
    bench,
    cluster,
    compare,
    doctor,
    export,
    profile,
    replay,
    report,
    rollout,
    simulate,
    train,
    version,
)
from tailrace.config.load import SettingsError, refuse_unknown


class Verb(Protocol):
    """What the module of a verb must define. The first line of its docstring is its help."""

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, options: argparse.Namespace) -> int:
        """Return the exit status: 0, or 2 for a mistake of the user, after `tailrace: SENTENCE` on stderr."""
        ...


_VERBS: dict[str, Verb] = {
    "train": train,
    "rollout": rollout,
    "compare": compare,
    "profile": profile,
    "bench": bench,
    "advise": advise,
    "simulate": simulate,
    "cluster": cluster,
    "replay": replay,
    "report": report,
    "doctor": doctor,
    "export": export,
    "version": version,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options, unknown = _parse(sys.argv[1:] if arguments is None else list(arguments))
    try:
        _refuse(unknown, takes_settings=options.takes_settings)
    except SettingsError as error:
        print(f"tailrace: {error}", file=sys.stderr)
        return 2
    try:
        code = _VERBS[options.verb].run(options)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (`| head`) has had enough. What is still held back must not be tried again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        print("tailrace: stopped before the run began", file=sys.stderr)
        return 1


def _parse(given: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Return the arguments that the verb knows, and those that it does not know."""
    parser = argparse.ArgumentParser(prog="tailrace", description="RL post-training that never waits for the tail.")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, verb in _VERBS.items():
        doc = (verb.__doc__ or "").splitlines()[0]
        parser_of_verb = verbs.add_parser(name, help=doc, description=doc, allow_abbrev=False)
        if name in given:  # some verbs have hundreds of arguments, which take time to add
            verb.configure(parser_of_verb)
    parser.set_defaults(takes_settings=False)
    return parser.parse_known_args(given)


def _refuse(unknown: Sequence[str], *, takes_settings: bool) -> None:
    if takes_settings:
        refuse_unknown(unknown)
    elif unknown:
        raise SettingsError(f"unexpected argument {unknown[0]!r}")


if __name__ == "__main__":
    sys.exit(main())
