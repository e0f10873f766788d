"""What a command line may override, beyond what Hydra lets it."""

import inspect
import re

# An override of a value within a node: a.b.c=value.
_DEEP = re.compile(r"\w+(\.\w+)+=")


def constructor_arguments(arguments: list[str]) -> list[str]:
    """Marks as additions the overrides that a node's constructor takes and its YAML leaves out.

    Hydra asks for `+key=value` where a configuration does not show the key. Every argument of a
    `_target_` can be overridden, shown or not.
    """
    from hydra import compose, initialize_config_module
    from hydra.errors import HydraException
    from omegaconf import DictConfig, OmegaConf
    from omegaconf.errors import OmegaConfBaseException

    deep = [a for a in arguments if _DEEP.match(a)]
    if not deep:
        return arguments
    rest = [a for a in arguments if a not in deep and not a.startswith("-") and "=" in a]
    try:
        with initialize_config_module("ritornello.conf", version_base="1.3"):
            shown = compose("reproduce", [a for a in rest if not a.startswith("hydra")])
    except (HydraException, OmegaConfBaseException):
        return arguments  # told by the composition that follows

    def hidden(argument: str) -> bool:
        place, _, name = argument.partition("=")[0].rpartition(".")
        try:
            node = OmegaConf.select(shown, place)
        except OmegaConfBaseException:
            return False
        return (
            isinstance(node, DictConfig)
            and name not in node
            and "_target_" in node
            and name in _parameters(node["_target_"])
        )

    # ++: a key that comes up twice has its last value, as shown ones have
    return [f"++{a}" if a in deep and hidden(a) else a for a in arguments]


def jobs_of_sweep(arguments: list[str]) -> list[list[str]]:
    """Jobs in which every value of a sweep comes up, the other overrides at their first."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    values = []
    for argument in arguments:
        try:
            override = OverridesParser.create().parse_override(argument)
        except HydraException:
            return [arguments]  # told by the composition that follows
        key = argument.partition("=")[0]
        swept = override.is_sweep_override()
        each = override.sweep_string_iterator() if swept else ()
        values.append([f"{key}={value}" for value in each] or [argument])
    first = [each[0] for each in values]
    others = ((i, value) for i, each in enumerate(values) for value in each[1:])
    return [first, *([*first[:i], value, *first[i + 1 :]] for i, value in others)]


def _parameters(target: str) -> set[str]:
    from hydra.utils import get_object

    try:
        return set(inspect.signature(get_object(target)).parameters)
    except (ImportError, AttributeError, TypeError, ValueError):
        return set()
