"""A Config -> the text of `config.yaml` in the run directory: whole, resolved, masked; it loads again."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, cast

from engine.config.mask import mask_data
from engine.config.schema import Config
from engine.config.shape import verbatim
from engine.config.tree import Path


def to_yaml(config: Config, secrets: Iterable[str]) -> str:
    """The config as YAML, with every secret shown as `***`."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """Texts of several lines as blocks, and nothing as an alias: people read this."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

    def text(dumper: Any, data: str) -> Any:
        # Left to itself PyYAML writes some line separators such that they read back as spaces.
        plain = all(c.isprintable() or c == "\n" for c in data)
        style = ("|" if "\n" in data else None) if plain else '"'
        return dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)

    Dumper.add_representer(str, text)
    data = _plain(mask_data(asdict(config), secrets), ())
    return yaml.dump(data, Dumper=Dumper, sort_keys=False, allow_unicode=True, width=1_000_000)


def escaped(text: str) -> str:
    r"""`text` such that OmegaConf gives it back unchanged: `${` becomes `\${`."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def _plain(value: Any, path: Path) -> Any:
    if isinstance(value, Mapping):
        pairs = cast("Mapping[str, Any]", value)
        return {key: _plain(inner, (*path, key)) for key, inner in pairs.items()}
    if isinstance(value, list):
        items = cast("list[Any]", value)
        return [_plain(item, (*path, number)) for number, item in enumerate(items)]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return escaped(value) if isinstance(value, str) and not verbatim(path) else value
