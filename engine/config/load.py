"""A config file and `KEY=VALUE` words -> a checked Config, or every fault of it at once.

The way of a config: text -> located tree (`locate`) -> bases and overrides merged (`sources`)
-> interpolations resolved (OmegaConf, here) -> dataclasses (`build`) -> values judged (`check`).
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path as FilePath
from typing import Any, TextIO, cast

from engine.config.build import build
from engine.config.check import advise, check, foreign
from engine.config.dump import escaped, to_yaml
from engine.config.mask import MIN_LENGTH, is_secret_name, mask_text, ordered, secret_args, secrets_in
from engine.config.schema import Config
from engine.config.shape import all_keys, merge, nearest, verbatim
from engine.config.sources import Files, override_tree
from engine.config.tree import Entry, Fault, Faults, Map, Mark, Node, Path, Scalar, Seq, dotted, marks, quote, walk
from engine.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Loaded:
    """A config that was found sound.

    Attributes:
        config: typed and resolved; `name` is filled in.
        secrets: the values that must not be shown, longest first.
        resolved_yaml: the whole config, secrets masked; it loads again.
        warnings: what is allowed but probably not meant, one line each.
        path: the file; None for stdin.
    """

    config: Config
    secrets: tuple[str, ...]
    resolved_yaml: str
    warnings: tuple[str, ...]
    path: FilePath | None


def load_config(
    source: str,
    overrides: Sequence[str] = (),
    *,
    environ: Mapping[str, str] = os.environ,
    stdin: TextIO | None = None,
) -> Loaded:
    """Read, merge, resolve and check a config.

    Args:
        source: a path, or `-` for stdin.
        overrides: `KEY=VALUE` words; later ones win.
        environ: what `${oc.env:NAME}` sees.
        stdin: read for `-`; default: the process's own.

    Raises:
        ConfigError: with every fault of the file, its bases and the overrides, one line each.
    """
    faults = Faults()
    raw = Files(faults).main(source, stdin)
    over = override_tree(overrides, faults)
    if raw is None:
        raise ConfigError(_masked(faults, secrets_in(_plain(over))))
    if line := foreign({key: entry.mark.where for key, entry in raw.entries.items()}):
        raise ConfigError([line])
    stem = "stdin" if source == "-" else FilePath(source).stem
    resolver = Resolver(environ, stem, faults)
    root = resolver.resolve(_map(merge(raw, over)))
    config = build(root, faults)
    config.name = stem if config.name is None else config.name
    _judge(config, root, raw.mark, faults)
    secrets = ordered([*resolver.secrets, *_secrets_of(config), *secrets_in(_plain(root))])
    if faults.found:
        raise ConfigError(_masked(faults, secrets))
    if config.task.torchrun is not None:
        config.task.mode = "per_node"
    return Loaded(
        config=config,
        secrets=secrets,
        resolved_yaml=to_yaml(config, secrets),
        warnings=(*advise(config), *_unmaskable(config)),
        path=None if source == "-" else FilePath(source),
    )


def _map(node: Node) -> Map:
    assert isinstance(node, Map)  # a config's root always is one
    return node


def _judge(config: Config, root: Map, top: Mark, faults: Faults) -> None:
    """Add what `check` finds, each at its place, where nothing was said about it before."""
    given = dict(marks(root))
    for problem in check(config, frozenset(given)):
        if faults.covers(problem.path):
            continue
        place = problem.path
        while place and place not in given:
            place = place[: max(place.rfind("."), place.rfind("["), 0)]
        mark = given.get(place, top)
        faults.found.append(Fault(mark, problem.path, problem.text, problem.hint))


def _masked(faults: Faults, secrets: Iterable[str]) -> list[str]:
    known = ordered(secrets)
    return [mask_text(line, known) for line in faults.lines()]


def _secrets_of(config: Config) -> Iterator[str]:
    yield from secrets_in(asdict(config))
    if isinstance(config.task.command, str):
        try:
            yield from secret_args(shlex.split(config.task.command))
        except ValueError:
            pass  # an open quote: `check` reports it


def _unmaskable(config: Config) -> Iterator[str]:
    for name, value in config.env.items():
        if is_secret_name(name) and 0 < len(value) < MIN_LENGTH:
            yield f"env.{name}: shorter than {MIN_LENGTH} characters, so it is not masked where it appears in text"


def _plain(node: Node) -> Any:
    """The tree as nested dicts and lists of text, for OmegaConf."""
    if isinstance(node, Map):
        return {key: _plain(entry.node) for key, entry in node.entries.items()}
    if isinstance(node, Seq):
        return [_plain(item) for item in node.items]
    return None if node.null else node.text


class Resolver:
    """Resolves `${...}` with OmegaConf, which is imported only where there is one to resolve.

    Attributes:
        secrets: values that came from environment variables with a secret name.
    """

    def __init__(self, environ: Mapping[str, str], name: str, faults: Faults) -> None:
        self.environ = environ
        self.name = name
        self.faults = faults
        self.secrets: set[str] = set()
        self.unset: str | None = None  # the variable that the last failed resolution asked for

    def resolve(self, root: Map) -> Map:
        """The tree with every interpolation replaced by what it stands for."""
        pending = [(p, s) for p, s in walk(root) if "${" in s.text and not verbatim(p)]
        if not pending:
            return root
        from omegaconf import OmegaConf
        from omegaconf.errors import OmegaConfBaseException

        unreadable: dict[Path, Node] = {}
        for path, scalar in pending:
            try:
                OmegaConf.create({"value": scalar.text})
            except OmegaConfBaseException:
                self._unreadable(path, scalar)
                unreadable[path] = Scalar("", scalar.mark, quoted=True)
        readable = [(p, s) for p, s in pending if p not in unreadable]
        done = dict(unreadable)
        with self._env_resolver():
            container = OmegaConf.create(self._container(_map(_replaced(root, unreadable))))
            for path, scalar in readable:
                try:
                    done[path] = _tree_of(self._value(container, path), scalar.mark)
                except OmegaConfBaseException as e:
                    self._unresolved(path, scalar, e)
                    done[path] = Scalar("", scalar.mark, quoted=True)
        return _map(_replaced(root, done))

    def _container(self, root: Map) -> dict[str, Any]:
        """What interpolations may refer to: the config, and the defaults of what it leaves out."""
        mark = Mark("", (0, 0))
        defaults = _tree_of({**asdict(Config()), "name": self.name}, mark)
        shielded = {p: Scalar(escaped(s.text), s.mark, s.null) for p, s in walk(root) if verbatim(p)}
        return _plain(merge(defaults, _replaced(root, shielded)))

    def _value(self, container: Any, path: Path) -> Any:
        from omegaconf import OmegaConf

        self.unset = None
        for part in path:
            container = container[part]
        return OmegaConf.to_container(container, resolve=True) if OmegaConf.is_config(container) else container

    @contextmanager
    def _env_resolver(self) -> Generator[None]:
        """`oc.env` reads the environment that was passed in, and notes secrets and what is not set."""
        from omegaconf.resolvers import oc

        def env(key: Any, *default: Any) -> str | None:
            name = str(key)
            if name in self.environ:
                if is_secret_name(name):
                    self.secrets.add(self.environ[name])
                return self.environ[name]
            if default:
                return None if default[0] is None else str(default[0])
            self.unset = name
            raise KeyError(name)

        _register("oc.env", env)
        try:
            yield
        finally:
            _register("oc.env", oc.env)

    def _unreadable(self, path: Path, scalar: Scalar) -> None:
        text = f'{quote(scalar.text)} has a "${{" that starts no interpolation'
        self.faults.add(scalar.mark, dotted(path), text, r"write \${ for a literal ${")

    def _unresolved(self, path: Path, scalar: Scalar, error: Exception) -> None:
        """What OmegaConf could not resolve, and what was probably meant."""
        said = str(error).splitlines()[0]
        literal = r"for a literal ${ write \${"
        if self.unset is not None:
            text = f"the environment variable {self.unset} is not set"
            hint = f"set it, or give a default: ${{oc.env:{self.unset},default}}"
        elif found := re.search(r"Interpolation key '(.*)' not found", said):
            key = found.group(1)
            text = f"${{{key}}} refers to a key that is not in the config"
            near = nearest(key, all_keys(), cutoff=0.75)
            environment = f"for an environment variable write ${{oc.env:{key}}}; {literal}"
            hint = f'did you mean "{near}"?' if near else environment if key.isidentifier() else literal
        elif found := re.search(r"Unsupported interpolation type (\S+)", said):
            kind = found.group(1)
            text = f"${{{kind}:...}} is no interpolation that exists"
            hint = f"did you mean ${{oc.{kind}:...}}?" if kind in ("env", "select", "decode") else literal
        elif "ecursi" in said:
            text, hint = f"{quote(scalar.text)} refers to itself", ""
        else:
            text, hint = f"{quote(scalar.text)} cannot be resolved: {said}", ""
        self.faults.add(scalar.mark, dotted(path), text, hint)


def _register(name: str, resolver: Any) -> None:
    """Replace a resolver of OmegaConf: 2.4 renamed the function for it, and warns about the old name."""
    from omegaconf import OmegaConf

    new = getattr(OmegaConf, "register_resolver", None)
    # Under the same name 2.3 has an older function, which cannot replace.
    register = new if new is not None and "replace" in (new.__kwdefaults__ or {}) else OmegaConf.register_new_resolver
    register(name, resolver, replace=True)


def _tree_of(value: Any, mark: Mark) -> Node:
    """A resolved value as a tree that stands where the interpolation stood."""
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value)
        return Map({str(key): Entry(_tree_of(inner, mark), mark) for key, inner in pairs.items()}, mark)
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return Seq(tuple(_tree_of(item, mark) for item in items), mark)
    if value is None:
        return Scalar("", mark, null=True)
    if isinstance(value, float) and value.is_integer():
        return Scalar(str(int(value)), mark)
    return Scalar(str(value).lower() if isinstance(value, bool) else str(value), mark)


def _replaced(node: Node, by_path: Mapping[Path, Node], path: Path = ()) -> Node:
    """The tree with the nodes at some paths replaced."""
    if path in by_path:
        return by_path[path]
    if isinstance(node, Map):
        entries = {k: Entry(_replaced(e.node, by_path, (*path, k)), e.mark) for k, e in node.entries.items()}
        return Map(entries, node.mark)
    if isinstance(node, Seq):
        return Seq(tuple(_replaced(n, by_path, (*path, i)) for i, n in enumerate(node.items)), node.mark)
    return node
