"""What a program will need, seen from its text: modules that are loaded once, before the cases, and names that other
systems define for programs.

Code sets expect that a program may use `List`, `deque` or `gcd` without importing them. Only names that occur in the
text are defined, because loading their modules takes time. A program's own definitions take precedence.
"""

from __future__ import annotations

import re

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MODULES = (
    "abc", "array", "bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions",
    "functools", "heapq", "io", "itertools", "json", "math", "operator", "os", "queue", "random", "re", "statistics",
    "string", "struct", "sys", "textwrap", "threading", "time", "typing",
)  # fmt: skip
"""Modules that do nothing when they are loaded. A program imports others itself."""
_NAMES = {
    "typing": "Any Callable Deque Dict FrozenSet Generator Iterable Iterator List Optional Sequence Set Tuple Union",
    "collections": "Counter OrderedDict defaultdict deque namedtuple",
    "itertools": (
        "accumulate chain combinations combinations_with_replacement cycle groupby islice pairwise permutations "
        "product repeat zip_longest"
    ),
    "functools": "cache cmp_to_key lru_cache partial reduce",
    "heapq": "heapify heappop heappush heappushpop heapreplace merge nlargest nsmallest",
    "bisect": "bisect bisect_left bisect_right insort",
    "math": "ceil comb factorial floor gcd inf isqrt lcm log log2 log10 pi prod sqrt",
    "copy": "deepcopy",
    "string": "ascii_lowercase ascii_uppercase ascii_letters digits",
    "operator": "itemgetter",
}
NAMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def needed_modules(program: str) -> list[str]:
    """Modules to load before the cases: those whose names occur."""
    words = set(_WORD.findall(program))
    return [module for module in MODULES if module in words]


def needed_names(program: str) -> list[tuple[str, str]]:
    """Modules and names that the program may use without importing them."""
    words = set(_WORD.findall(program))
    modules = [(module, "") for module in MODULES if module in words and module not in NAMES and module != "io"]
    return [*modules, *((module, name) for name, module in NAMES.items() if name in words)]
